"""Restarting a command whenever the code changes, for people who are writing it.

The command runs in a process of its own, which is asked to end as an operator would ask it: jobs
that run are finished or handed back, and nothing is lost by saving a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from toril.cli.lifeline import Lifeline
from toril.cli.printing import echo

LOOK_EVERY_S = 0.4
_NOT_CODE = frozenset({"node_modules", "__pycache__", "venv", "build", "dist"})


class _Told(Exception):
    """This process was told to end."""


def run_and_reload(directories: Iterable[str], *, timeout_s: float) -> int:
    """Run this very command without ``--reload``, again after each change; until told to stop."""
    roots = [Path(directory) for directory in directories]
    arguments = _without_reloading(sys.argv[1:])
    command = [sys.executable, "-m", "toril", *arguments]
    lifeline = Lifeline()
    before = {number: signal.signal(number, _tell) for number in (signal.SIGTERM, signal.SIGINT)}
    process = lifeline.start(command)
    try:
        seen = _times(roots)
        while True:
            time.sleep(LOOK_EVERY_S)
            now = _times(roots)
            if now == seen:
                continue
            changed = sorted(set(now.items()) ^ set(seen.items()))[0][0]
            seen = now
            echo(f"{changed} changed: restarting", err=True)
            _end(process, timeout_s)
            process = lifeline.start(command)
    except _Told:
        return max(_end(process, timeout_s), 0)
    finally:
        lifeline.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(timeout_s)
    except (subprocess.TimeoutExpired, _Told):
        process.kill()
        return process.wait()


def _tell(number: int, frame: FrameType | None) -> NoReturn:
    raise _Told


def _times(roots: list[Path]) -> dict[str, int]:
    return {entry.path: entry.stat().st_mtime_ns for root in roots for entry in _files(root)}


def _files(root: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _NOT_CODE:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.name.endswith(".py") and entry.is_file():
            yield entry


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
