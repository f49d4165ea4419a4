"""Toril handlers that follow the same behaviours as the Node peer's processors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toril.errors import DelayedError, RateLimitError, UnrecoverableError, WaitingChildrenError

Behaviours = dict[str, list[list[Any]]]


def _no_queue(name: str) -> Any:
    raise LookupError(f"this handler cannot open queue {name!r}")


class ScriptedHandler:
    """A handler told by job name what to do; remembers the jobs it was given.

    ``seen`` holds (name, data, attempts_made) in order; ``holding`` the ids of jobs that hang until
    ``release``.
    """

    def __init__(
        self, behaviours: Behaviours | None = None, on_hold: Callable[[str], None] | None = None
    ) -> None:
        self.behaviours = behaviours or {}
        self.seen: list[Any] = []
        self.holding: dict[str, asyncio.Future[Any]] = {}
        self.running = 0
        self.most_running = 0
        self._on_hold = on_hold
        self.open_queue: Callable[[str], Any] = _no_queue

    @property
    def names(self) -> list[str]:
        return [job.name for job in self.seen]

    async def __call__(self, job: Any) -> Any:
        self.seen.append(job)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._behave(job)
        finally:
            self.running -= 1

    def release(self, job_id: str | None = None, value: Any = None) -> None:
        for held in [job_id] if job_id else list(self.holding):
            future = self.holding.pop(held)
            if not future.done():
                future.set_result(value)

    async def _behave(self, job: Any) -> Any:
        for action, *args in self.behaviours.get(job.name, self.behaviours.get("*", [["echo"]])):
            match action, args:
                case "echo", []:
                    return job.data
                case "return", [value]:
                    return value
                case "children_values", []:
                    return sorted((await job.children_values()).values(), key=repr)
                case "hang", []:
                    return await self._hold(job)
                case "hang_on_start", [start]:
                    if job.attempts_started == start:
                        await self._hold(job)
                case _:
                    await self._do(job, action, args)
        return None

    async def _do(self, job: Any, action: str, args: list[Any]) -> None:
        match action, args:
            case "fail", [message]:
                raise RuntimeError(message)
            case "fail_until", [attempts_made, message]:
                if job.attempts_made < attempts_made:
                    raise RuntimeError(message)
            case "fail_on_start", [start, message]:
                if job.attempts_started == start:
                    raise RuntimeError(message)
            case "unrecoverable", [message]:
                raise UnrecoverableError(message)
            case "sleep", [ms]:
                await asyncio.sleep(ms / 1000)
            case "progress", [value]:
                await job.report(value)
            case "log", [row]:
                await job.log(row)
            case "update_data", [data]:
                await job.update_data(data)
            case "delay_once", [ms]:
                if job.attempts_started == 1:
                    raise DelayedError(ms)
            case "add_children_once", [queue, *data]:
                if job.attempts_started == 1:
                    for item in data:
                        await self.open_queue(queue).add("child", item, parent=job)
                    raise WaitingChildrenError
            case "rate_limit_once", [ms]:
                if job.attempts_started == 1:
                    raise RateLimitError(ms)
            case _:
                raise LookupError(f"no action {action}{args}")

    async def _hold(self, job: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.holding[job.id] = future
        if self._on_hold:
            self._on_hold(job.id)
        return await future
