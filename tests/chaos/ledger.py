"""The ledger: who ran which job when, written by the handlers into a file that outlives them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

_TABLE = """create table if not exists runs (
    label text, kind text, lane text, pid integer, fence integer, started real, ended real)"""


class Run(NamedTuple):
    label: str
    kind: str
    lane: str | None
    pid: int
    fence: int
    started: float
    ended: float | None


class Ledger:
    """One process' part of the ledger. What is written is in the file when the call returns; the
    death of the process cannot take it back."""

    def __init__(self, path: Path, pid: int) -> None:
        self._pid = pid
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("pragma journal_mode=wal")
        self._file.execute("pragma synchronous=off")
        self._file.execute(_TABLE)

    def begin(self, label: str, kind: str, lane: str | None, fence: int) -> int:
        cursor = self._file.execute(
            "insert into runs values (?, ?, ?, ?, ?, ?, null)",
            (label, kind, lane, self._pid, fence, time.time()),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def end(self, row: int) -> None:
        self._file.execute("update runs set ended = ? where rowid = ?", (time.time(), row))


def read_all(directory: Path) -> Iterator[Run]:
    """The runs of all processes, those of the dead included."""
    for path in sorted(directory.glob("*.db")):
        with closing(sqlite3.connect(path)) as file:
            file.execute(_TABLE)  # some die before they write anything
            for row in file.execute("select * from runs"):
                yield Run(*row)
