"""``executor="process"``: handlers that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.helpers import name_of, wait_until
from tests.worker import jobs
from tests.worker.conftest import Inside
from toril import FlowJob, FlowProducer, Router, Worker
from toril.errors import InvalidOptionError


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")")[-1].split()[0] != "Z"


async def pid_of(inside: Inside, job_id: str) -> int:
    """The process that runs a job, which the job has logged."""
    rows = await wait_until(lambda: inside.logs(job_id), 60)
    return int(rows[-1].removeprefix("pid "))


async def returned(inside: Inside, job_id: str):
    return json.loads((await inside.job(job_id))["returnvalue"])


async def test_a_job_runs_in_a_process_that_is_used_again(queue, start_worker, inside):
    first, second = await queue.add("where", {"n": 1}), await queue.add("where", {"n": 2})
    worker = await start_worker(jobs.router, executor="process")
    await inside.until_finished(2, 60)

    one, two = await returned(inside, first.id), await returned(inside, second.id)
    assert one["pid"] == two["pid"] != os.getpid()
    assert (one["parent"], one["fence"], one["data"]) == (os.getpid(), 1, {"n": 1})
    await worker.close()
    assert not is_alive(one["pid"])


@pytest.mark.parametrize("handler", [jobs.plain_function, "tests.worker.jobs:where"], ids=name_of)
async def test_functions_and_names_do_as_well(handler, queue, start_worker, inside):
    job = await queue.add("any name")
    await start_worker(handler, executor="process")
    await inside.until_finished(1, 60)

    assert (await returned(inside, job.id))["pid"] != os.getpid()


async def test_a_process_writes_through_its_worker(queue, start_worker, inside):
    plain, on_loop = await queue.add("write"), await queue.add("write async")
    worker = await start_worker(jobs.router, executor="process")
    seen = []
    worker.on("progress", lambda job, value: seen.append(value))
    await inside.until_finished(2, 60)

    assert await returned(inside, plain.id) == 2
    assert await inside.logs(plain.id) == ["one", "two"]
    assert (await inside.job(plain.id))["data"] == '{"n":2}'
    assert sorted(await returned(inside, on_loop.id)) == [1, 2, 3]
    assert (await inside.job(on_loop.id))["data"] == '{"n":3}'
    assert seen == [{"half": True}, 50]


@pytest.mark.parametrize(
    ("data", "reason", "attempts"),
    [
        ("value", "ValueError: no", "2"),
        ("travel", "CannotTravel: stuck 7", "2"),
        ("unrecoverable", "hopeless", "1"),
        ("exit", "RuntimeError: the handler called sys.exit(3)", "2"),
    ],
)
async def test_errors_travel_with_their_traces(data, reason, attempts, queue, start_worker, inside):
    job = await queue.add("raise", data, attempts=2)
    await start_worker(jobs.router, executor="process")
    await inside.until_finished(1, 60)

    stored = await inside.job(job.id)
    assert (stored["failedReason"], stored["atm"]) == (reason, attempts)
    traces = json.loads(stored["stacktrace"])
    assert len(traces) == int(attempts)
    assert "tests/worker/jobs.py" in traces[-1] or data == "exit"


@pytest.mark.parametrize(
    ("data", "name"), [("interrupt", "KeyboardInterrupt"), ("close", "GeneratorExit")]
)
async def test_a_process_that_raises_what_ends_loops_fails_that_job_alone(
    data, name, queue, start_worker, inside
):
    """Regression: it was raised in the worker, and ended its loop or held its slot for ever."""
    bad, good = await queue.add("raise", data), await queue.add("where")
    await start_worker(jobs.router, executor="process")
    await inside.until_finished(2, 60)

    reason = f"RuntimeError: the handler raised {name}"
    assert (await inside.job(bad.id))["failedReason"] == reason
    assert (await returned(inside, good.id))["fence"] == 1


async def test_signals_travel_too(queue, start_worker, inside):
    job = await queue.add("raise", "delayed")
    await start_worker(jobs.router, executor="process")
    await inside.until_finished(1, 60)

    stored = await inside.job(job.id)
    assert (stored["ats"], stored["atm"], stored["returnvalue"]) == ("2", "1", "null")


@pytest.mark.parametrize("value", [2**70, "half a pair: \ud83d", [1, None]], ids=ascii)
@pytest.mark.parametrize("name", ["collect", "collect async"])
async def test_whatever_a_child_returned_reaches_its_parent_in_a_process(
    name, value, queue, start_worker, inside, url, prefix
):
    """Regression: what MessagePack cannot carry failed each attempt and killed the process."""
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        tree = FlowJob(name, queue_name="q", children=[FlowJob("child", queue_name="children")])
        parent = (await flow.add(tree)).job
    async with Worker("children", lambda job: value, connection=url, prefix=prefix):
        await start_worker(jobs.router, executor="process")
        await inside.until_finished(1)

    assert await inside.ids("completed") == [parent.id]
    assert await returned(inside, parent.id) == [value, value]


async def test_what_is_no_json_and_unknown_names_fail_that_job(queue, start_worker, inside):
    bad, unknown = await queue.add("not json"), await queue.add("nobody", attempts=3)
    await start_worker(jobs.router, executor="process")
    await inside.until_finished(2, 60)

    assert f"the return value of job {bad.id!r}" in (await inside.job(bad.id))["failedReason"]
    stored = await inside.job(unknown.id)
    assert "no handler is registered for jobs named 'nobody'" in stored["failedReason"]
    assert stored["atm"] == "1"


ENDS = [
    ("exit", "ended with exit code 9"),
    ("segfault", "was killed by SIGSEGV"),
    ("killed", "was killed by SIGKILL (out of memory?)"),
]
if hasattr(signal, "SIGRTMIN"):
    # Of the real-time signals only the first and the last have a name.
    ENDS.append(("unnamed", f"was killed by signal {signal.SIGRTMIN + 1}"))


@pytest.mark.parametrize(("data", "reason"), ENDS)
async def test_a_process_that_dies_fails_that_attempt_and_is_replaced(
    data, reason, queue, start_worker, inside
):
    job = await queue.add("die", data, attempts=2)
    after = await queue.add("where")
    await start_worker(jobs.router, executor="process")
    await inside.until_finished(2, 60)

    stored = await inside.job(job.id)
    assert stored["failedReason"] == f"the process that ran job {job.id!r} ('die') {reason}"
    assert (stored["atm"], stored.get("stc")) == ("2", None)
    assert await inside.ids("completed") == [after.id]


async def test_a_timeout_kills_for_real(queue, start_worker, inside):
    job = await queue.add("hold", timeout=6000)
    await start_worker(jobs.router, executor="process")
    pid = await pid_of(inside, job.id)
    assert is_alive(pid)
    await inside.until_finished(1, 60)

    assert "ran longer than its timeout of 6000 ms" in (await inside.job(job.id))["failedReason"]
    assert not is_alive(pid)


async def test_the_start_of_a_process_does_not_count_towards_a_timeout(
    queue, start_worker, inside, tmp_path, monkeypatch
):
    """The clock of a job starts with its handler: imports may take longer than it may."""
    (tmp_path / "slow_module.py").write_text(
        "import time\n"
        "from toril.worker import child\n"
        "if child._is_child:\n"
        "    time.sleep(5.5)\n"
        "def handler(job): time.sleep(job.data)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = await queue.add("quick", 0, timeout=5000)
    slow = await queue.add("slow", 30, timeout=1000)
    await start_worker("slow_module:handler", executor="process", concurrency=2)
    await inside.until_finished(2, 60)

    assert await inside.ids("completed") == [quick.id]
    stored = await inside.job(slow.id)
    assert "ran longer than its timeout of 1000 ms" in stored["failedReason"]
    assert int(stored["finishedOn"]) - int(stored["processedOn"]) >= 6500


async def test_a_process_that_does_not_come_up_fails_the_attempt(
    queue, start_worker, inside, tmp_path, monkeypatch
):
    (tmp_path / "stuck_module.py").write_text(
        "import time\n"
        "from toril.worker import child\n"
        "if child._is_child:\n"
        "    time.sleep(600)\n"
        "def handler(job): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("toril.worker.processes._START_TIMEOUT_S", 0.5)
    job = await queue.add("job", timeout=100)
    await start_worker("stuck_module:handler", executor="process")
    await inside.until_finished(1, 60)

    reason = (await inside.job(job.id))["failedReason"]
    assert "did not import 'stuck_module:handler' within" in reason


async def test_a_cancelled_job_is_killed(queue, start_worker, inside):
    job = await queue.add("hold", attempts=5)
    await start_worker(jobs.router, executor="process")
    pid = await pid_of(inside, job.id)

    await queue.cancel(job.id)
    await inside.until_finished(1)

    assert (await inside.job(job.id))["failedReason"] == "cancelled"
    assert not is_alive(pid)


async def test_a_job_whose_lock_is_lost_is_killed(queue, start_worker, inside):
    job = await queue.add("hold")
    worker = await start_worker(jobs.router, executor="process", lock_duration=6000)
    lost = asyncio.Event()
    worker.on("lost", lambda job, error: lost.set())
    pid = await pid_of(inside, job.id)

    await inside.client.set(f"{inside.base}:{job.id}:lock", "another worker's", px=60_000)
    await asyncio.wait_for(lost.wait(), 60)

    await wait_until(lambda: not is_alive(pid))
    assert (await inside.job(job.id)).get("atm", "0") == "0"
    await inside.client.delete(f"{inside.base}:{job.id}:lock")


async def test_close_kills_what_is_not_done_in_time(queue, start_worker, inside):
    job = await queue.add("hold")
    worker = await start_worker(jobs.router, executor="process")
    pid = await pid_of(inside, job.id)

    await worker.close(timeout=50)

    await wait_until(lambda: not is_alive(pid))  # a killed process takes its time to die
    assert await inside.ids("wait") == [job.id]
    assert (await inside.job(job.id)).get("atm", "0") == "0"


async def test_concurrency_is_kept_with_that_many_processes(queue, start_worker, inside, tmp_path):
    """Two run at once, for the first ends only when a second is there; never three."""
    for _ in range(4):
        await queue.add("meet", str(tmp_path))
    await start_worker(jobs.router, executor="process", concurrency=2)
    await inside.until_finished(4, 60)

    completed = await inside.ids("completed")
    assert len(completed) == 4
    spans = [await returned(inside, job_id) for job_id in completed]
    for began, _ in spans:
        assert sum(start <= began < end for start, end in spans) <= 2


PROGRAM = """
import toril
from tests.worker import jobs

def handler(job):
    return jobs.hold(job)

if {guard}:
    worker = toril.Worker("q", handler, connection={url!r}, prefix={prefix!r}, executor="process",
                          lock_duration=5000)
    toril.run(worker)
"""


def write_program(tmp_path, url, prefix, guard: str):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(url=url, prefix=prefix, guard=guard))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(script)], env=environment)


async def test_processes_do_not_outlive_a_parent_that_is_killed(
    queue, inside, tmp_path, url, prefix
):
    """Also: a handler of the script itself is found again in the child."""
    job = await queue.add("job")
    program = write_program(tmp_path, url, prefix, '__name__ == "__main__"')
    try:
        pid = await pid_of(inside, job.id)
        assert is_alive(pid)
        assert pid != program.pid
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait(60)

    await wait_until(lambda: not is_alive(pid))
    await wait_until(lambda: _is_gone(inside, job.id))


async def _is_gone(inside: Inside, job_id: str) -> bool:
    return await inside.lock(job_id) is None


async def test_a_script_without_a_guard_is_told_so(queue, inside, tmp_path, url, prefix):
    job = await queue.add("job")
    program = write_program(tmp_path, url, prefix, "True")
    try:
        await inside.until_finished(1, 60)
    finally:
        program.kill()
        program.wait(60)

    assert 'if __name__ == "__main__"' in (await inside.job(job.id))["failedReason"]


def test_a_handler_that_cannot_be_found_again_is_refused():
    def local(job):
        return None

    for handler in (local, lambda job: None, Router(), "no.such.module:handler", "tests.helpers:x"):
        with pytest.raises(InvalidOptionError, match="cannot find"):
            Worker("q", handler, executor="process")
    with pytest.raises(InvalidOptionError, match="executor='greenlet' is not known"):
        Worker("q", jobs.hold, executor="greenlet")
    with pytest.raises(InvalidOptionError, match="neither a function nor a Router"):
        Worker("q", "tests.worker.jobs:where")


async def test_what_a_child_cannot_import_fails_the_attempt(queue, start_worker, inside, tmp_path):
    module = tmp_path / "fleeting_module.py"
    module.write_text("def handler(job): return 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        job = await queue.add("job")
        worker = Worker("x", "fleeting_module:handler", executor="process")
        await worker.close()
        module.write_text("raise ValueError('broken since')\n")
        await start_worker("fleeting_module:handler", executor="process")
        await inside.until_finished(1, 60)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("fleeting_module", None)

    reason = (await inside.job(job.id))["failedReason"]
    assert reason.startswith("a process for handlers cannot import 'fleeting_module:handler'")
    assert "ValueError: broken since" in reason
