"""Programs for tests that kill, stop and signal them, forked from a process that has imported them.

``Forked("-m", "tests.chaos.program", …)`` is what ``python -m tests.chaos.program …`` is, a process
of its own with its own arguments, files and end, but for the second that an interpreter takes to
start and to import everything on a busy machine. Scripts are given by their path, as to Python.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

ROOT = Path(__file__).parent.parent
HEAD = 8
"""How many digits tell the length of a request."""
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL


class Forked:
    """A running program, with the names of `subprocess.Popen`; its files carry text."""

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        needs: tuple[str, ...] = (),
    ) -> None:
        """``needs`` are modules that a script will import; those of ``-m`` are known."""
        request = {
            "words": words,
            "needs": [*needs, *words[1 : 2 * (words[0] == "-m")]],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or ROOT),
        }
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        theirs = [_end_of(asked, number) for number, asked in enumerate((stdin, stdout, stderr))]
        if stdin == PIPE:
            theirs[0], ours = os.pipe()
            self.stdin = open(ours, "w")  # noqa: SIM115
        if stdout == PIPE:
            ours, theirs[1] = os.pipe()
            self.stdout = open(ours)  # noqa: SIM115
        self._end, told = os.pipe()
        self.pid = _template().fork(request, [*theirs, told])
        for number in (*theirs, told):
            os.close(number)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended: minus the number of the signal, if it was one."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(os.read(self._end, 16))
            os.close(self._end)
        return self.returncode

    async def ended(self, timeout: float = 30.0) -> int:
        """`wait` for those with an event loop."""
        return await asyncio.to_thread(self.wait, timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _end_of(asked: int | None, number: int) -> int:
    """A copy of the file that a program reads from or writes to."""
    if asked == DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    return -1 if asked == PIPE else os.dup(number if asked is None else asked)


class _Template:
    """The process that is forked; it ends with the one that started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        text = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [f"{len(text):0{HEAD}}".encode()], files)
            self._socket.sendall(text)
            answer = self._socket.recv(16)
        assert answer, "the process that forks programs is gone"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


_one: _Template | None = None


def _template() -> _Template:
    global _one
    if _one is None:
        _one = _Template()
    return _one


def serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and tell how each child ended; returns in the child what it is to be.

    Whatever a program imports is imported here before, once.
    """
    ends: dict[int, int] = {}
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(mouth)
    while True:
        ready, _, _ = select.select([line, ear], [], [])
        if ear in ready:
            os.read(ear, 1024)
            _tell(ends)
        if line not in ready:
            continue
        head, files, _, _ = socket.recv_fds(line, HEAD, 4, socket.MSG_WAITALL)
        if not head:
            return None
        request = json.loads(line.recv(int(head), socket.MSG_WAITALL))
        for name in request["needs"]:
            importlib.import_module(name)
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (ear, mouth, files[3], *ends.values()):
                os.close(number)
            line.close()
            return {**request, "files": files[:3]}
        for number in files[:3]:
            os.close(number)
        ends[child] = files[3]
        line.send(str(child).encode())


def _tell(ends: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            child, status = found
            with suppress(BrokenPipeError):
                os.write(ends[child], str(os.waitstatus_to_exitcode(status)).encode())
            os.close(ends.pop(child))


def become(request: dict[str, Any]) -> None:
    """Run the program in this process, as the interpreter would have begun it."""
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.dont_write_bytecode = bool(request["env"].get("PYTHONDONTWRITEBYTECODE"))
    random.seed()
    first, *rest = request["words"]
    if first == "-m":
        name, *rest = rest
        sys.path[0] = request["cwd"]
        if not hasattr(sys.modules[name], "__path__"):
            del sys.modules[name]  # what was imported is to be __main__ now
        sys.argv = [name, *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).parent)
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    from toril import Queue, Worker, run  # noqa: F401 (what every program needs)

    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started it
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become(cast(dict[str, Any], request))


if __name__ == "__main__":
    main()
