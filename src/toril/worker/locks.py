"""The locks of the jobs that a worker holds."""

from __future__ import annotations


class Locks:
    """Which jobs are held, and by which tokens; read by the thread that renews them."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def hold(self, job_id: str, token: str) -> None:
        """Renew this lock until it is released."""
        self._held[job_id] = token

    def let_go(self, job_id: str, token: str) -> None:
        if self._held.get(job_id) == token:
            self._held.pop(job_id, None)

    def holds(self, job_id: str, token: str) -> bool:
        return self._held.get(job_id) == token

    def all(self) -> list[tuple[str, str]]:
        """The jobs and their tokens."""
        return list(self._held.items())
