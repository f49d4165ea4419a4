"""Views that do their work once per request: a repeated request gets the first answer.

For webhooks, and for clients that repeat a request whose answer was lost.  The record of the key
and the answer commit with the work, as for jobs.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from toril.client.ids import new_job_id
from toril.errors import InvalidOptionError, MissingKeyError

SESSION = "session"
"""The view's parameter that receives the transaction of the work."""

KeyOf = Callable[..., str | None]
"""Finds the key of a request, given the arguments of the view."""


class Delivery:
    """One request, as a store sees it: work with a key, like a job.

    Each has its own id, so that a second one that arrives in the meantime does not take over.
    """

    queue_name, fence = "webhooks", 1
    is_cancelled = is_lost = False

    def __init__(self, name: str, key: str, arguments: inspect.BoundArguments, prefix: str) -> None:
        self.prefix = prefix
        self.id = new_job_id()
        self.name = name
        self.idempotency_key = key
        self.arguments = arguments


def guard_view(store: Any, view: Callable[..., Any], key_of: KeyOf) -> Callable[..., Any]:
    """``view``, wrapped so that it asks ``store`` first; its ``session`` comes from the store."""
    signature = _resolved(view)
    name = f"{view.__module__}.{view.__qualname__}"
    has_session = SESSION in signature.parameters
    if has_session != store.gives_session:
        needs = "needs a parameter" if store.gives_session else "is given no"
        raise InvalidOptionError(f"{name} {needs} {SESSION!r}: {store!r} decides that")
    outside = signature.replace(
        parameters=[one for one in signature.parameters.values() if one.name != SESSION]
    )

    def deliver(arguments: tuple[Any, ...], named: dict[str, Any]) -> Delivery:
        key = key_of(*arguments, **named)
        if not key:
            raise MissingKeyError(f"the request to {name} has no idempotency key; send one")
        return Delivery(name, key, outside.bind(*arguments, **named), store.prefix)

    call = functools.partial(_call, view, signature)
    handler = store.wrap(_handler(call, is_async=inspect.iscoroutinefunction(view)))
    if inspect.iscoroutinefunction(view):

        @functools.wraps(view)
        async def guarded(*arguments: Any, **named: Any) -> Any:
            return await handler(deliver(arguments, named))
    else:

        @functools.wraps(view)
        def guarded(*arguments: Any, **named: Any) -> Any:
            return handler(deliver(arguments, named))

    # Frameworks read a view's parameters from here, and must not look for a session in the request.
    guarded.__signature__ = outside  # type: ignore[attr-defined]
    return guarded


def header_key(header: str) -> KeyOf:
    """Read the key from a header of the request, whichever argument that is."""

    def find(*arguments: Any, **named: Any) -> str | None:
        for one in (*arguments, *named.values()):
            headers = getattr(one, "headers", None)
            if headers is not None and hasattr(headers, "get"):
                value: str | None = headers.get(header)
                return value
        raise InvalidOptionError(
            f"none of the view's arguments has headers that could contain {header!r}; take the"
            f" request as one of them, or pass key= instead of header="
        )

    return find


def _handler(call: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """The view as stores call a handler: with the delivery, and a session if they have one."""
    if is_async:

        async def handle_async(delivery: Delivery, *session: Any) -> Any:
            return await call(delivery, session)

        return handle_async

    def handle(delivery: Delivery, *session: Any) -> Any:
        return call(delivery, session)

    return handle


def _call(
    view: Callable[..., Any],
    signature: inspect.Signature,
    delivery: Delivery,
    session: tuple[Any, ...],
) -> Any:
    """Call it with the session in its place, wherever among the parameters that is."""
    arguments = dict(delivery.arguments.arguments)
    if session:
        arguments[SESSION] = session[0]
    given = inspect.BoundArguments(signature, arguments)
    return view(*given.args, **given.kwargs)


def _resolved(view: Callable[..., Any]) -> inspect.Signature:
    """Its signature, with string annotations resolved to types."""
    signature = inspect.signature(view)
    try:
        hints = typing.get_type_hints(view, include_extras=True)
    except (NameError, TypeError):
        return signature
    parameters = [
        one.replace(annotation=hints.get(one.name, one.annotation))
        for one in signature.parameters.values()
    ]
    returned = hints.get("return", signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returned)
