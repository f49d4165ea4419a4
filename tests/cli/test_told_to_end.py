"""Parents of processes that are told to end in the worst moment: each child has to hear of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forked import Forked
from tests.helpers import wait_until_sync
from toril.cli import reloading

PARENT = """
import os, signal, sys, time
from pathlib import Path
from toril.cli.lifeline import Lifeline
from toril.cli.processes import run_many
from toril.cli.reloading import run_and_reload

FATAL = int(os.environ["FATAL"])
os.environ["PARENT"] = str(os.getpid())
really_start = Lifeline.start
starts = 0

def start(self, command, **environment):
    \"\"\"Starts a stand-in; when the FATAL one runs, and nobody knows it yet, a signal comes.\"\"\"
    global starts
    starts += 1
    child = really_start(self, [sys.executable, "child.py"], **environment)
    if starts == FATAL:
        while Path("log").read_text().count("up") < starts:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
    return child

Lifeline.start = start
if sys.argv[1] == "reload":
    sys.exit(run_and_reload(["code"], timeout_s=90))
sys.exit(run_many(3, timeout_s=30, until_done=False))
"""
CHILD = """
import os, signal, time
from pathlib import Path

def note(word):
    with open("log", "a") as log:
        log.write(f"{word} {os.getpid()}\\n")

told = []
parent = int(os.environ["PARENT"])
signal.signal(signal.SIGTERM, lambda *_: (note("told"), told.append(1)))
note("up")
while len(told) < int(os.environ["ENOUGH"]) or not Path("go").exists():
    time.sleep(0.01)
    if os.getppid() != parent:
        note("orphaned")
        break
else:
    note("ended")
"""

Start = Callable[..., Forked]
Pids = Callable[[str], list[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a parent; its children end when they were told ``enough`` times and may go."""
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "log").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "shop.py").touch()
    running: list[Forked] = []

    def start(what: str, *, fatal: int = 0, enough: int = 1) -> Forked:
        env = {**os.environ, "FATAL": str(fatal), "ENOUGH": str(enough)}
        script = str(tmp_path / "parent.py")
        needs = ("toril.cli.processes", "toril.cli.reloading")
        running.append(Forked(script, what, cwd=tmp_path, env=env, needs=needs))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait(30)


@pytest.fixture
def pids(tmp_path: Path) -> Pids:
    """The children that noted this word, in order."""

    def pids(word: str) -> list[str]:
        lines = (tmp_path / "log").read_text().splitlines()
        return [line.split()[1] for line in lines if line.split()[0] == word]

    return pids


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_each_process_is_told_although_one_is_being_started(
    start: Start, pids: Pids, tmp_path: Path, fatal: int
):
    (tmp_path / "go").touch()

    process = start("many", fatal=fatal)

    assert process.wait(60) == 0
    assert len(pids("up")) >= fatal
    assert sorted(pids("up")) == sorted(pids("told")) == sorted(pids("ended"))


def test_each_process_is_told_as_often_as_its_parent(start: Start, pids: Pids, tmp_path: Path):
    (tmp_path / "go").touch()
    process = start("many", enough=2)

    wait_until_sync(lambda: len(pids("up")) == 3)
    process.send_signal(signal.SIGTERM)
    wait_until_sync(lambda: len(pids("told")) == 3)
    assert pids("ended") == []
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 0
    assert sorted(pids("told")) == sorted(2 * pids("up"))
    assert sorted(pids("ended")) == sorted(pids("up"))


def test_told_to_end_during_a_restart_it_ends_and_the_job_has_its_time(
    start: Start, pids: Pids, tmp_path: Path
):
    process = start("reload")
    wait_until_sync(lambda: pids("up"))
    _change(tmp_path)
    wait_until_sync(lambda: pids("told"))

    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()

    assert process.wait(60) == 0
    assert len(pids("up")) == 1
    assert pids("ended") == pids("told") == pids("up")


def test_a_worker_that_is_being_started_anew_is_told_to_end_too(
    start: Start, pids: Pids, tmp_path: Path
):
    (tmp_path / "go").touch()
    process = start("reload", fatal=2)
    wait_until_sync(lambda: pids("up"))
    _change(tmp_path)

    assert process.wait(60) == 0
    assert len(pids("up")) == 2
    assert pids("ended") == pids("told") == pids("up")


@pytest.mark.parametrize("restarts", [False, True])
def test_told_twice_it_asks_twice_so_that_jobs_are_handed_back(
    start: Start, pids: Pids, tmp_path: Path, restarts: bool
):
    (tmp_path / "go").touch()
    process = start("reload", enough=2)
    wait_until_sync(lambda: pids("up"))
    if restarts:
        _change(tmp_path)
        wait_until_sync(lambda: pids("told"))

    process.send_signal(signal.SIGTERM)
    if not restarts:
        wait_until_sync(lambda: pids("told"))
    process.send_signal(signal.SIGINT)  # another one, so that the system cannot make one of both

    assert process.wait(60) == 0
    assert len(pids("up")) == 1
    assert pids("told") == 2 * pids("up")
    assert pids("ended") == pids("up")


def test_told_a_third_time_it_ends_at_once(start: Start, pids: Pids):
    process = start("reload", enough=3)
    wait_until_sync(lambda: pids("up"))
    process.send_signal(signal.SIGTERM)
    wait_until_sync(lambda: pids("told"))
    process.send_signal(signal.SIGTERM)
    wait_until_sync(lambda: len(pids("told")) == 2)

    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 0
    assert len(pids("up")) == 1
    assert pids("ended") == []


def _change(directory: Path) -> None:
    os.utime(directory / "code" / "shop.py", (1, 1))


def test_a_file_that_disappears_while_it_is_looked_at_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("kept.py", "gone.py"):
        (tmp_path / name).touch()
    really_scan = os.scandir

    def scan(path: Path) -> list[os.DirEntry[str]]:
        entries = list(really_scan(path))
        (tmp_path / "gone.py").unlink()
        return entries

    monkeypatch.setattr(reloading.os, "scandir", scan)

    assert list(reloading._times([tmp_path])) == [str(tmp_path / "kept.py")]
