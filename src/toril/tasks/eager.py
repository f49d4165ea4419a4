"""Tasks that run immediately, where they are enqueued: no server and no worker, for tests."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from typing import Any, TypeVar

import msgspec

from toril.errors import JobFailedError, JobNotInStateError
from toril.options import CHILD_POLICIES, OPTION_NAMES, Duration
from toril.protocol import adding, codec
from toril.protocol.cancelling import Cancelled
from toril.protocol.settling import reason_of
from toril.tasks.calls import BlockingHandle, Call, Handle
from toril.tasks.recording import TestContext, make_context

R = TypeVar("R")
_numbers = itertools.count(1)
_TOLD = OPTION_NAMES - {"job_id", "parent", "timestamp", *CHILD_POLICIES}
"""What the context of a call has of its options."""


class _Outcome:
    """The outcome of a call that ran immediately."""

    def __init__(self, context: TestContext, value: Any, error: BaseException | None) -> None:
        self.context = context
        self._value = value
        self._error = error

    @property
    def state(self) -> str:
        return "completed" if self._error is None else "failed"

    def result(self) -> Any:
        """The value, or the failure as ``wait_for`` raises it."""
        if self._error is None:
            return self._value
        reason = reason_of(self._error, codec.words_of(self._error))
        raise JobFailedError(self.context.id, reason) from self._error

    def cancel(self) -> Cancelled:
        raise JobNotInStateError(f"job {self.context.id!r} has finished; it ran immediately")


class EagerHandle(Handle[R]):
    """The ``Handle`` of a call that has already run; ``context`` is what its function received."""

    __slots__ = ("_outcome", "context")

    def __init__(self, outcome: _Outcome) -> None:
        self.id = outcome.context.id
        self.duplicated = False
        self.context = outcome.context
        self._outcome = outcome

    @property
    def queue_name(self) -> str:
        return self.context.queue_name

    async def result(self, timeout: Duration | None = None) -> R:
        value: R = self._outcome.result()
        return value

    async def state(self) -> str:
        return self._outcome.state

    async def job(self) -> None:
        """None: there is no job on any server."""

    async def cancel(self, reason: str | None = None) -> Cancelled:
        return self._outcome.cancel()


class BlockingEagerHandle(BlockingHandle[R]):
    """``EagerHandle`` for blocking code."""

    __slots__ = ("_outcome", "context")

    def __init__(self, outcome: _Outcome) -> None:
        self.id = outcome.context.id
        self.duplicated = False
        self.context = outcome.context
        self._outcome = outcome

    @property
    def queue_name(self) -> str:
        return self.context.queue_name

    def result(self, timeout: Duration | None = None) -> R:
        value: R = self._outcome.result()
        return value

    def state(self) -> str:
        return self._outcome.state

    def job(self) -> None:
        """None: there is no job on any server."""

    def cancel(self, reason: str | None = None) -> Cancelled:
        return self._outcome.cancel()


async def run_now(call: Call[R], task: Any, state: Any, *, raises: bool) -> Handle[R]:
    """Run a call here; a plain function runs in a thread, as it would in a worker."""
    context, arguments = _prepare(call, task, state)
    value: Any = None
    failure: BaseException | None = None
    try:
        if inspect.iscoroutinefunction(task.function):
            value = await task.function(**arguments)
        else:
            value = await asyncio.to_thread(task.function, **arguments)
        value = _as_read(task, value)
    except Exception as error:
        if raises:
            raise
        failure = error
    return EagerHandle(_Outcome(context, value, failure))


def run_blocking(call: Call[R], task: Any, state: Any, *, raises: bool) -> BlockingHandle[R]:
    """``run_now`` for blocking code."""
    context, arguments = _prepare(call, task, state)
    value: Any = None
    failure: BaseException | None = None
    try:
        value = task.function(**arguments)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        value = _as_read(task, value)
    except Exception as error:
        if raises:
            raise
        failure = error
    return BlockingEagerHandle(_Outcome(context, value, failure))


def _as_read(task: Any, value: Any) -> Any:
    """What the caller would get from a server, which takes JSON only."""
    task.signature.check_result(value)
    text = codec.encode(value, f"the result of task {task.name!r}")
    return task.signature.read_result(codec.decode(text))


def _prepare(call: Call[Any], task: Any, state: Any) -> tuple[TestContext, dict[str, Any]]:
    """Check the call as a queue would, and convert the arguments to JSON and back."""
    prepared = adding.prepare(call, f"eager-{next(_numbers)}")
    told = {name: value for name in _TOLD if (value := getattr(call, name)) is not None}
    context = make_context(
        call.name,
        msgspec.Raw(prepared.data),
        job_id=prepared.id,
        queue_name=call.queue_name,
        state=state,
        **told,
    )
    arguments = task.signature.read(context.data_text)
    if task.signature.context is not None:
        arguments[task.signature.context] = context
    return context, arguments
