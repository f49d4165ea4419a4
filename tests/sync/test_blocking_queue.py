"""The blocking queue: the same names, from plain code, threads and forked processes."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

import toril
from tests.helpers import wait_until_sync
from toril import NewJob, sync
from toril.client.listening import LINGER_S
from toril.errors import JobFailedError, JobRemovedError, WaitTimeoutError


@pytest.mark.parametrize("name", ["Queue", "QueueEvents"])
def test_both_clients_have_the_same_names(name):
    def surface(cls: type) -> dict[str, list[str]]:
        return {
            member: list(inspect.signature(value).parameters)
            for member, value in inspect.getmembers(cls, callable)
            if not member.startswith("_")
        }

    assert surface(getattr(toril, name)) == surface(getattr(sync, name))


def test_adding_and_reading(queue):
    job = queue.add("x", {"n": 1}, delay=60_000)
    many = queue.add_bulk([NewJob("x", {"n": n}) for n in range(450)])

    assert queue.get_job(job.id).data == {"n": 1}
    assert queue.get_state(job.id) == "delayed"
    assert [found.id for found in queue.get_waiting()] == [added.id for added in many]
    assert queue.get_job_counts("waiting", "delayed") == {"waiting": 450, "delayed": 1}
    assert queue.add("x", job_id="a").duplicated is False
    assert queue.add("x", job_id="a").duplicated is True


def test_a_queue_is_a_context(url, prefix):
    with sync.Queue("q", connection=url, prefix=prefix) as queue:
        queue.add("x")

    with pytest.raises(ConnectionError, match="closed"):
        queue.add("x")


def test_a_client_of_redis_py_will_do(url, prefix):
    client = redis.Redis.from_url(url)
    with sync.Queue("q", connection=client, prefix=prefix) as queue:
        job = queue.add("x")

        assert queue.get_state(job.id) == "waiting"
    client.close()


def test_waiting_for_a_result(queue, working):
    good, bad = queue.add("good", {"n": 1, "wait": 0.1}), queue.add("bad")
    gone = queue.add("good", {"n": 2, "wait": 0.1}, remove_on_complete=True)

    assert queue.wait_for(good.id, timeout=60_000)["n"] == 1
    assert queue.wait_for(gone.id, timeout=60_000)["n"] == 2
    with pytest.raises(JobFailedError, match="it broke"):
        queue.wait_for(bad.id, timeout=60_000)
    with pytest.raises(JobRemovedError):
        queue.wait_for("nobody", timeout=60_000)
    assert queue.wait_until_empty(timeout=60_000) is True


def test_waiting_no_longer_than_asked(queue, monkeypatch):
    monkeypatch.setattr("toril.sync.waiting.LOOK_AGAIN_S", 50)
    job = queue.add("x")
    start = time.monotonic()

    with pytest.raises(WaitTimeoutError):
        queue.wait_for(job.id, timeout=60)

    assert queue.wait_until_empty(timeout=60) is False
    assert time.monotonic() - start < 50


def test_threads_share_a_queue_and_one_reader(queue, working, url, prefix):
    def round_trip(number: int) -> int:
        job = queue.add("good", {"n": number, "wait": 0.02})
        result: int = queue.wait_for(job.id, timeout=60_000)["n"]
        return result

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(round_trip, range(200)))

    assert results == list(range(200))
    with redis.Redis.from_url(url, decode_responses=True) as client:
        names = [row["name"] for row in client.client_list()]
    assert names.count(f"{prefix}:cQ==:qe") == 1
    assert threading.active_count() < 16


def test_a_closed_queue_leaves_no_thread(make_queue):
    queue = make_queue()
    before = set(threading.enumerate())
    job = queue.add("x")
    with pytest.raises(WaitTimeoutError):
        queue.wait_for(job.id, timeout=50)

    start = time.monotonic()
    queue.close()

    assert set(threading.enumerate()) <= before, "those of others may end meanwhile"
    assert time.monotonic() - start < LINGER_S


def test_a_forked_child_has_connections_of_its_own(queue, working):
    first = queue.add("good", {"n": 0, "wait": 0.05})
    assert queue.wait_for(first.id, timeout=60_000)["n"] == 0

    children = [os.fork() or _in_child(queue, number) for number in range(1, 4)]
    own = [queue.add("good", {"n": number}) for number in range(100, 150)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]

    assert codes == [0, 0, 0]
    assert [queue.wait_for(job.id, timeout=60_000)["n"] for job in own] == list(range(100, 150))
    done = queue.get_completed()
    assert len({job.id for job in done}) == len(done) == 1 + 50 + 3 * 50


def _in_child(queue: sync.Queue, number: int) -> int:
    """Add and wait in a child, whose parent used the queue before; never returns."""
    code = 1
    try:
        jobs = [queue.add("good", {"n": number * 1000 + n, "wait": 0.01}) for n in range(50)]
        for n, job in enumerate(jobs):
            assert queue.wait_for(job.id, timeout=60_000)["n"] == number * 1000 + n
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def test_forking_while_another_thread_uses_the_queue(queue):
    """A lock that another thread holds at that moment is not waited for in the child."""
    stop = threading.Event()

    def add_and_add() -> None:
        while not stop.is_set():
            queue.add("noise")

    threads = [threading.Thread(target=add_and_add) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(10):
            child = context.Process(target=queue.add, args=("from a child",))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len([job for job in queue.get_waiting() if job.name == "from a child"]) == 10


def test_a_lost_connection_is_replaced(queue, url):
    queue.add("x")
    with redis.Redis.from_url(url) as client:
        client.client_kill_filter(_type="normal", skipme=True)

    queue.add("x")

    assert queue.get_waiting_count() == 2


def test_listening(queue, url, prefix):
    called: list[str] = []
    with sync.QueueEvents("q", connection=url, prefix=prefix) as events:
        events.on("added", lambda event: called.append(event.job_id))
        job = queue.add("x")

        heard = [next(events), next(events)]
        wait_until_sync(lambda: called == [job.id])

    assert [event.name for event in heard] == ["added", "waiting"]
    assert {event.job_id for event in heard} == {job.id}


def test_closing_ends_the_iteration_of_another_thread(queue, url, prefix):
    events = sync.QueueEvents("q", connection=url, prefix=prefix)
    heard: list[str] = []

    def iterate() -> None:
        for event in events:
            heard.append(event.name)  # noqa: PERF401 - watched while it grows

    thread = threading.Thread(target=iterate)
    with events:
        thread.start()
        queue.add("x")
        wait_until_sync(lambda: len(heard) == 2)
    thread.join(60)

    assert not thread.is_alive()
    assert heard == ["added", "waiting"]


def test_events_from_an_id_on(queue, url, prefix):
    queue.add("x")
    with sync.QueueEvents("q", connection=url, prefix=prefix, last_event_id="0") as events:
        first = next(events)
    with sync.QueueEvents("q", connection=url, prefix=prefix, last_event_id=first.id) as events:
        assert next(events).name == "waiting"
