"""Handlers that do their work once, however often their job is delivered.

``idempotent`` wraps a handler, ``once`` guards a block; both record the job's idempotency key in
the same transaction as the work.  ``RedisStore`` is for work that has no database.
"""

from typing import TYPE_CHECKING, Any

from toril.idempotency.decorator import idempotent
from toril.idempotency.redis_store import RedisStore
from toril.idempotency.window import check_lifetime, retry_window

if TYPE_CHECKING:
    from toril.idempotency.guard import Once, once
    from toril.idempotency.sql_store import SqlStore
    from toril.idempotency.table import idempotency_table

__all__ = [
    "Once",
    "RedisStore",
    "SqlStore",
    "check_lifetime",
    "idempotency_table",
    "idempotent",
    "once",
    "retry_window",
]

_NEEDS_SQLALCHEMY = {
    "Once": "toril.idempotency.guard",
    "once": "toril.idempotency.guard",
    "SqlStore": "toril.idempotency.sql_store",
    "idempotency_table": "toril.idempotency.table",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_SQLALCHEMY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(_NEEDS_SQLALCHEMY[name])
    except ImportError as error:
        raise ImportError(
            f"toril.idempotency.{name} needs SQLAlchemy; pip install 'toril[outbox]'"
        ) from error
    return getattr(module, name)
