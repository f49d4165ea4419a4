"""A list of jobs as a file: JSON or CSV, masked like the pages, and bounded."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from toril.dashboard.redacting import Redactor
from toril.protocol.dead_letter import without_metadata
from toril.protocol.job import Job
from toril.protocol.visible_text import visible

MOST_JOBS = 10_000
MOST_SEARCHED = 100_000
"""So many jobs are looked at for those that pass a filter."""
MOST_BYTES = 64 * 1024 * 1024
PER_READ = 25
"""Jobs at a time: their payloads may be large."""
FORMATS = {"json": "application/json", "csv": "text/csv"}

COLUMNS = (
    "id", "name", "queue", "timestamp", "processed_on", "finished_on", "attempts_made",
    "failed_reason", "worker", "lane", "group", "data", "return_value",
)  # fmt: skip

Read = Callable[[int, int], Awaitable[list[Job]]]
"""The jobs from one place to another, both included."""


async def rows(
    read: Read, admits: Callable[[Job], bool], redacted: Redactor
) -> AsyncIterator[dict[str, Any]]:
    """The jobs one by one, as they may be shown, until there are no more or they are many."""
    count = 0
    for start in range(0, MOST_SEARCHED, PER_READ):
        jobs = await read(start, start + PER_READ - 1)
        for job in filter(admits, jobs):
            yield _row(job, redacted)
            count += 1
            if count == MOST_JOBS:
                return
        if len(jobs) < PER_READ:
            return


async def written(form: str, found: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The file, a part at a time; it ends early, in order, when it is very large."""
    size, is_first = 0, True
    write = _json_row if form == "json" else _csv_row
    yield b"[" if form == "json" else _csv_row(dict.fromkeys(COLUMNS), is_head=True)
    async for row in found:
        text = write(row)
        size += len(text)
        if size > MOST_BYTES:
            break
        yield text if is_first or form == "csv" else b",\n" + text
        is_first = False
    if form == "json":
        yield b"]\n"


def file_name(queue: str, what: str, form: str) -> str:
    """A name that every system takes, whatever the queue is called."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{queue}-{what}").strip(".-") or "jobs"
    return f"{plain[:100]}.{form}"


def _row(job: Job, redacted: Redactor) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "queue": job.queue_name,
        "timestamp": job.timestamp,
        "processed_on": job.processed_on,
        "finished_on": job.finished_on,
        "attempts_made": job.attempts_made,
        "failed_reason": job.failed_reason or _reason_of_letter(job),
        "worker": job.processed_by,
        "lane": job.lane,
        "group": job.group_id,
        "data": redacted(data_of(job, redacted)),
        "return_value": redacted(_quietly(lambda: job.return_value)),
    }


def data_of(job: Job, redacted: Redactor) -> Any:
    """The payload, or its text where another program wrote no JSON; not masked yet."""
    try:
        return without_metadata(job.data)
    except (ValueError, RecursionError):
        return redacted.unreadable(job.data_text.decode("utf-8", "replace"))


def _reason_of_letter(job: Job) -> str | None:
    letter = _quietly(lambda: job.dead_letter)
    return None if letter is None else str(letter.failed_reason)


def _quietly(read: Callable[[], Any]) -> Any:
    """What another program wrote into a job may be no JSON."""
    try:
        return read()
    except (ValueError, RecursionError):
        return None


def _json_row(row: dict[str, Any]) -> bytes:
    return _as_json(row).encode("utf-8", "replace")


def _csv_row(row: dict[str, Any], *, is_head: bool = False) -> bytes:
    line = io.StringIO()
    cells = COLUMNS if is_head else [_cell(row[name]) for name in COLUMNS]
    csv.writer(line).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> str:
    """One cell; what a spreadsheet would take for a formula is text."""
    if value is None or isinstance(value, int):
        return "" if value is None else str(value)
    text = visible(value if isinstance(value, str) else _as_json(value))
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return '"(cannot be written)"'
