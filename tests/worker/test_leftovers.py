"""``executor="process"``: a process that runs one job after another keeps them apart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tests.helpers import wait_until, wait_until_sync
from tests.worker import leftovers
from tests.worker.test_processes import is_alive
from toril.worker import child


async def returned(inside, job_id: str):
    return json.loads((await inside.job(job_id))["returnvalue"])


async def test_a_task_that_outlives_its_job_cannot_write_to_the_next_one(
    queue, start_worker, inside
):
    first = await queue.add("leave a task", {"n": 1})
    second = await queue.add("run after a task", {"n": 2})
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(2)

    pid, error, text = await returned(inside, second.id)
    assert pid == await returned(inside, first.id)
    assert (error, text) == (
        "LockLostError",
        f"job {first.id!r} has ended; this run can no longer write to it",
    )
    assert json.loads((await inside.job(first.id))["data"]) == {"n": 1}
    assert json.loads((await inside.job(second.id))["data"]) == {"n": 2}


async def test_a_thread_that_outlives_its_job_cannot_write_to_the_next_one(
    queue, start_worker, inside
):
    first = await queue.add("leave a thread", {"n": 1})
    second = await queue.add("run after a thread", {"n": 2})
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(2)

    pid, *errors = await returned(inside, second.id)
    assert pid == await returned(inside, first.id)
    assert errors == ["LockLostError"] * 3
    assert await inside.logs(second.id) == []
    stored = await inside.job(second.id)
    assert (json.loads(stored["data"]), stored.get("progress", "0")) == ({"n": 2}, "0")


async def test_a_handler_that_stops_waiting_for_an_answer_leaves_a_process_that_listens(
    queue, start_worker, inside
):
    jobs = [await queue.add("stop waiting") for _ in range(3)]
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(3)

    pids = [await returned(inside, job.id) for job in jobs]
    assert len(set(pids)) == 1


async def test_a_job_inherits_no_context_variable_of_the_one_before(queue, start_worker, inside):
    """Regression: a tenant that one handler had set was that of the next job."""
    names = ["visit", "visit", "visit async", "visit async", "visit"]
    jobs = [await queue.add(name) for name in names]
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(5)

    pids, found = zip(*[await returned(inside, job.id) for job in jobs], strict=True)
    assert len(set(pids)) == 1
    assert found == ("nobody",) * 5


async def test_the_fence_of_a_lane_grows_in_processes_too(queue, start_worker, inside):
    added = [await queue.add("fence", lane="L") for _ in range(3)]
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(3)

    assert [await returned(inside, job.id) for job in added] == [1, 2, 3]


async def test_a_process_that_died_while_it_was_idle_fails_no_job(queue, start_worker, inside):
    before = await queue.add("pid")
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(1)
    pid = await returned(inside, before.id)

    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not is_alive(pid))
    after = await queue.add("pid")
    await inside.until_finished(2)

    assert await returned(inside, after.id) != pid


async def test_a_process_that_dies_before_the_handler_begins_fails_no_job(
    queue, start_worker, inside
):
    """It is being killed when it is given the job, and nobody can see that yet."""
    before = await queue.add("pid")
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(1)
    pid = await returned(inside, before.id)

    os.kill(pid, signal.SIGSTOP)
    after = await queue.add("pid")
    await inside.until_active()
    os.kill(pid, signal.SIGKILL)
    await inside.until_finished(2)

    assert await returned(inside, after.id) != pid


async def test_programs_and_forks_of_a_handler_obey_signals(queue, start_worker, inside):
    program, fork = await queue.add("stop a program"), await queue.add("stop a fork")
    deaf = await queue.add("ignore")
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(3)

    assert await returned(inside, program.id) == [-signal.SIGTERM, -signal.SIGINT]
    assert await returned(inside, fork.id) == -signal.SIGTERM
    assert await returned(inside, deaf.id) == "still here"


@pytest.mark.parametrize("name", ["leave a fork", "leave a program"])
async def test_a_process_that_dies_is_missed_although_its_offspring_lives(
    name, queue, start_worker, inside
):
    job = await queue.add(name, {"seconds": 45})
    await start_worker(leftovers.router, executor="process")
    await inside.until_finished(1, 30)

    assert "was killed by SIGKILL" in (await inside.job(job.id))["failedReason"]


PROGRAM = """
import toril
from tests.worker import leftovers

if __name__ == "__main__":
    toril.run(toril.Worker("q", leftovers.router, connection={url!r}, prefix={prefix!r},
                           executor="process"))
"""


@pytest.mark.parametrize("what", ["thread", "task"])
async def test_what_a_handler_left_keeps_no_process_whose_parent_was_killed(
    what, queue, inside, tmp_path, url, prefix
):
    """Regression: it stayed for ever, with all its memory."""
    job = await queue.add(f"leave a {what} that stays")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(url=url, prefix=prefix))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen([sys.executable, str(script)], env=environment)
    try:
        await inside.until_finished(1)
        pid = await returned(inside, job.id)
        assert is_alive(pid)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait(60)

    try:
        await wait_until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_process_ends_with_its_parent_though_its_job_came_while_the_one_before_was_reported(
    monkeypatch,
):
    """The parent may answer an outcome with the next job while the child is still sending it."""
    ours, theirs = socket.socketpair()
    has_begun, has_exited = threading.Event(), threading.Event()
    exits = []

    class SlowPipe(child.Pipe):
        def send(self, message):
            super().send(message)
            assert has_next.wait(60)

    def handle(job):
        if job.id == "2":
            has_begun.set()
            exits.append(has_exited.wait(60))

    def job_of(number):
        return {
            "kind": "job",
            "prefix": "p",
            "queue": "q",
            "id": number,
            "name": "x",
            "token": number,
            "fields": {},
        }

    has_next = threading.Event()
    monkeypatch.setattr(child.os, "_exit", lambda code: has_exited.set())
    with asyncio.Runner() as runner:
        running = child.Child(SlowPipe(theirs), handle, runner)
        main = threading.Thread(target=running.run, daemon=True)
        main.start()
        parent = child.Pipe(ours)
        parent.send(job_of("1"))
        parent.receive()
        parent.send(job_of("2"))
        wait_until_sync(lambda: not running._jobs.empty())
        has_next.set()
        assert has_begun.wait(60)
        ours.close()
        main.join(60)

    theirs.close()
    assert exits == [True]
