"""A Node process running BullMQ, driven from a test.

``NodePeer`` starts ``node/peer.js`` and talks to it in JSON lines. One process serves many tests:
``peer.at(prefix)`` is the same process looking at another prefix.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

NODE_DIRECTORY = Path(__file__).parent / "node"
VERSIONS = (5, 6)
PACKAGES = ("bullmq5", "bullmq6", "bullmq-otel5", "bullmq-otel6", "@bull-board/api")

Message = dict[str, Any]


class NodeMissingError(Exception):
    """Node or its packages are not installed, so nothing can be said about BullMQ."""


class NodeError(Exception):
    """BullMQ refused or failed: ``name``, ``message`` and ``code`` are those of the Node error."""

    def __init__(self, operation: str, error: Message) -> None:
        super().__init__(f"{operation}: {error.get('name')}: {error.get('message')}")
        self.name = error.get("name")
        self.message = error.get("message")
        self.code = error.get("code")


class PeerDiedError(Exception):
    """The Node process ended while something was still expected of it."""


def reason_not_to_run() -> str | None:
    """Why no peer can be started here, or None when one can."""
    if shutil.which("node") is None:
        return "node is not installed"
    missing = [
        package for package in PACKAGES if not (NODE_DIRECTORY / "node_modules" / package).is_dir()
    ]
    if missing:
        return (
            f"Node packages are missing ({', '.join(missing)}); run `npm ci` in tests/interop/node"
        )
    return None


class PeerView:
    """The process as seen from one prefix. Everything a test calls is here."""

    def __init__(self, process: NodePeer | SharedPeer, prefix: str) -> None:
        self.process = process
        self.prefix = prefix
        self.version = process.version

    async def call(self, operation: str, /, *, timeout: float = 60.0, **fields: Any) -> Any:
        """Perform ``operation`` in Node and return its result; raises ``NodeError``."""
        return await self.process.request(operation, {"prefix": self.prefix, **fields}, timeout)

    async def add(self, queue: str, name: str, data: Any = None, **options: Any) -> str:
        """Add a job (options in BullMQ's camelCase) and return its id."""
        job = await self.call("queue.add", queue=queue, args=[name, data or {}, options])
        return str(job["id"])

    async def job(self, queue: str, job_id: str) -> Message:
        """The stored job as Node decodes it; empty when there is none."""
        return await self.call("queue.getJob", queue=queue, jobId=job_id) or {}

    async def state(self, queue: str, job_id: str) -> str:
        return str(await self.call("queue.getJobState", queue=queue, args=[job_id]))

    async def counts(self, queue: str) -> dict[str, int]:
        counts: dict[str, int] = await self.call("queue.getJobCounts", queue=queue)
        return counts

    async def work(self, queue: str, behaviours: Any = None, **options: Any) -> str:
        """Start a worker (options in camelCase) and return its handle."""
        return str(
            await self.call("worker.start", queue=queue, behaviours=behaviours or {}, opts=options)
        )

    async def seen(self, worker: str) -> list[Message]:
        """The jobs a worker was given, in order, as it saw them, with ``at`` in ms."""
        jobs: list[Message] = await self.call("worker.seen", worker=worker)
        return jobs

    async def stop_working(self, worker: str, *, force: bool = False) -> None:
        await self.call("worker.close", worker=worker, force=force)

    async def listen(self, queue: str, **options: Any) -> None:
        """Record the queue's events from now on."""
        await self.call("events.start", queue=queue, opts=options)

    async def recorded(self, queue: str) -> list[Message]:
        events: list[Message] = await self.call("events.list", queue=queue)
        return events

    async def event(
        self, name: str, *, timeout: float = 60.0, where: Callable[[Message], bool] | None = None
    ) -> Message:
        """The next unsolicited event of that name ('took', 'holding', 'worker:failed', …)."""
        return await self.process.next_event(name, timeout, where)

    async def close_all(self) -> None:
        """Close every worker, queue and listener that was opened under this prefix."""
        await self.call("prefix.close")


class NodePeer(PeerView):
    """A running ``peer.js``; closes cleanly with the block, or dies by ``kill()``."""

    def __init__(self, version: int, url: str, prefix: str = "bull") -> None:
        self.version = version
        self.url = url
        super().__init__(self, prefix)
        self._child: asyncio.subprocess.Process | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._events: deque[Message] = deque(maxlen=20_000)
        self._arrived = asyncio.Condition()
        self._complaints: deque[str] = deque(maxlen=200)
        self._readers: list[asyncio.Task[None]] = []

    def at(self, prefix: str) -> PeerView:
        """The same process on another prefix."""
        return PeerView(self, prefix)

    async def __aenter__(self) -> Self:
        if reason := reason_not_to_run():
            raise NodeMissingError(reason)
        self._child = await asyncio.create_subprocess_exec(
            "node",
            str(NODE_DIRECTORY / "peer.js"),
            str(self.version),
            self.url,
            self.prefix,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=64 * 1024 * 1024,
        )
        self._readers = [
            asyncio.create_task(self._read_answers()),
            asyncio.create_task(self._read_complaints()),
        ]
        try:
            await self.next_event("ready", 60.0, None)
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def complaints(self) -> str:
        """What Node wrote to its standard error."""
        return "\n".join(self._complaints)

    async def request(self, operation: str, fields: Message, timeout: float) -> Any:
        child = self._running()
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        line = json.dumps({"id": number, "op": operation, **fields}, allow_nan=False)
        assert child.stdin is not None
        child.stdin.write(line.encode() + b"\n")
        try:
            async with asyncio.timeout(timeout):
                await child.stdin.drain()
                message = await answer
        except TimeoutError:
            raise TimeoutError(
                f"{operation} got no answer within {timeout} s\n{self.complaints}"
            ) from None
        finally:
            self._answers.pop(number, None)
        if error := message.get("error"):
            raise NodeError(operation, error)
        return message.get("result")

    async def next_event(
        self, name: str, timeout: float, where: Callable[[Message], bool] | None
    ) -> Message:
        def pick() -> Message | None:
            for event in self._events:
                if event["event"] == name and (where is None or where(event)):
                    self._events.remove(event)
                    return event
            return None

        async with self._arrived:
            try:
                async with asyncio.timeout(timeout):
                    while (event := pick()) is None:
                        if self._child is None or self._child.returncode is not None:
                            raise PeerDiedError(f"node ended before {name!r}\n{self.complaints}")
                        await self._arrived.wait()
            except TimeoutError:
                raise TimeoutError(
                    f"no {name!r} within {timeout} s; other events: "
                    f"{[event['event'] for event in self._events]}\n{self.complaints}"
                ) from None
        return event

    async def forget_events(self) -> None:
        """Drop the events that nobody asked for."""
        self._events.clear()

    async def kill(self) -> None:
        """End the process as a crash does, without a word to Redis."""
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(signal.SIGKILL)
        await self._reap()

    async def stop(self) -> None:
        """Freeze the process; ``resume`` lets it go on."""
        self._running().send_signal(signal.SIGSTOP)

    async def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    async def close(self, timeout: float = 60.0) -> None:
        """Close workers, queues and connections, then end the process."""
        child = self._child
        if child is None or child.returncode is not None:
            await self._reap()
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(timeout):
                await child.wait()
        except TimeoutError:
            child.kill()
        await self._reap()

    def _running(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            raise PeerDiedError(f"node is not running\n{self.complaints}")
        return self._child

    async def _reap(self) -> None:
        if self._child is not None:
            await self._child.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_answers(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        async for line in self._child.stdout:
            message = json.loads(line)
            if "event" in message:
                async with self._arrived:
                    self._events.append(message)
                    self._arrived.notify_all()
                continue
            answer = self._answers.get(message["id"])
            if answer is not None and not answer.done():
                answer.set_result(message)
        await self._child.wait()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(PeerDiedError(f"node ended\n{self.complaints}"))
        async with self._arrived:
            self._arrived.notify_all()

    async def _read_complaints(self) -> None:
        assert self._child is not None
        assert self._child.stderr is not None
        async for line in self._child.stderr:
            self._complaints.append(line.decode(errors="replace").rstrip())


class SharedPeer:
    """A ``NodePeer`` that outlives the event loops of the tests that use it.

    Its process is read on a loop of its own, in a thread, so tests with a loop each can share it.
    """

    def __init__(self, version: int, url: str) -> None:
        self.version = version
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._peer = NodePeer(version, url)
        self._wait(self._peer.__aenter__())

    def at(self, prefix: str) -> PeerView:
        return PeerView(self, prefix)

    @property
    def complaints(self) -> str:
        return self._peer.complaints

    async def request(self, operation: str, fields: Message, timeout: float) -> Any:
        return await self._there(self._peer.request(operation, fields, timeout))

    async def next_event(
        self, name: str, timeout: float, where: Callable[[Message], bool] | None
    ) -> Message:
        return await self._there(self._peer.next_event(name, timeout, where))

    async def forget_events(self) -> None:
        """Drop what earlier tests left: one of their events is no answer to another test."""
        await self._there(self._peer.forget_events())

    def close(self) -> None:
        self._wait(self._peer.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)
