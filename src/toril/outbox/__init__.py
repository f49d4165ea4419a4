"""The transactional outbox: jobs that exist if, and only if, their transaction commits.

``Outbox.add`` writes a row inside the caller's transaction, through a SQLAlchemy session, Django's
connection or a driver's own; a ``Relay`` turns rows into jobs.
The relay needs SQLAlchemy 2: ``pip install 'toril[outbox]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toril.outbox.outbox import Outbox
from toril.outbox.rows import OutboxRow
from toril.outbox.schema import table_sql

if TYPE_CHECKING:
    from toril.outbox.relay import Relay, RelayMetrics
    from toril.outbox.storing import OutboxStats
    from toril.outbox.table import outbox_table

__all__ = [
    "Outbox",
    "OutboxRow",
    "OutboxStats",
    "Relay",
    "RelayMetrics",
    "outbox_table",
    "table_sql",
]

_WITH_SQLALCHEMY = {
    "OutboxStats": "storing",
    "Relay": "relay",
    "RelayMetrics": "relay",
    "outbox_table": "table",
}


def __getattr__(name: str) -> Any:
    # A service that only writes rows, through its own driver, may not have SQLAlchemy.
    if name not in _WITH_SQLALCHEMY:
        raise AttributeError(f"module 'toril.outbox' has no attribute {name!r}")
    try:
        import sqlalchemy  # noqa: F401 (only to say what is missing)
    except ImportError as error:
        raise ImportError(
            f"toril.outbox.{name} needs SQLAlchemy; install it with: pip install 'toril[outbox]'"
        ) from error
    return getattr(import_module(f"toril.outbox.{_WITH_SQLALCHEMY[name]}"), name)
