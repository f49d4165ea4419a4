"""``@idempotent``: a handler whose work is done once per key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from toril.errors import InvalidOptionError
from toril.idempotency.inbox import KeyOf, guard_view, header_key
from toril.idempotency.window import check_lifetime
from toril.logs import get_logger
from toril.options import NewJob

logger = get_logger("toril.idempotency")

MARK = "toril_idempotency"
"""The attribute that marks an idempotent handler."""


class Store(Protocol):
    """Where finished work is recorded."""

    ttl_ms: int
    prefix: str
    gives_session: bool
    """Is the function also called with a session?"""

    def wrap(self, function: Any) -> Callable[[Any], Any]:
        """The handler that asks the store before it runs ``function``."""


class Guarded(msgspec.Struct, frozen=True):
    """What is known about an idempotent handler: its store sets the lifetime of its records."""

    store: Any


def idempotent(
    store: Store,
    *,
    options: Mapping[str, Any] | NewJob | None = None,
    worker: Any = None,
    header: str | None = None,
    key: KeyOf | None = None,
) -> Callable[[Any], Callable[..., Any]]:
    """Do a handler's work once: a second run does nothing and returns the first result.

    With a ``SqlStore`` the handler is called with the job and a session whose transaction holds the
    record.  ``options`` are those its jobs are added with, and ``worker`` is the one that runs
    them: if their retry window is longer than the store keeps its records, it raises at once.

    With ``header`` or ``key`` it guards a view of a web framework instead of a job handler: a
    repeated request gets the first answer, which must be plain data.  The key is in that header of
    the request, or is what ``key`` returns for the view's arguments.  With a ``SqlStore`` the view
    has a parameter ``session``, whose transaction holds the record.
    """
    if not hasattr(store, "wrap"):
        raise InvalidOptionError(f"{store!r} is not a store; use @idempotent(SqlStore(engine))")
    if options is not None:
        check_lifetime(store.ttl_ms, options, worker)

    if header is not None and key is not None:
        raise InvalidOptionError("header and key both say where the key is; give one")
    key_of = header_key(header) if header is not None else key

    def decorate(function: Any) -> Callable[..., Any]:
        if key_of is not None:
            return guard_view(store, function, key_of)
        handler = store.wrap(function)
        setattr(handler, MARK, Guarded(store))
        return handler

    return decorate
