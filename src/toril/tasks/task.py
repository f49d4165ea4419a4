"""A task: a function that can be called, or enqueued as a job with the same arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack

from toril.errors import InvalidOptionError
from toril.options import (
    OPTION_NAMES,
    Deduplication,
    JobOptions,
    NewJob,
    Schedule,
    new_job,
    refuse_unknown,
)
from toril.protocol import codec
from toril.tasks.calls import BlockingHandle, Call, Handle
from toril.tasks.references import Reference
from toril.tasks.signature import Signature

if TYPE_CHECKING:
    from toril.tasks.app import App

Q = ParamSpec("Q")
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_OF_ARGUMENTS = ("job_id", "lane", "deduplication")
"""The options that may be functions of the arguments."""


class TaskOptions(JobOptions, total=False):
    """What ``@app.task`` takes in addition to the options of a job."""

    lane: str | Callable[..., str | None] | None  # type: ignore[misc]
    job_id: str | Callable[..., str | None] | None  # type: ignore[misc]
    deduplication: Deduplication | Callable[..., Deduplication | None] | None  # type: ignore[misc]


class _Own(TypedDict, total=False):
    """What a task knows about itself."""

    name: str
    queue: str
    schedule: Schedule | None
    retry_on: tuple[type[BaseException], ...] | None
    give_up_on: tuple[type[BaseException], ...]


class Task(Generic[Q, T, P, R]):
    """A function of an app; made by ``@app.task``.

    Calling it calls the function.  ``enqueue`` sends the arguments to a worker instead.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        signature: Signature,
        options: Mapping[str, Any],
        **own: Unpack[_Own],
    ) -> None:
        self.app = app
        self.function = function
        self.signature = signature
        self.name = own["name"]
        self.queue_name = own["queue"]
        self.schedule = own.get("schedule")
        self.retry_on = own.get("retry_on")
        self.give_up_on = own.get("give_up_on", ())
        self.undoing: Task[..., Any, ..., Any] | None = None
        self._declared: Task[..., Any, ..., Any] = self
        """What `using` made others of: its undo may be declared after them."""
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", self.name)
        self.__qualname__ = getattr(function, "__qualname__", self.name)
        self.__module__ = function.__module__
        self.__wrapped__ = function
        self._set_options(options)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} in queue {self.queue_name!r}>"

    def __call__(self, /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        result: T = self.function(*args, **kwargs)
        return result

    # ------------------------------------------------------------------ enqueueing

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Add a job that calls the function with these arguments; returns once the server has it.

        Raises ``ArgumentsError``, and adds nothing, if they do not fit the annotations.
        """
        if self.app.watches_enqueue:
            return await self.app.enqueue(self.call(*args, **kwargs))
        arguments = self.signature.bind(args, kwargs)
        data = self.signature.write(arguments)
        queue = self.app._queue(self.queue_name)
        # The same as queue.add without building the returned job, which is a tenth of the call.
        job = new_job(self.name, data, self._options_for(arguments), {})
        added = await queue.adder.send(queue.adder.prepare(job))
        return Handle(queue, added.id, self.signature, duplicated=added.is_duplicate)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value: for ``enqueue_many``, a scheduler, a flow, a group, the outbox."""
        arguments = self.signature.bind(args, kwargs)
        references = {
            name: value for name, value in arguments.items() if isinstance(value, Reference)
        }
        data = self.signature.write(arguments, later=frozenset(references))
        return Call(
            self.name,
            {**codec.decode(bytes(data)), **references},
            queue_name=self.queue_name,
            prefix=self.app.prefix,
            signature=self.signature,
            references=references,
            undoing=self._declared.undoing,
            **self._options_for(arguments),
        )

    def using(self, *, queue: str | None = None, **options: Unpack[JobOptions]) -> Task[Q, T, P, R]:
        """The same task with other options, for one call or many."""
        variant = copy.copy(self)
        if queue is not None:
            variant.queue_name = queue
        variant._set_options({**self._given, **options})
        return variant

    @property
    def fixed_options(self) -> Mapping[str, Any]:
        """Its options, without those that depend on the arguments."""
        return self._fixed

    @property
    def sync(self) -> BlockingTask[P, R]:
        """``task.sync.enqueue(…)`` for blocking code."""
        return BlockingTask(self)

    # ------------------------------------------------------------------ declaring

    def undo(self, function: F) -> F:
        """Decorator: register the function that undoes this task if its group fails.

        It takes the arguments of the task and, optionally, ``result``: what the task returned,
        or None if that is unknown.
        """
        if self.undoing is not None:
            raise InvalidOptionError(f"task {self.name!r} already has an undo: {self.undoing!r}")
        self.undoing = self.app.register_undo(self, function)
        return function

    def is_final(self, error: BaseException) -> bool:
        """Whether retrying after ``error`` is useless."""
        if isinstance(error, self.give_up_on):
            return True
        return self.retry_on is not None and not isinstance(error, self.retry_on)

    # ------------------------------------------------------------------ options

    def _set_options(self, options: Mapping[str, Any]) -> None:
        refuse_unknown(options, OPTION_NAMES, f"task {self.name!r}")
        self._given = dict(options)
        self._computed = {
            name: value for name in _OF_ARGUMENTS if callable(value := options.get(name))
        }
        self._fixed = {name: value for name, value in options.items() if name not in self._computed}
        NewJob(self.name, None, **self._fixed)

    def _options_for(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if not self._computed:
            return self._fixed
        known = self.signature.with_defaults(arguments)
        return self._fixed | {name: choose(**known) for name, choose in self._computed.items()}


class BlockingTask(Generic[P, R]):
    """A task for blocking code: a script, a thread, Django, Flask."""

    def __init__(self, task: Task[..., Any, P, R]) -> None:
        self._task = task

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingHandle[R]:
        """Add a job that calls the function with these arguments; returns once the server has it.

        The app's middleware is not called: its ``on_enqueue`` is ``async``.
        """
        call = self._task.call(*args, **kwargs)
        return self._task.app.enqueue_blocking(call)
