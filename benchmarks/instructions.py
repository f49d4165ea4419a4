"""What groups cost the server, counted in instructions: the same on a busy machine.

    python benchmarks/instructions.py                         groups of three, and plain jobs
    python benchmarks/instructions.py --source ../other/src   with the Toril of another tree

The Valkey of the wheel runs under callgrind, and what its scripts execute is counted, with the
commands that they call.  A worker that runs one job at a time takes everything that was added.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from servers import free_port
from toril import Compensation, FlowProducer, GroupJob, NewJob, Queue, Worker
from toril.client.embedded import server_binary
from toril.worker import group_keeper

NAMES = ("a", "b", "c")
OPEN = "fifty open groups"
BESIDE = "three jobs beside groups"
SCENARIOS = ("three plain jobs", BESIDE, "a group of three", "a staged group of three")
_SCRIPTS = re.compile(r"^\s*([\d,]+) .*:(?:fcall|evalSha|eval)Command(?:'\d+)? \[", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=60)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--only", choices=SCENARIOS, action="append")
    parser.add_argument("--work", nargs=2, metavar=("SCENARIO", "URL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        asyncio.run(_work(*arguments.work, arguments.groups))
        return
    for scenario in arguments.only or SCENARIOS:
        count = _count(scenario, arguments.groups, arguments.source.resolve())
        print(f"{scenario:<26} {count / arguments.groups / 1000:8,.0f} thousand instructions")


def _count(scenario: str, groups: int, source: Path) -> int:
    """The instructions of all scripts that the server ran for this."""
    with (
        tempfile.TemporaryDirectory(prefix="toril-count-") as directory,
        _server(directory) as (
            process,
            url,
        ),
    ):
        _run("warm up", url, 2, source)
        if scenario == BESIDE:
            _run(OPEN, url, 50, source)
        _control("-z", process)
        _run(scenario, url, groups, source)
        _control("-d", process)
        (written,) = Path(directory).glob("counted.*")
        told = subprocess.run(
            ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(written)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return sum(int(found.replace(",", "")) for found in _SCRIPTS.findall(told))


@contextmanager
def _server(directory: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    process = subprocess.Popen(
        [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/counted"),
            *(str(server_binary()), "--port", str(port), "--save", "", "--dir", directory),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port) as client:
            for _ in range(600):
                with suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.1)
        yield process, f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _control(what: str, process: subprocess.Popen[bytes]) -> None:
    subprocess.run(["callgrind_control", what, str(process.pid)], check=True, capture_output=True)


def _run(scenario: str, url: str, groups: int, source: Path) -> None:
    program = [sys.executable, __file__, "--groups", str(groups), "--work", scenario, url]
    subprocess.run(program, env={**os.environ, "PYTHONPATH": str(source)}, check=True)


async def _work(scenario: str, url: str, groups: int) -> None:
    """Add so many groups, or three jobs for each, and run them one by one."""
    for name in vars(group_keeper):
        if name.endswith("_S"):  # a server under callgrind is slow, and this goes by time
            setattr(group_keeper, name, 3600.0)
    expected, done = 3 * groups, 0
    over = asyncio.Event()

    async def handle(job: object) -> int:
        nonlocal done
        done += 1
        if done == expected:
            over.set()
        return 1

    async with FlowProducer(connection=url) as flow, Queue("q", connection=url) as queue:
        if scenario in ("three plain jobs", BESIDE):
            await queue.add_bulk([NewJob("a", {"n": 1})] * expected)
        else:
            for _ in range(groups):
                await flow.add_group("order", _members(scenario), _undo(), queue_name="q")
        if scenario == OPEN:
            return
        async with Worker("q", handle, connection=url, concurrency=1):
            await over.wait()


def _members(scenario: str) -> list[GroupJob]:
    if scenario == "a staged group of three":
        before: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("b",)}
        return [GroupJob(name, {"n": 1}, queue_name="q", after=before[name]) for name in NAMES]
    where = "elsewhere" if scenario == OPEN else "q"
    return [GroupJob(name, {"n": 1}, queue_name=where) for name in NAMES]


def _undo() -> dict[str, Compensation]:
    return {name: Compensation(f"undo-{name}", {"n": 1}) for name in NAMES}


if __name__ == "__main__":
    main()
