"""``toril worker``: the program that runs jobs, until it is told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forked import Forked
from tests.helpers import wait_until_sync
from toril import NewJob
from toril.sync import Queue

MODULE = """
from toril import Router, Worker

router = Router()

@router.on("who")
async def who(job):
    return "{answer}"

def plain(job):
    return job.data["n"] * 2

def make(queue):
    return Worker(queue, router, prefix={prefix!r})
"""
WORKERS = "workers = [make('one'), make('two')]\nsingle = workers[0]\n"

Start = Callable[..., Forked]
COMMANDS = ("toril.cli.main", "toril.cli.worker")


@pytest.fixture
def write(tmp_path: Path, prefix: str) -> Callable[..., None]:
    """Writes the module ``shop`` whose handler gives this answer; it changes once, as a whole."""

    def write(answer: str, changed_at: int | None = None) -> None:
        text = MODULE.format(answer=answer, prefix=prefix) + WORKERS
        fresh = tmp_path / "fresh"
        fresh.write_text(text)
        if changed_at is not None:
            os.utime(fresh, (changed_at, changed_at))
        fresh.replace(tmp_path / "shop.py")

    write("first")
    return write


@pytest.fixture
def start(cli_env: dict[str, str], tmp_path: Path, write: object) -> Iterator[Start]:
    """Starts ``toril worker`` with these arguments; stopped after the test."""
    running: list[Forked] = []

    def start(*arguments: str) -> Forked:
        with (tmp_path / "log").open("a") as log:
            words = ("-m", "toril", "worker", *arguments)
            env = cli_env | {"PYTHONDONTWRITEBYTECODE": "1"}
            running.append(
                Forked(*words, cwd=tmp_path, env=env, stderr=log.fileno(), needs=COMMANDS)
            )
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@pytest.fixture
def queue_name() -> str:
    return "one"


def test_a_router_runs_the_jobs_of_a_queue_until_sigterm(start: Start, queue: Queue):
    job = queue.add("who")

    process = start("shop:router", "--queue", "one", "-c", "3", "--name", "anna")

    assert queue.wait_for(job.id, timeout=30_000) == "first"
    assert queue.get_job(job.id).processed_by == "anna"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_the_partitions_of_a_queue_are_found_on_the_server(start: Start, url: str, prefix: str):
    with Queue("spread", connection=url, prefix=prefix, partitions=4) as queue:
        jobs = queue.add_bulk([NewJob("who", job_id=f"j-{n}") for n in range(12)])
        process = start("shop:router", "--queue", "spread", "--burst")
        assert process.wait(60) == 0
        assert [queue.wait_for(job.id, timeout=30_000) for job in jobs] == ["first"] * 12


def test_functions_and_lists_of_workers_run_too(start: Start, queue: Queue, url: str, prefix: str):
    with Queue("two", connection=url, prefix=prefix) as two:
        jobs = [(queue, queue.add("who")), (two, two.add("who"))]
        start("shop:workers")
        assert [of.wait_for(job.id, timeout=30_000) for of, job in jobs] == ["first", "first"]
    with Queue("three", connection=url, prefix=prefix) as three:
        job = three.add("double", {"n": 21})
        start("shop:plain", "--queue", "three")
        assert three.wait_for(job.id, timeout=30_000) == 42


def test_options_of_a_worker_that_has_its_own_are_refused(
    start: Start, tmp_path: Path, url: str, prefix: str
):
    process = start("shop:single", "--concurrency", "5")

    assert process.wait(60) == 2
    assert "already has its own options" in (tmp_path / "log").read_text()


def test_with_reload_a_changed_file_starts_the_worker_anew(
    start: Start, queue: Queue, write: Callable[..., None]
):
    process = start("shop:router", "--queue", "one", "--reload")
    assert queue.wait_for(queue.add("who").id, timeout=30_000) == "first"

    write("second, after a change", changed_at=1)

    def answers_anew() -> bool:
        return queue.wait_for(queue.add("who").id, timeout=30_000) == "second, after a change"

    wait_until_sync(answers_anew, timeout=60, every=0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert wait_until_sync(lambda: queue.get_workers() == [])


def test_what_a_handler_logs_of_a_job_is_visible_and_forges_no_line():
    program = (
        "import logging; from toril.cli.printing import log_to_terminal;"
        "log_to_terminal(verbose=False);"
        "logging.getLogger('shop').warning('job %s', 'a\\n2026-01-01 INFO all is well\\x1b[2J')"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    first, second = done.stderr.splitlines()
    assert first.endswith("WARNING job a")
    assert second == "    2026-01-01 INFO all is well\\x1b[2J"
