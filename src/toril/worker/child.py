"""A process that runs handlers for a worker: the child's side of the pipe.

Messages are MessagePack, each preceded by its length.  The parent sends one job at a time, and the
answers to the handler's requests; the child sends the handler's requests and how it ended.
When the pipe closes, the parent is gone, and the child ends at once, whatever its handler is doing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import itertools
import os
import pickle
import queue
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from multiprocessing import spawn
from typing import Any

import msgspec

from toril.errors import InvalidOptionError
from toril.protocol import codec
from toril.protocol.families import Dependencies, DependenciesCount
from toril.protocol.job import StoredJob, fence_of, warn_of_progress
from toril.worker.handlers import Handler, Router, is_async, wrap
from toril.worker.remote_error import describe, revive

_LONGEST_GOODBYE_S = 10.0
LENGTH = struct.Struct("!I")
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode

_is_child = False


def refuse_in_child() -> None:
    """Raise in a process that only runs handlers: it imported a script that starts a worker."""
    if _is_child:
        raise InvalidOptionError(
            "a worker was started while its own script was imported by a process of"
            ' executor="process"; put the code that starts it under if __name__ == "__main__":'
        )


def main(descriptor: int) -> None:
    """Run handlers until the parent closes the pipe."""
    global _is_child
    _is_child = True
    os.set_inheritable(descriptor, False)
    pipe = Pipe(socket.socket(fileno=descriptor))
    _be_deaf()
    os.register_at_fork(after_in_child=lambda: _become_ordinary(pipe))
    with asyncio.Runner() as runner:
        try:
            boot = pipe.receive()
            spawn.prepare(pickle.loads(boot["preparation"]))  # noqa: S301 (our own parent's)
            handler = resolve(boot["reference"])
            if isinstance(handler, Router) and handler.place is not None:
                handler.place.move(boot["place"])
            child = Child(pipe, handler, runner)
            lifespan = getattr(handler, "lifespan", None)
            if lifespan is not None:
                runner.run(lifespan.__aenter__(), context=child.context)
        except BaseException as error:  # noqa: BLE001 (a broken module may raise anything)
            pipe.send({"kind": "unusable", **describe(error)})
            return
        pipe.send({"kind": "ready"})
        child.run()
        _end_soon()
        if lifespan is not None:
            runner.run(lifespan.__aexit__(None, None, None), context=child.context)


def _be_deaf() -> None:
    """The parent decides when a handler ends, but Ctrl-C reaches the whole process group.

    Programs that a handler starts would inherit ``SIG_IGN``, and nobody could stop them politely.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)  # nor does a C library notice anything


def _end_soon() -> None:
    """The parent is gone: whatever a handler left behind, this process is gone soon too.

    Python waits at its end for threads that are no daemons and for tasks that ignore that they are
    cancelled, and nobody is left to kill it.
    """
    last_resort = threading.Timer(_LONGEST_GOODBYE_S, os._exit, [0])
    last_resort.daemon = True
    last_resort.start()


def _become_ordinary(pipe: Pipe) -> None:
    """A copy of this process that a handler forks obeys signals, and does not hold the pipe: the
    parent sees by its end that this process is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe.close()


def resolve(reference: str) -> Handler | Router:
    """The handler or router that ``module:name`` names."""
    module_name, _, path = reference.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found) and not isinstance(found, Router):
        raise InvalidOptionError(f"{reference!r} is neither a function nor a Router: {found!r}")
    return found  # type: ignore[no-any-return]


class Pipe:
    """Whole messages over a blocking socket; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        data = pack(message)
        with self._lock:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """Close this process's end; other processes keep theirs."""
        self._socket.close()

    def receive(self) -> dict[str, Any]:
        """The next message; raises ``EOFError`` when the other side is gone."""
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        message: dict[str, Any] = unpack(self._read(length))
        return message

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Child:
    """Runs one job after another in the main thread, while another thread listens to the parent."""

    def __init__(self, pipe: Pipe, handler: Handler | Router, runner: asyncio.Runner) -> None:
        self._pipe = pipe
        self._handler = handler
        self._runner = runner
        self.context = copy_context()
        """What every job begins with a copy of: none sees what another one sets."""
        self._received = 0
        """Jobs, as the listener counts them; each counter has one writer."""
        self._ended = 0
        self._jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._asked: dict[int, concurrent.futures.Future[Any]] = {}
        self._told: tuple[str, str] | None = None
        self._listeners: list[Callable[[], object]] = []
        self._telling = threading.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which ``async`` handlers run."""
        return self._runner.get_loop()

    def listen(self, job: StoredJob, token: str, listener: Callable[[], object]) -> bool:
        """Call ``listener``, from another thread, when the job gets a signal; True if it already
        has one."""
        with self._telling:
            if self._told == (job.id, token):
                return True
            self._listeners.append(listener)
            return False

    def _tell(self, job_id: str, token: str) -> None:
        with self._telling:
            self._told = (job_id, token)
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def run(self) -> None:
        """Return when the parent has closed the pipe and no handler is running."""
        threading.Thread(target=self._listen, name="toril-parent", daemon=True).start()
        while (message := self._jobs.get()) is not None:
            try:
                # If this process is killed before it, another one may run the job.
                self._pipe.send({"kind": "begun"})
                outcome = self._perform(message)
                # Before it is sent: the parent may answer with the next job at once.
                self._ended += 1
                self._pipe.send(outcome)
            except OSError:
                return

    def ask(self, job: _ChildJob, verb: str, argument: Any) -> concurrent.futures.Future[Any]:
        """Have the parent write something for this job, if it is still the running one."""
        number = next(self._numbers)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        # A handler may stop waiting; the answer comes anyway, and has to find its place.
        answer.set_running_or_notify_cancel()
        self._asked[number] = answer
        text = codec.encode(argument, f"the argument of job.{verb}()")
        self._pipe.send(
            {
                "kind": "ask",
                "number": number,
                "id": job.id,
                "token": job.token,
                "verb": verb,
                "argument": text,
            }
        )
        return answer

    def _listen(self) -> None:
        try:
            while True:
                message = self._pipe.receive()
                if message["kind"] == "job":
                    self._received += 1
                    self._jobs.put(message)
                elif message["kind"] == "signal":
                    self._tell(message["id"], message["token"])
                else:
                    self._answer(message)
        except (EOFError, OSError):
            # Nobody is left to report the outcome to, and nobody renews the job's lock any more.
            if self._received != self._ended:
                os._exit(0)
            self._jobs.put(None)
        except BaseException:  # noqa: BLE001 (a process that no longer listens would never end)
            traceback.print_exc()
            os._exit(1)

    def _answer(self, message: dict[str, Any]) -> None:
        answer = self._asked.pop(message["number"])
        if "type" in message:
            answer.set_exception(revive(message))
        elif "text" in message:
            answer.set_result(codec.decode(message["text"]))
        else:
            answer.set_result(message["value"])

    def _perform(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._telling:
            self._listeners = []
        try:
            handler = self._handler
            middleware: Any = ()
            if isinstance(handler, Router):
                middleware = handler.middleware
                handler = handler.find(message["name"])
            result = self.context.copy().run(self._call, handler, middleware, message)
            text = codec.encode(result, f"the return value of job {message['id']!r}")
        except BaseException as error:  # noqa: BLE001 (sys.exit() in a handler is also a failure)
            return {"kind": "raised", **describe(_as_failure(error))}
        return {"kind": "returned", "value": text}

    def _call(self, handler: Handler, middleware: Any, message: dict[str, Any]) -> Any:
        if is_async(handler):
            return self._run(self._await(wrap(handler, middleware), message))
        if not middleware:
            result = handler(BlockingChildJob(self, message))
            return self._run(_wait_for(result)) if asyncio.iscoroutine(result) else result

        async def call(_: Any) -> Any:
            return handler(BlockingChildJob(self, message))

        return self._run(self._await(wrap(call, middleware), message))

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine, context=copy_context())

    async def _await(self, handler: Handler, message: dict[str, Any]) -> Any:
        return await handler(AsyncChildJob(self, message))


def _as_failure(error: BaseException) -> BaseException:
    """What a handler raised, as the worker may raise it: it goes on when a handler wants to end."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"the handler called sys.exit({error.code!r})")
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        failure = RuntimeError(f"the handler raised {type(error).__name__}")
        failure.__cause__ = error
        return failure
    return error


async def _wait_for(result: Coroutine[Any, Any, Any]) -> Any:
    return await result


class _ChildJob(StoredJob):
    """A running job as its process sees it; writes go through the parent."""

    __slots__ = ("_child", "_signal", "state", "token")

    is_cancelled = False
    """Always False: a cancelled job's process is killed."""
    is_lost = False

    def __init__(self, child: Child, message: dict[str, Any]) -> None:
        super().__init__(message["prefix"], message["queue"], message["id"], message["fields"])
        self._child = child
        self._signal: Any = None
        self.token: str = message["token"]
        self.state: Any = None
        """What the app's ``lifespan`` yielded."""

    @property
    def fence(self) -> int:
        """Grows each time this job, or a job of its lane, is taken."""
        return fence_of(self)


class BlockingChildJob(_ChildJob):
    """For plain functions."""

    __slots__ = ()

    @property
    def signal(self) -> threading.Event:
        """Set when the job's group has turned; if the job should stop, its process is killed."""
        if self._signal is None:
            self._signal = threading.Event()
            if self._child.listen(self, self.token, self._signal.set):
                self._signal.set()
        signal: threading.Event = self._signal
        return signal

    def report(self, value: Any) -> None:
        """Report progress: a number, a string or any JSON."""
        self._child.ask(self, "report", value).result()

    def progress(self, value: Any) -> None:
        """The old name of ``report``."""
        warn_of_progress()
        self.report(value)

    def log(self, row: str) -> int:
        """Append a row to the job's log; returns how many rows it has."""
        count: int = self._child.ask(self, "log", row).result()
        return count

    def update_data(self, data: Any) -> None:
        """Replace the job's data, for later attempts as well."""
        self._child.ask(self, "update_data", data).result()
        self._data = data

    def extend_lock(self, duration: int) -> None:
        """Extend the lock to ``duration`` ms from now; it is renewed automatically."""
        self._child.ask(self, "extend_lock", duration).result()

    def children_values(self) -> dict[str, Any]:
        """What the completed children returned, by their full keys."""
        values: dict[str, Any] = self._child.ask(self, "read_family", "children_values").result()
        return values

    def failed_children(self) -> dict[str, str]:
        """Why children failed that did not fail this job, by their full keys."""
        reasons: dict[str, str] = self._child.ask(self, "read_family", "failed_children").result()
        return reasons

    def dependencies(self) -> Dependencies:
        """All children of this job, by outcome."""
        return Dependencies(**self._child.ask(self, "read_family", "dependencies").result())

    def dependencies_count(self) -> DependenciesCount:
        """How many children are completed, pending, ignored and failed."""
        return DependenciesCount(
            **self._child.ask(self, "read_family", "dependencies_count").result()
        )


class AsyncChildJob(_ChildJob):
    """For ``async`` functions."""

    __slots__ = ()

    @property
    def signal(self) -> asyncio.Event:
        """Set when the job's group has turned; if the job should stop, its process is killed."""
        if self._signal is None:
            self._signal = asyncio.Event()
            loop, made = self._child.loop, self._signal
            if self._child.listen(self, self.token, lambda: loop.call_soon_threadsafe(made.set)):
                made.set()
        signal: asyncio.Event = self._signal
        return signal

    async def report(self, value: Any) -> None:
        """Report progress: a number, a string or any JSON."""
        await asyncio.wrap_future(self._child.ask(self, "report", value))

    async def progress(self, value: Any) -> None:
        """The old name of ``report``."""
        warn_of_progress()
        await self.report(value)

    async def log(self, row: str) -> int:
        """Append a row to the job's log; returns how many rows it has."""
        count: int = await asyncio.wrap_future(self._child.ask(self, "log", row))
        return count

    async def update_data(self, data: Any) -> None:
        """Replace the job's data, for later attempts as well."""
        await asyncio.wrap_future(self._child.ask(self, "update_data", data))
        self._data = data

    async def extend_lock(self, duration: int) -> None:
        """Extend the lock to ``duration`` ms from now; it is renewed automatically."""
        await asyncio.wrap_future(self._child.ask(self, "extend_lock", duration))

    async def children_values(self) -> dict[str, Any]:
        """What the completed children returned, by their full keys."""
        values: dict[str, Any] = await asyncio.wrap_future(
            self._child.ask(self, "read_family", "children_values")
        )
        return values

    async def failed_children(self) -> dict[str, str]:
        """Why children failed that did not fail this job, by their full keys."""
        reasons: dict[str, str] = await asyncio.wrap_future(
            self._child.ask(self, "read_family", "failed_children")
        )
        return reasons

    async def dependencies(self) -> Dependencies:
        """All children of this job, by outcome."""
        return Dependencies(
            **await asyncio.wrap_future(self._child.ask(self, "read_family", "dependencies"))
        )

    async def dependencies_count(self) -> DependenciesCount:
        """How many children are completed, pending, ignored and failed."""
        return DependenciesCount(
            **await asyncio.wrap_future(self._child.ask(self, "read_family", "dependencies_count"))
        )
