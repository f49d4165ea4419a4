"""What came of each of several ids that a command was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from toril.cli.printing import echo, print_json
from toril.cli.server import Server
from toril.errors import InvalidInputError, RefusedError


class Answers:
    """An answer for each id: a line as soon as it is known, or one JSON document at the end.

    The document is printed however the command ends: some jobs may have been changed by then.
    """

    def __init__(self, server: Server) -> None:
        self._as_json = server.as_json
        self._all: list[dict[str, Any]] = []
        self._is_begun = False
        self._is_refused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._as_json and self._all:
            print_json(self._all)

    @property
    def code(self) -> int:
        """The exit code that the answers stand for."""
        return 1 if self._is_refused else 0

    @contextmanager
    def about(self, job_id: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """One answer, to be completed.  A refusal is an answer too, and the other ids follow.

        Wrong usage is raised as long as nothing has been changed.
        """
        answer = {"id": job_id, **facts}
        try:
            yield answer
        except (RefusedError, InvalidInputError) as error:
            if isinstance(error, InvalidInputError) and not self._is_begun:
                raise
            answer["error"] = str(error)
            self._is_refused = True
            if not self._as_json:
                echo(f"toril: {error}", err=True)
        else:
            self._is_begun = True
        self._all.append(answer)

    def tell(self, line: str) -> None:
        """Print an answer for people."""
        if not self._as_json:
            echo(line)
