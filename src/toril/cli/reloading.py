"""Restarting a command whenever the code changes, for people who are writing it.

The command runs in a process of its own, which is asked to end as an operator would ask it: jobs
that run are finished or handed back, and nothing is lost by saving a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from toril.cli.lifeline import Lifeline
from toril.cli.printing import echo
from toril.cli.signals import noted_signals

LOOK_EVERY_S = 0.4
_TICK_S = 0.05
_NOT_CODE = frozenset({"node_modules", "__pycache__", "venv", "build", "dist"})


def run_and_reload(directories: Iterable[str], *, timeout_s: float) -> int:
    """Run this very command without ``--reload``, again after each change; until told to stop."""
    roots = [Path(directory) for directory in directories]
    arguments = _without_reloading(sys.argv[1:])
    command = [sys.executable, "-m", "toril", *arguments]
    lifeline = Lifeline()
    with noted_signals() as told:
        try:
            return _run_until(told, command, roots, lifeline, timeout_s)
        finally:
            lifeline.close()


def _run_until(
    told: deque[int], command: list[str], roots: list[Path], lifeline: Lifeline, timeout_s: float
) -> int:
    seen = _times(roots)  # before the start: what changes from now on may be read or not
    process = lifeline.start(command)
    while not told:
        _wait(LOOK_EVERY_S, lambda: not told)
        if told or (now := _times(roots)) == seen:
            continue
        changed = sorted(set(now.items()) ^ set(seen.items()))[0][0]
        seen = now
        echo(f"{changed} changed: restarting", err=True)
        _end(process, told, timeout_s)
        if not told:
            process = lifeline.start(command)
    return max(_end(process, told, timeout_s), 0)


def _end(process: subprocess.Popen[bytes], told: deque[int], timeout_s: float) -> int:
    """Ask it to end, and once more if this process is told twice: then it hands its jobs back.

    Kill it if it does not end in time, or if this process is told a third time.
    """
    process.terminate()
    # Told once during a restart, this process still gives running jobs their time.
    _wait(timeout_s, lambda: process.poll() is None and len(told) < 2)
    if len(told) > 1:
        process.terminate()
        _wait(timeout_s, lambda: process.poll() is None and len(told) < 3)
    process.kill()  # does nothing to one that has ended
    return process.wait()


def _wait(seconds: float, going_on: Callable[[], bool]) -> None:
    """Wait while it goes on, in short steps: a signal that is only noted ends no sleep."""
    until = time.monotonic() + seconds
    while going_on() and time.monotonic() < until:
        time.sleep(_TICK_S)


def _times(roots: list[Path]) -> dict[str, int]:
    return {path: changed_at for root in roots for path, changed_at in _files(root)}


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Each file of code below it, and when it was changed."""
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _NOT_CODE:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.name.endswith(".py"):
            with suppress(OSError):  # it may be gone by now: editors replace files
                if entry.is_file():
                    yield entry.path, entry.stat().st_mtime_ns


def _without_reloading(arguments: list[str]) -> list[str]:
    """The arguments of the program that is restarted."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--reload-dir":
            next(rest, None)
        elif argument != "--reload" and not argument.startswith("--reload-dir="):
            kept.append(argument)
    return kept
