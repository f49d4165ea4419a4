"""``executor="process"``: handlers in processes that can be killed.

Each process runs one job at a time.  It is killed when the job times out, is cancelled, loses its
lock, or is handed back; one that dies by itself fails that attempt, if its handler had begun.  A
new one takes its place when it is needed.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import spawn
from typing import Any

from toril.errors import (
    HandlerProcessError,
    InvalidOptionError,
    LockLostError,
    UnsupportedPlatformError,
)
from toril.protocol import codec
from toril.worker.active_job import ActiveJob
from toril.worker.child import LENGTH, pack, resolve, unpack
from toril.worker.handlers import Handler, Router
from toril.worker.remote_error import describe, revive

_KILL_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 120.0
_BOOT = "import sys; sys.path[:] = {!r}; from toril.worker.child import main; main({})"


class ProcessExecutor:
    """Runs each job in a process of its own; up to ``processes`` of them are kept."""

    def __init__(self, handler: Handler | Router | str, *, processes: int) -> None:
        if not hasattr(os, "fork"):
            raise UnsupportedPlatformError(
                'executor="process" passes sockets to its processes, which only works on Unix;'
                " on this operating system, run handlers in threads (a plain def), and start"
                " several workers"
            )
        self._reference = find_reference(handler)
        self._free: list[Process] = []
        self._processes = processes

    @property
    def abandoned(self) -> int:
        """Always 0: a process can be killed."""
        return 0

    async def run(self, job: ActiveJob) -> Any:
        process = await self._find_idle()
        if process is not None:
            try:
                return await self._run_in(process, job)
            except HandlerProcessError:
                if process.has_begun:
                    raise
                # It was dying while it was idle, which is no fault of this job.
        return await self._run_in(await self._start(job), job)

    async def _run_in(self, process: Process, job: ActiveJob) -> Any:
        try:
            result = await process.run(job)
        finally:
            if process.is_idle and len(self._free) < self._processes:
                self._free.append(process)
            else:
                await process.kill()
        return result

    async def _find_idle(self) -> Process | None:
        """One that still lives: a system without memory kills idle processes too."""
        while self._free:
            process = self._free.pop()
            if process.is_alive:
                return process
            await process.kill()
        return None

    async def _start(self, job: ActiveJob) -> Process:
        """The job's ``timeout`` covers its handler, not the imports of a new process."""
        with job.stopped_clock():
            try:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    return await Process.start(self._reference, _place_of(self._reference))
            except TimeoutError as error:
                raise HandlerProcessError(
                    f"a process for handlers did not import {self._reference!r}"
                    f" within {_START_TIMEOUT_S:.0f} s"
                ) from error

    async def close(self) -> None:
        processes, self._free = self._free, []
        await asyncio.gather(*(process.stop() for process in processes))


class Process:
    """One child, and the parent's end of the pipe to it."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self.is_idle = True
        """Has it answered everything that was sent to it?"""
        self.has_begun = False
        """Has it called the handler of its last job?"""

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None and not self._reader.at_eof()

    @classmethod
    async def start(cls, reference: str, place: Any = None) -> Process:
        """Start a child and wait until it has imported the handler."""
        ours, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
                _command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        ours.setblocking(False)
        process = cls(child, *await asyncio.open_connection(sock=ours))
        try:
            boot = {"reference": reference, "place": place, "preparation": _preparation()}
            process._send({"kind": "boot", **boot})
            greeting = await process._receive()
        except BaseException:
            await process.kill()
            raise
        if greeting is None:
            raise HandlerProcessError(f"a process for handlers {await process._obituary()}")
        if greeting["kind"] == "unusable":
            await process.kill()
            error = HandlerProcessError(
                f"a process for handlers cannot import {reference!r}:"
                f" {greeting['type']}: {greeting['message'].decode()}"
            )
            raise error from revive(greeting)
        return process

    async def run(self, job: ActiveJob) -> Any:
        """Run one job; whoever cancels this must kill the process."""
        self.is_idle = self.has_begun = False
        self._send(
            {
                "kind": "job",
                "prefix": job.prefix,
                "queue": job.queue_name,
                "id": job.id,
                "name": job.name,
                "token": job.token,
                "fields": job._fields,
            }
        )
        with job.signalling(_Told(self, job)):
            return await self._hear(job)

    def tell(self, job: ActiveJob) -> None:
        """Tell it that the running job should stop, or that the job's group has turned."""
        self._send({"kind": "signal", "id": job.id, "token": job.token})

    async def _hear(self, job: ActiveJob) -> Any:
        """How the job ends; until then, do what its handler requests."""
        while True:
            message = await self._receive()
            if message is None:
                raise HandlerProcessError(
                    f"the process that ran job {job.id!r} ({job.name!r}) {await self._obituary()}"
                )
            if message["kind"] == "begun":
                self.has_begun = True
                continue
            if message["kind"] == "ask":
                await self._answer(job, message)
                continue
            self.is_idle = True
            if message["kind"] == "raised":
                raise revive(message)
            return codec.decode(message["value"])

    async def stop(self) -> None:
        """Let an idle process close what it opened and end; kill it if it does not."""
        self.is_idle = False
        self._writer.close()
        await self._wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.is_idle = False
        self._writer.close()
        if self._child.poll() is None:
            self._child.kill()
        await self._wait()

    async def _answer(self, job: ActiveJob, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"kind": "answer", "number": message["number"]}
        try:
            if (message["id"], message["token"]) != (job.id, job.token):
                # A task or thread that an earlier handler left behind still runs in the process.
                raise LockLostError(
                    f"job {message['id']!r} has ended; this run can no longer write to it"
                )
            call = getattr(job, message["verb"])
            answer["value"] = await call(codec.decode(message["argument"]))
        except Exception as error:  # noqa: BLE001 (the handler gets it, whatever it is)
            answer.update(describe(error))
        try:
            self._send(answer)
        except (OverflowError, UnicodeEncodeError):
            # JSON has whole numbers of any size, and halves of surrogate pairs.
            text = codec.encode(answer.pop("value"), f"the answer to job.{message['verb']}()")
            self._send({**answer, "text": text})

    def _send(self, message: dict[str, Any]) -> None:
        data = pack(message)
        self._writer.write(LENGTH.pack(len(data)) + data)

    async def _receive(self) -> dict[str, Any] | None:
        """The next message, or None when the process is gone."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            message: dict[str, Any] = unpack(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    async def _wait(self) -> int | None:
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while self._child.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        return self._child.returncode

    async def _obituary(self) -> str:
        """How a process that closed its pipe ended."""
        code = await self._wait()
        await self.kill()
        if code is None:
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"was killed by {name_of_signal(-code)}{hint}"


def name_of_signal(number: int) -> str:
    """``SIGKILL``; of the real-time signals only the first and the last have a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Told:
    """A signal that lives in another process."""

    def __init__(self, process: Process, job: ActiveJob) -> None:
        self._process = process
        self._job = job

    def set(self) -> None:
        self._process.tell(self._job)


def _command(descriptor: int) -> list[str]:
    """Python itself, with the flags and the paths of this process."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _BOOT.format(sys.path, descriptor)]


def _preparation() -> bytes:
    """What the standard library tells its own child processes: above all, the main module."""
    preparation = spawn.get_preparation_data("toril handler")
    preparation.pop("authkey", None)
    return pickle.dumps(preparation)


def _place_of(reference: str) -> Any:
    """Where the app of these handlers is by now: its module may say something else."""
    found = resolve(reference)
    place = found.place if isinstance(found, Router) else None
    return None if place is None else place.tell()


def find_reference(handler: Handler | Router | str) -> str:
    """The ``module:name`` by which another process finds the handler."""
    for reference in _candidates(handler):
        try:
            found = resolve(reference)
        except (ImportError, AttributeError, ValueError):
            continue
        if found is handler or isinstance(handler, str):
            return reference
    raise InvalidOptionError(
        f'executor="process" cannot find {handler!r} again in another process; use a function or a'
        f" Router at the top level of a module, or its name as 'module:name'"
    )


def _candidates(handler: Handler | Router | str) -> Iterator[str]:
    if isinstance(handler, str):
        yield handler
        return
    if not isinstance(handler, Router):
        module = getattr(handler, "__module__", None)
        name = getattr(handler, "__qualname__", None)
        if module and name and "<" not in name:
            yield f"{module}:{name}"
        return
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is handler:
                yield f"{module_name}:{name}"
