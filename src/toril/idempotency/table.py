"""The table of finished work: plain columns, created by you or your migrations.

scope       what kind of work: the queue and the job's name, unless you say otherwise
key         the job's idempotency key
job_id      which job did it
result      what it returned, as JSON text
created_at  when, in ms since the epoch
expires_at  the record is kept at least until then
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, MetaData, Table

from toril.checking import checked_call
from toril.idempotency.record import LONGEST
from toril.sql import key_text, long_text

DEFAULT_NAME = "toril_idempotency"


@checked_call
def idempotency_table(
    metadata: MetaData, name: str = DEFAULT_NAME, *, schema: str | None = None
) -> Table:
    """Define the table in ``metadata``; creating it is left to you or your migrations."""
    return Table(
        name,
        metadata,
        Column("scope", key_text(LONGEST), primary_key=True),
        Column("key", key_text(LONGEST), primary_key=True),
        Column("job_id", key_text(LONGEST), nullable=False),
        Column("result", long_text()),
        Column("created_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Index(f"ix_{name}_expires_at", "expires_at"),
        schema=schema,
    )


DEFAULT_TABLE = idempotency_table(MetaData())
