"""``--processes N``: the same command N times, each in a process of its own.

The parent does no work.  It passes signals on, starts a child anew that died, and gives up when
children die again and again: whoever started it, systemd or Kubernetes, shall see that.  When it is
killed, its children end as on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque

from toril.cli.lifeline import Lifeline
from toril.cli.logs import notice
from toril.cli.signals import noted_signals
from toril.logs import get_logger
from toril.worker.processes import name_of_signal

logger = get_logger("toril.processes")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 15.0
HEALTHY_AFTER_S = 30.0
"""A child that lived that long has not died of its start."""
MOST_DEATHS = 5
"""So many deaths in a row, each soon after the start, end it all."""
NUMBER = "TORIL_PROCESS"
"""In a child's environment: which of the processes it is, from 0."""
_LOOK_S = 0.05
GAVE_UP = 4


class _Child:
    def __init__(self, number: int, command: list[str], lifeline: Lifeline) -> None:
        self.number = number
        self._command = command
        self._lifeline = lifeline
        self.deaths = 0
        self.start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def start(self) -> None:
        self.process = self._lifeline.start(self._command, **{NUMBER: str(self.number)})
        self._started_at = time.monotonic()
        logger.info("process %d runs as pid %d", self.number, self.process.pid)

    def bury(self) -> int:
        """Note that it died, and when it may be started again; returns its exit code."""
        assert self.process is not None
        code = self.process.returncode
        self.process = None
        lived_s = time.monotonic() - self._started_at
        self.deaths = 1 if lived_s > HEALTHY_AFTER_S else self.deaths + 1
        wait_s = min(FIRST_WAIT_S * 2 ** (self.deaths - 1), LONGEST_WAIT_S)
        self.start_at = time.monotonic() + wait_s
        how = name_of_signal(-code) if code < 0 else f"exit code {code}"
        logger.warning(
            "process %d died after %.1f s (%s); it is started again in %.1f s",
            self.number,
            lived_s,
            how,
            wait_s,
        )
        return code


def run_many(count: int, *, timeout_s: float, until_done: bool) -> int:
    """Run this very command ``count`` times without ``--processes``; returns the exit code.

    With ``until_done`` a child that ends well has done its work and is not started again.
    """
    command = [sys.executable, "-m", "toril", *without_option(sys.argv[1:], "--processes")]
    lifeline = Lifeline()
    children = [_Child(number, command, lifeline) for number in range(count)]
    with noted_signals() as told:
        try:
            return _watch(children, told, timeout_s, until_done)
        finally:
            lifeline.close()


def _watch(children: list[_Child], told: deque[int], timeout_s: float, until_done: bool) -> int:
    left = list(children)
    while not told:
        for child in list(left):
            if child.process is None:
                if not told and time.monotonic() >= child.start_at:
                    child.start()
                continue
            code = child.process.poll()
            if code is None:
                continue
            if until_done and code == 0:
                left.remove(child)
                continue
            if code == 2:
                # Wrong usage: the next one would say the same.
                return _end(children, told, timeout_s, code)
            child.bury()
            if child.deaths >= MOST_DEATHS:
                notice(
                    f"toril: process {child.number} died {child.deaths} times in a row soon after"
                    f" its start; giving up; see the log above"
                )
                return _end(children, told, timeout_s, GAVE_UP)
        if not left:
            return 0
        time.sleep(_LOOK_S)
    return _end(children, told, timeout_s, 0)


def _end(children: list[_Child], told: deque[int], timeout_s: float, code: int) -> int:
    """Tell the children what this process is told, until they end; kill those that do not."""
    if not told:
        told.append(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    started = {child.number: child.process for child in children if child.process is not None}
    while time.monotonic() < deadline and any(one.poll() is None for one in started.values()):
        if told:
            # One at a time: the system makes one of two signals that come at once.
            signal_number = told.popleft()
            for process in started.values():
                process.send_signal(signal_number)
        time.sleep(_LOOK_S)
    for number, process in started.items():
        if process.poll() is None:
            logger.warning("process %d did not end in time and is killed", number)
            process.kill()
    codes = [process.wait() for process in started.values()]
    return code or next((one for one in codes if one > 0), 0)


def without_option(arguments: list[str], option: str) -> list[str]:
    """The arguments without ``option`` and its value."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == option:
            skip = True
        elif not argument.startswith(f"{option}="):
            kept.append(argument)
    return kept


def number_of_this() -> int:
    """Which of the processes this one is; 0 when it is the only one."""
    return int(os.environ.get(NUMBER, "0"))
