"""Runs the Python blocks of a page, one after the other, in one namespace.

A scene (``tests/docs/scenes.py``) sets the stage for a page: it puts the names in place that a
block takes for granted, plays the blocks in order, and looks at what they did.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.helpers import wait_until
from toril import Queue, Worker
from toril.worker import running

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^( *)```python[^\n`]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PATIENCE_S = 60


class Enough(BaseException):
    """Ends a block that would go on for ever."""


def python_blocks(page: Path) -> list[str]:
    return [textwrap.dedent(code) for _, code in FENCE.findall(page.read_text())]


class Other:
    """A service of the reader's: every method is async, is noted, and returns what was given."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def method(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            return self.answers.get(name)

        return method


class Play:
    """One page on one server."""

    def __init__(self, page: Path, url: str, **instead: str) -> None:
        self.blocks = python_blocks(page)
        self.played = 0
        self.url = url
        self.instead = {"redis://localhost:6379": url, "redis://localhost": url, **instead}
        self.lines: list[str] = []
        self.limit = 0
        self.stopping = threading.Event()
        self.stack = AsyncExitStack()
        self.names: dict[str, Any] = {"__name__": "page", "print": self.print}

    def print(self, *values: object) -> None:
        self.lines.append(" ".join(map(str, values)))
        if self.limit and len(self.lines) >= self.limit:
            raise Enough

    async def queue(self, name: str) -> Queue:
        """A queue that is open to the end of the page."""
        return await self.stack.enter_async_context(Queue(name, connection=self.url))

    @asynccontextmanager
    async def working(self, *workers: Any) -> AsyncIterator[None]:
        """Run workers, apps or relays meanwhile."""
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            yield
        finally:
            for worker in workers:
                await worker.close()
            await asyncio.gather(*tasks)

    def worker(self, queue: str, handler: Any, **options: Any) -> Worker:
        return Worker(queue, handler, connection=self.url, **options)

    async def block(
        self,
        *,
        until: Callable[[], Any] | None = None,
        raises: type[BaseException] | None = None,
        refusing: type[Exception] | None = None,
        lines: int = 0,
    ) -> None:
        """Play the next block.

        ``until``: it runs a program, which gets its SIGTERM when this is true.  ``raises``: it ends
        so.  ``refusing``: it shows alternatives, of which some are refused.  ``lines``: it prints
        for ever, and is ended after so many lines.
        """
        code = self.blocks[self.played]
        self.played += 1
        for text, other in self.instead.items():
            code = code.replace(text, other)
        self.limit = len(self.lines) + lines if lines else 0
        if refusing is not None:
            await self._alternatives(code, refusing)
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                if until is None:
                    await self._run(code)
                else:
                    await self._run_until(code, until)
        except Enough:
            assert lines or raises is Enough
        except BaseException as error:
            if raises is None or not isinstance(error, raises):
                raise
        else:
            assert raises is None, f"the block raised no {raises}"
        self.limit = 0

    async def _run_until(self, code: str, until: Callable[[], Any]) -> None:
        async def is_over() -> Any:
            answer = task.done() or until()
            return await answer if inspect.isawaitable(answer) else answer

        self.stopping.clear()
        task = asyncio.create_task(self._run(code))
        try:
            await wait_until(is_over, PATIENCE_S)
        finally:
            self.stopping.set()
            await task

    async def _alternatives(self, code: str, refusing: type[Exception]) -> None:
        refused = 0
        statements = ast.parse(code).body
        for statement in statements:
            try:
                await self._run(ast.unparse(statement))
            except refusing:
                refused += 1
        assert 0 < refused < len(statements), f"{refused} of {len(statements)} were refused"

    async def _run(self, code: str) -> None:
        compiled = compile(
            code,
            "bank.py" if "bank.py" in code else "block.py",
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        if compiled.co_flags & inspect.CO_COROUTINE:
            await eval(compiled, self.names)
        else:
            await asyncio.to_thread(exec, compiled, self.names)

    def signals(self) -> type:
        """The signals of ``toril.run``, which hears real ones in a main thread only."""
        stopping = self.stopping

        class Signals(running._Signals):
            async def wait_for(self, number: int) -> None:
                await wait_until(lambda: number == 1 and stopping.is_set(), 10 * PATIENCE_S)

        return Signals
