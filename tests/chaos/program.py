"""A worker process of the storm: ``python -m tests.chaos.program '{"url": …, "ledger": …}'``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import toril
from tests.chaos.ledger import Ledger

LOCK_MS = 3000
SWEEP_MS = 500
QUEUE, LETTERS, UNDOING = "work", "work-dlq", "work:compensation"


def duration_s(label: str, work_s: float) -> float:
    """One in forty takes long, so that even a few kills find somebody at work; one in four hundred
    takes longer than its lock, which has to be renewed."""
    number = zlib.crc32(label.encode())
    if number % 400 == 1:
        return LOCK_MS / 1000 * 1.3
    return work_s * (100 if number % 40 == 0 else 1)


def note_starvation(directory: Path) -> None:
    """Write down when this process got no time for so long that its locks may have run out."""
    with (directory / f"{os.getpid()}.starved").open("a", buffering=1) as file:
        before = time.time()
        while True:
            time.sleep(0.1)
            now = time.time()
            if now - before > LOCK_MS / 3000:
                file.write(f"{before} {now}\n")
            before = now


def main(config: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.ERROR)
    directory = Path(config["ledger"])
    threading.Thread(target=note_starvation, args=(directory,), daemon=True).start()
    ledger = Ledger(Path(config["ledger"]) / f"{os.getpid()}.db", os.getpid())

    async def handle(job: Any) -> str:
        data = job.data
        undoes = data.get("compensationData") or {}
        label = data.get("n") or undoes.get("n") or f"undo-{data['originalJobId']}"
        row = ledger.begin(label, job.name, job.lane, job.fence)
        await asyncio.sleep(duration_s(label, config["work_s"]))
        ledger.end(row)
        if job.name == "fails" or (job.name == "flaky" and job.attempts_made == 0):
            raise ValueError("on purpose")
        return label

    options = {
        "connection": config["url"],
        "prefix": config["prefix"],
        "concurrency": config["concurrency"],
        "lock_duration": LOCK_MS,
        "stalled_interval": SWEEP_MS,
        "drain_delay": 1000,
        "max_stalled_count": 1000,
    }
    letters, undoing = LETTERS, UNDOING
    if config.get("partitions"):
        options["partitions"] = config["partitions"]
        letters, undoing = (f"{{{QUEUE}}}{name.removeprefix(QUEUE)}" for name in (letters, undoing))
    toril.run(
        toril.Worker(QUEUE, handle, dead_letter_queue=letters, **options),
        toril.Worker(undoing, handle, **options),
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
