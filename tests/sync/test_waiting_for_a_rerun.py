"""The blocking queue waits for the run that is there, not for one that ended before."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.helpers import wait_until_sync
from toril.sync.event_cursor import EventCursor
from toril.sync.listening import Waiter


def test_the_result_of_a_job_that_was_added_again_is_its_own(queue, working, monkeypatch):
    """The reader runs for somebody else, and comes late to the end of the first run."""
    may_read = threading.Event()
    sleepers: set[str | None] = set()
    read, wait = EventCursor.read, Waiter.wait

    def read_late(cursor: EventCursor) -> Any:
        page = read(cursor)
        may_read.wait(60)
        return page

    def note(waiter: Waiter, timeout_s: float) -> Any:
        sleepers.add(waiter.job_id)
        return wait(waiter, timeout_s)

    monkeypatch.setattr(EventCursor, "read", read_late)
    monkeypatch.setattr(Waiter, "wait", note)
    other = queue.add("other", delay=3_600_000)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(queue.wait_for, other, 60_000)
        wait_until_sync(lambda: other.id in sleepers)
        queue.add("x", {"run": 1}, job_id="report", remove_on_complete=True)
        wait_until_sync(lambda: queue.get_state("report") is None)
        queue.pause()
        queue.add("x", {"run": 2}, job_id="report")
        result = pool.submit(queue.wait_for, "report", 60_000)
        wait_until_sync(lambda: "report" in sleepers)

        may_read.set()
        queue.resume()

        assert result.result(60) == {"run": 2}
        queue.promote(other.id)
        waiting.result(60)
