"""``toril.run``: workers as programs that mind their signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import toril
from tests.helpers import let_pass, wait_until
from tests.worker.programs import hold
from toril import Worker
from toril.errors import InvalidOptionError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_lets_running_jobs_finish(number, queue, start_program, inside):
    job = await queue.add("job")
    program = start_program(handler="briefly")
    await program.hear("holding")

    program.signal(number)
    assert await program.wait() == 0

    assert await inside.ids("completed") == [job.id]
    await program.hear("ended")
    assert "closed" in program.said


@pytest.mark.parametrize("handler", ["hold", "hold_in_thread"])
async def test_what_takes_longer_than_the_limit_is_handed_back(
    handler, queue, start_program, inside
):
    job = await queue.add("job")
    program = start_program(handler=handler, run={"timeout": 100}, patience_s=30)
    await program.hear("holding")

    program.signal(signal.SIGTERM)
    assert await program.wait() == 0

    assert await inside.ids("wait") == [job.id]
    assert (await inside.job(job.id)).get("atm", "0") == "0"


def is_pending(program, number: signal.Signals) -> bool:
    """Has the process not got it yet?  Two signals at once would be one."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    return any(
        int(line.split()[1], 16) >> (number - 1) & 1
        for line in status.splitlines()
        if line.startswith(("SigPnd", "ShdPnd"))
    )


async def test_a_second_signal_ends_at_once(queue, start_program, inside):
    job = await queue.add("job")
    program = start_program(handler="hold", run={"timeout": 60_000}, patience_s=30)
    await program.hear("holding")
    program.signal(signal.SIGTERM)
    # A process gets it before Python handles it, and until then a second one would be the same.
    await program.hear("closing")
    await let_pass(0.1, "the first signal lets the job go on")
    assert program.process.poll() is None

    program.signal(signal.SIGTERM)
    assert await program.wait(30) == 0

    assert await inside.ids("wait") == [job.id]


async def test_a_second_signal_ends_a_process_whose_loop_is_blocked(queue, start_program, inside):
    await queue.add("job")
    program = start_program(handler="stubborn", options={"lock_duration": 500})
    await program.hear("holding")
    program.signal(signal.SIGTERM)
    await wait_until(lambda: not is_pending(program, signal.SIGTERM))

    def ends() -> bool:
        """Signal again: one that comes before Python has handled the one before is the same."""
        if program.process.poll() is None:
            program.signal(signal.SIGTERM)
        return program.process.poll() is not None

    await wait_until(ends, every=0.3)

    assert await program.wait() == 128 + signal.SIGTERM


async def test_several_workers_in_one_process_on_uvloop(queue, start_program, inside):
    for n in range(3):
        await queue.add(f"{n}")
    program = start_program(handler="briefly", workers=3, run={"uvloop": True})
    for _ in range(3):
        await program.hear("holding")

    program.signal(signal.SIGTERM)

    assert await program.wait() == 0
    assert len(await inside.ids("completed")) == 3


async def test_a_worker_whose_server_never_answered_ends_at_a_signal(start_program):
    """With its default limit of 25 seconds."""
    program = start_program(handler="hold", url="redis://127.0.0.1:1")
    await program.hear("ready")

    program.signal(signal.SIGTERM)

    assert await program.wait(60) == 0


def test_run_needs_a_worker():
    with pytest.raises(InvalidOptionError, match="needs a worker"):
        toril.run()
    with pytest.raises(InvalidOptionError, match="timeout"):
        toril.run(Worker("q", hold), timeout="soon")
