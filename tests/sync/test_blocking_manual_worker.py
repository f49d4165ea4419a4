"""Taking jobs by hand in blocking code."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import redis

from tests.helpers import wait_until_sync
from toril import LockLostError, NewJob
from toril.sync import ManualWorker


@pytest.fixture
def taker(url, prefix):
    with ManualWorker("q", connection=url, prefix=prefix, dead_letter_queue="q-dlq") as taker:
        yield taker


def test_jobs_are_taken_completed_and_failed(queue, make_queue, taker):
    queue.add("good", {"n": 1})
    queue.add("bad")

    good = taker.get_next_job()
    good.progress(10)
    good.log("a row")
    good.complete({"n": good.data["n"] + 1})
    taker.get_next_job().fail(ValueError("broken"))

    assert taker.get_next_job(timeout=0) is None
    assert queue.wait_for(good.id, timeout=60_000) == {"n": 2}
    assert make_queue("q-dlq").get_dead_letter_count() == 1


def test_a_thread_renews_the_lock_while_the_caller_blocks(queue, taker, url):
    taker._interval_s = 0.05
    queue.add("x")
    job = taker.get_next_job()
    lock = f"{queue.keys.job(job.id)}:lock"

    with redis.Redis.from_url(url) as client:
        client.pexpire(lock, 20_000)
        wait_until_sync(lambda: client.pttl(lock) > 20_000)
        client.delete(lock)
        wait_until_sync(lambda: job.is_lost)

    with pytest.raises(LockLostError):
        job.complete()


def test_threads_share_one_and_closing_ends_their_waits(queue, taker):
    added = queue.add_bulk([NewJob(f"{n}") for n in range(100)])
    ran = Counter()

    def work():
        while job := taker.get_next_job():
            ran[job.id] += 1
            job.complete()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until_sync(lambda: queue.get_completed_count() == 100)
    taker.close()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    assert ran == Counter(job.id for job in added)
    assert queue.get_completed_count() == 100
