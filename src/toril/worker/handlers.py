"""Handlers: functions of a job, found by its name, wrapped by middleware."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import reduce
from typing import Any, Protocol, TypeVar, overload

from toril.checking import by_hand, checked
from toril.errors import InvalidOptionError, NoHandlerError
from toril.worker.context import Context

Handler = Callable[[Context[Any]], Any]
"""A function of a job: ``async def`` runs on the loop, a plain ``def`` in a thread."""

H = TypeVar("H", bound=Handler)

Middleware = Callable[[Handler], Handler]
"""Takes an ``async`` handler and returns one that does more; a plain handler is passed to it as an
``async`` one that runs in a thread."""


class Place(Protocol):
    """Where an app enqueues; somebody may have moved it since its module was imported."""

    def tell(self) -> Any:
        """Say it, to a process that has just imported the app."""

    def move(self, told: Any) -> None:
        """Enqueue where the process that runs the worker said."""


@checked
class Router:
    """Finds the handler for a job by the job's name.

    ::

        router = Router()

        @router.on("charge")
        async def charge(job): ...
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._fallback: Handler | None = None
        self._middleware: list[Middleware] = []
        self.lifespan: AbstractAsyncContextManager[Any] | None = None
        """A process that runs handlers enters it before the first job and leaves it at its end."""
        self.place: Place | None = None
        """A process that runs the tasks of an app is told where the app is."""

    @overload
    def on(self, name: str) -> Callable[[H], H]: ...

    @overload
    def on(self, name: str, handler: H) -> H: ...

    @overload
    def on(self, name: H) -> H: ...

    def on(self, name: str | H, handler: H | None = None) -> H | Callable[[H], H]:
        """Register a handler for the jobs of this name, as a decorator or directly.

        Without parentheses, the function's name is used.
        """
        if not isinstance(name, str):
            return self.on(_name_of(name), name)
        if handler is None:

            def register(function: H) -> H:
                return self.on(name, function)

            return register
        if name in self._handlers:
            raise InvalidOptionError(f"a handler for {name!r} is already registered")
        if not callable(handler):
            raise InvalidOptionError(f"the handler for {name!r} is not callable: {handler!r}")
        self._handlers[name] = handler
        return handler

    def otherwise(self, handler: Handler) -> Handler:
        """Register the handler for all names that have no handler of their own."""
        self._fallback = handler
        return handler

    def use(self, middleware: Middleware) -> Middleware:
        """Wrap every handler; the middleware registered first is the outermost."""
        self._middleware.append(middleware)
        return middleware

    @property
    def middleware(self) -> Sequence[Middleware]:
        return self._middleware

    def handlers(self) -> dict[str, Handler]:
        """The registered handlers by the names of their jobs, without middleware."""
        return dict(self._handlers)

    @property
    def names(self) -> list[str]:
        return sorted(self._handlers)

    @by_hand
    def find(self, name: str) -> Handler:
        """The handler for jobs of this name, without its middleware."""
        handler = self._handlers.get(name) or self._fallback
        if handler is None:
            known = ", ".join(self.names) or "none"
            raise NoHandlerError(
                f"no handler is registered for jobs named {name!r} (registered: {known});"
                f" add @router.on({name!r}), or router.otherwise(…) for the rest"
            )
        return handler


def _name_of(handler: Handler) -> str:
    name = getattr(handler, "__name__", None)
    if not callable(handler) or not isinstance(name, str):
        raise InvalidOptionError(
            f"@router.on needs the name of the jobs, or a function that has one; it got {handler!r}"
        )
    return name


def wrap(handler: Handler, middleware: Sequence[Middleware]) -> Handler:
    """``handler`` inside its middleware, the first the outermost."""
    return reduce(lambda inner, outer: outer(inner), reversed(middleware), handler)


def is_async(handler: Handler) -> bool:
    """Does calling it return an awaitable?"""
    if inspect.iscoroutinefunction(handler):
        return True
    call = getattr(handler, "__call__", None)  # noqa: B004  (a callable object)
    return inspect.iscoroutinefunction(call)
