"""What the tables of the outbox and of idempotency share: the columns, and errors that pass.

A key must mean the same in every database.  MySQL and MariaDB compare text without regard to case
and cut long texts off at 64 KB unless they are told otherwise, so the columns tell them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

MYSQL = ("mysql", "mariadb")
"""One family; which name an engine has depends on its URL."""

MOST_TRIES = 10
"""How often a transaction is begun that others keep out."""

_DUPLICATE_ENTRY = 1062
_LOST_OUT_MYSQL = frozenset({1205, 1213, 1020})  # lock wait timeout, deadlock, changed since read
_LOST_OUT_SQLSTATES = frozenset({"40001", "40P01"})  # serialization failure, deadlock
_SQLITE_BUSY = 5
_ONLY_READS_MYSQL = frozenset({1290, 1792, 1836})
_ONLY_READS_SQLSTATE = "25006"


def key_text(length: int) -> Any:
    """Text that is compared character by character, and may be part of an index."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, *MYSQL)


def long_text() -> Any:
    """Text without a limit of its own."""
    exact = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return Text().with_variant(exact, *MYSQL)


def is_duplicate_key(error: DBAPIError) -> bool:
    """Did MySQL refuse a row because one with its key is there?"""
    return bool(_number(error) == _DUPLICATE_ENTRY)


def is_passing(error: DBAPIError) -> bool:
    """Would the same transaction fare better if begun anew?

    It lost against another one, or its connection had died, maybe long before; it had no effect,
    unless it died while it was committed.
    """
    return error.connection_invalidated or _lost_out(error)


def only_reads(error: DBAPIError) -> bool:
    """Did the server refuse to write, as a primary does that became a replica?"""
    sqlstate = getattr(error.orig, "sqlstate", None)
    return sqlstate == _ONLY_READS_SQLSTATE or _number(error) in _ONLY_READS_MYSQL


def _lost_out(error: DBAPIError) -> bool:
    """Did another transaction win: by a deadlock, a lock that was waited for too long?"""
    if _number(error) in _LOST_OUT_MYSQL:
        return True
    if getattr(error.orig, "sqlite_errorcode", None) == _SQLITE_BUSY:
        return True
    return getattr(error.orig, "sqlstate", None) in _LOST_OUT_SQLSTATES


def _number(error: DBAPIError) -> Any:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments else None
