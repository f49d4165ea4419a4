"""Middleware of an app: one side sees what is enqueued, the other what is run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from toril.tasks.calls import Call, Handle

EnqueueNext = Callable[[Call[Any]], Awaitable[Handle[Any]]]
RunNext = Callable[[Any], Awaitable[Any]]


class TaskMiddleware:
    """Override one side or both; ``next`` continues.

    ::

        class Tenants(TaskMiddleware):
            async def on_enqueue(self, call, next):
                return await next(call)

            async def on_run(self, ctx, next):
                return await next(ctx)
    """

    async def on_enqueue(self, call: Call[Any], next: EnqueueNext) -> Handle[Any]:  # noqa: A002
        """Called for every call that is enqueued with ``await``."""
        return await next(call)

    async def on_run(self, ctx: Any, next: RunNext) -> Any:  # noqa: A002
        """Called around every run of a task."""
        return await next(ctx)


def has_side(middleware: TaskMiddleware, side: str) -> bool:
    """Whether it overrides this side."""
    return getattr(type(middleware), side, None) is not getattr(TaskMiddleware, side)
