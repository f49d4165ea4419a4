"""The transactional outbox: jobs that exist if, and only if, the transaction that wanted them did.

``Outbox.add`` writes a row inside the caller's transaction; a ``Relay`` turns rows into jobs.
Needs SQLAlchemy 2: ``pip install 'toril[outbox]'``.
"""

try:
    import sqlalchemy  # noqa: F401 (only to say what is missing)
except ImportError as error:
    raise ImportError(
        "toril.outbox needs SQLAlchemy; install it with: pip install 'toril[outbox]'"
    ) from error

from toril.outbox.outbox import Outbox
from toril.outbox.relay import Relay, RelayMetrics
from toril.outbox.rows import OutboxRow
from toril.outbox.storing import OutboxStats
from toril.outbox.table import outbox_table

__all__ = ["Outbox", "OutboxRow", "OutboxStats", "Relay", "RelayMetrics", "outbox_table"]
