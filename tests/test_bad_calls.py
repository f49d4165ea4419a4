"""Wrong arguments end with an error of Toril's own, which names them: nothing raw from inside."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy

import toril
import toril.idempotency
import toril.outbox
import toril.steps
import toril.sync
from toril import Backoff, Deduplication, NewJob, Queue, TorilError
from toril.errors import InvalidInputError, InvalidOptionError, PayloadError


class Wrong:
    """Fits no annotation but ``Any``."""

    def __repr__(self) -> str:
        return "<wrong>"


class WrongOnes:
    """Holds nothing right, and can be read only once."""

    def __iter__(self) -> Iterator[Any]:
        yield Wrong()


NAIVE = datetime(2020, 1, 1)  # noqa: DTZ001 (a moment without its zone)
WRONG: list[Any] = [Wrong(), 123, -1, "text", "", b"bytes", 1.5, [], [Wrong()], {}, {1: 2}, True]
WRONG += [
    WrongOnes(),
    ("a", "b"),
    {1, 2},
    None,
    lambda *_: None,
    NAIVE,
    timedelta(milliseconds=1),
]

READ = {
    "Cancelled",
    "CompensationPayload",
    "Context",
    "DeadLetterMetadata",
    "Dependencies",
    "DependenciesCount",
    "Event",
    "FlowNode",
    "GroupEvent",
    "GroupInfo",
    "GroupMember",
    "GroupNode",
    "GroupState",
    "Handle",
    "Job",
    "JobScheduler",
    "Lane",
    "Metrics",
    "OutboxRow",
    "OutboxStats",
    "RelayMetrics",
    "StepCounts",
    "StepEvent",
    "TakenJob",
    "Task",
    "TaskMiddleware",
}
"""What users are given and do not make."""
INNER = {
    ("App", "moved_to"),
    ("App", "register_undo"),
    ("Router", "find"),
    ("Backoff", "wait_ms"),
    ("Connection", "check_slots"),
    ("Connection", "follow"),
    ("Connection", "run"),
    ("Connection", "run_all"),
    ("BaseConsumer", "claim"),
    ("BaseConsumer", "handle"),
    ("BaseConsumer", "has_claimed"),
    ("BaseConsumer", "on_error"),
    ("BaseConsumer", "on_success"),
    ("BaseConsumer", "process"),
    ("BaseConsumer", "release"),
}
"""Methods that Toril calls, or that only Toril has the arguments for."""
LASTING = {"run", "start", "run_once", "drain", "start_all", "get_next_job", "eager", "close"}
"""Calls that go on for long, or end what the others need, if their arguments are right."""


def arguments_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: one for name, one in parameters.items() if name not in ("self", "cls")}


GOOD = {
    "connection": None,
    "engine": sqlalchemy.create_engine("sqlite://"),
    "handler": lambda job: None,
    "target": None,
    "repeat": {"every": 1000},
    "function": lambda: None,
    "flow": toril.FlowJob("a", queue_name="q"),
    "payload": toril.steps.JobPayload("w", "s", {}),
}


def good_value(name: str, parameter: inspect.Parameter) -> Any:
    if name in GOOD:
        return GOOD[name]
    words = str(parameter.annotation)
    for start, value in (
        ("str", "text"),
        ("<class 'str'>", "text"),
        ("int", 1),
        ("Duration", 1),
        ("float", 1.0),
        ("Callable", lambda *_: None),
        ("Callback", lambda *_: None),
        ("Iterable", []),
        ("Mapping", {}),
    ):
        if words.startswith(start):
            return value
    return None


def calls_with_wrong_arguments(
    function: Callable[..., Any],
) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """For each parameter and each wrong value: the arguments of one call."""
    parameters = arguments_of(function)
    for wrong_name, wrong_parameter in parameters.items():
        for wrong in WRONG:
            if wrong is None and wrong_parameter.default is None:
                continue
            args: list[Any] = []
            kwargs: dict[str, Any] = {}
            if function.__name__.startswith("wait") and wrong_name != "timeout":
                kwargs["timeout"] = 1
            for name, one in parameters.items():
                if one.kind is one.VAR_POSITIONAL and name == wrong_name:
                    args.append(wrong)
                if one.kind is one.VAR_KEYWORD and name == wrong_name:
                    kwargs |= dict.fromkeys(("attempts", "delay", "name", "no_such"), wrong)
                if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                    continue
                if name != wrong_name and one.default is not one.empty:
                    continue
                value = wrong if name == wrong_name else good_value(name, one)
                is_named = one.default is not one.empty and one.kind is not one.POSITIONAL_ONLY
                if one.kind is one.KEYWORD_ONLY or is_named:
                    kwargs[name] = value
                else:
                    args.append(value)
            if wrong_parameter.kind is inspect.Parameter.VAR_KEYWORD:
                for option in tuple(kwargs):
                    if option not in parameters:
                        yield (
                            f"{option}={wrong!r}",
                            args,
                            {
                                key: value
                                for key, value in kwargs.items()
                                if key == option or key in parameters
                            },
                        )
                continue
            yield f"{wrong_name}={wrong!r}", args, kwargs


async def complaint(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a call raised that is none of Toril's errors, and no wrong call to Python itself."""
    try:
        async with asyncio.timeout(60):
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, toril.Queue | toril.FlowProducer | toril.QueueEvents):
                await result.close()
    except TorilError:
        return None
    except TypeError as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        words = str(error)
        is_signature = "argument" in words and ("missing" in words or "unexpected keyword" in words)
        return None if is_signature or "multiple values" in words else error
    except Exception as error:
        return error
    return None


def public_methods(owner: type) -> list[str]:
    return [
        name
        for name in dir(owner)
        if not name.startswith("_")
        and inspect.isroutine(getattr(owner, name))
        and (owner.__name__, name) not in INNER
        and name not in LASTING
        and not isinstance(inspect.getattr_static(owner, name), property)
        and arguments_of(getattr(owner, name))
    ]


async def complaints_about(
    what: str, function: Callable[..., Any], *, in_thread: bool = False
) -> list[str]:
    found = []
    for words, args, kwargs in calls_with_wrong_arguments(function):
        error = await complaint(function, args, kwargs)
        if error is not None:
            found.append(f"{what}({words}): {type(error).__name__}: {error}")
    return found


MODULES = (toril, toril.steps, toril.outbox, toril.idempotency, toril.sync)
MADE = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module in MODULES
    for name in module.__all__
    if name not in READ
    and callable(getattr(module, name))
    and not name.endswith("Error")
    and name not in ("run", "close_all_queues")
]


@pytest.mark.parametrize("maker", MADE)
async def test_what_users_make_refuses_wrong_arguments(maker: Any):
    if inspect.isabstract(maker):
        maker = type(maker.__name__, (maker,), {"handle": handle_nothing})
    assert await complaints_about(maker.__name__, maker) == []


@pytest.mark.no_audit
@pytest.mark.parametrize(
    "owner",
    [
        *("Queue", "FlowProducer", "QueueEvents", "ManualWorker", "Worker", "App", "Router"),
        *("Relay", "Outbox", "Producer", "ConsumerRegistrar", "Backoff", "Keep", "Parent"),
        *("TakenJob", "Handle", "sync.Queue", "sync.FlowProducer", "sync.QueueEvents"),
        "sync.ManualWorker",
    ],
)
async def test_every_method_refuses_wrong_arguments(owner: str, url: str, prefix: str):
    one, close = await make(owner, url, prefix)
    found = []
    try:
        for name in public_methods(type(one)):
            found += await complaints_about(f"{owner}.{name}", getattr(one, name))
    finally:
        result = close()
        if inspect.isawaitable(result):
            await result

    assert found == []


async def make(owner: str, url: str, prefix: str) -> tuple[Any, Callable[[], Any]]:
    """One of each class with methods, and what closes it."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    if owner in ("Queue", "QueueEvents", "ManualWorker"):
        one = getattr(toril, owner)("queue", **options)
        return one, one.close
    if owner == "FlowProducer":
        flow = toril.FlowProducer(**options)
        return flow, flow.close
    if owner.startswith("sync."):
        maker = getattr(toril.sync, owner[5:])
        one = maker(**options) if owner == "sync.FlowProducer" else maker("queue", **options)
        return one, one.close
    if owner == "Worker":
        return toril.Worker("queue", print, **options), lambda: None
    if owner == "App":
        app = toril.App(**options)
        return app, app.close
    if owner in ("Relay", "Outbox"):
        outbox = toril.outbox.Outbox(sqlalchemy.MetaData())
        engine = sqlalchemy.create_engine(
            "sqlite://",
            poolclass=sqlalchemy.StaticPool,
            connect_args={"check_same_thread": False},
        )
        outbox.table.create(engine)
        if owner == "Outbox":
            return outbox, lambda: None
        return toril.outbox.Relay(engine, outbox, **options), lambda: None
    if owner == "Producer":
        queue = Queue("queue", **options)
        return toril.steps.Producer(queue), queue.close
    if owner == "TakenJob":
        queue = Queue("queue", **options)
        await queue.add("a")
        await queue.close()
        worker = toril.ManualWorker("queue", **options)
        taken = await worker.get_next_job(timeout=60_000)
        return taken, worker.close
    if owner == "Handle":
        app = toril.App(**options)
        handle = await app.task(print_nothing).enqueue()
        return handle, app.close
    makers: dict[str, Callable[[], Any]] = {
        "Router": toril.Router,
        "ConsumerRegistrar": toril.steps.ConsumerRegistrar,
        "Backoff": lambda: Backoff("fixed"),
        "Keep": toril.Keep,
        "Parent": lambda: toril.Parent("1", "queue"),
    }
    return makers[owner](), lambda: None


def print_nothing() -> None: ...


async def handle_nothing(self: Any, payload: Any, job: Any) -> None: ...


# ---------------------------------------------------------------------- the words of the errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backoff": "exponential"}, r"backoff='exponential'.*Backoff\.exponential\(1000\)"),
        ({"job_id": 123}, r"job_id=123.*'order-123'"),
        ({"run_at": 1_800_000_000}, r"run_at=1800000000.*1970.*\* 1000"),
        ({"run_at": 1_800_000_000.5}, r"run_at=1800000000\.5.*milliseconds.*datetime"),
        ({"deduplication": 5}, r"deduplication=5.*Deduplication\("),
        ({"deduplication": {"idd": "x"}}, r"deduplication=.*'idd'.*did you mean 'id'"),
        ({"lifo": "yes"}, r"lifo='yes'"),
        ({"remove_on_complete": "all"}, r"remove_on_complete='all'"),
        ({"telemetry": 5}, "telemetry=5"),
        ({"timeout": 1.5}, r"timeout=1\.5"),
    ],
)
async def test_a_wrong_option_is_named_with_what_to_write(
    options: dict[str, Any], words: str, url: str, prefix: str
):
    async with Queue("queue", connection=url, prefix=prefix) as queue:
        with pytest.raises(InvalidInputError, match=words):
            await queue.add("a", **options)
        assert not any((await queue.get_job_counts()).values())


async def test_a_template_and_a_job_of_a_bulk_must_be_jobs(url: str, prefix: str):
    async with Queue("queue", connection=url, prefix=prefix) as queue:
        with pytest.raises(InvalidOptionError, match=r"template=\{\}.*NewJob\("):
            await queue.upsert_job_scheduler("x", every=1000, template={})  # type: ignore[arg-type]
        with pytest.raises(InvalidOptionError, match=r"\('a', \{\}\).*NewJob\('a', \{\}\)"):
            await queue.add_bulk([NewJob("b"), ("a", {})])  # type: ignore[list-item]
        assert not any((await queue.get_job_counts()).values())


async def test_an_id_alone_is_a_deduplication(url: str, prefix: str):
    assert NewJob("a", deduplication="id").normalised("deduplication") == Deduplication("id")
    described = NewJob("a", deduplication={"id": "b", "ttl": 5})
    assert described.normalised("deduplication") == Deduplication("b", 5)
    async with Queue("queue", connection=url, prefix=prefix) as queue:
        first = await queue.add("a", deduplication="id")
        second = await queue.add("a", deduplication="id")

    assert (second.id, second.duplicated) == (first.id, True)


async def test_a_job_may_be_waited_for_itself(url: str, prefix: str):
    async with Queue("queue", connection=url, prefix=prefix) as queue:
        job = await queue.add("a")
        async with toril.ManualWorker("queue", connection=url, prefix=prefix) as worker:
            taken = await worker.get_next_job(timeout=60_000)
            assert taken is not None
            await taken.complete(5)

        assert await queue.wait_for(job, timeout=60_000) == 5
        with pytest.raises(InvalidInputError, match=r"job_id=.*write job_id=job\.id"):
            await queue.get_state(job)  # type: ignore[arg-type]
    with toril.sync.Queue("queue", connection=url, prefix=prefix) as blocking:
        assert blocking.wait_for(job, timeout=60_000) == 5


async def test_data_becomes_what_json_makes_of_it(url: str, prefix: str):
    """A set is a list, bytes are base64, keys are texts: each has one meaning."""
    async with Queue("queue", connection=url, prefix=prefix) as queue:
        job = await queue.add("a", {"set": {1}, "bytes": b"\x00\xff", 5: "five"})
        stored = await queue.get_job(job.id)
        with pytest.raises(PayloadError, match="the data of job 'a'"):
            await queue.add("a", {"x": Wrong()})
        with pytest.raises(PayloadError, match="the data of job 'a'"):
            await queue.add("a", {("a", "b"): 1})

    assert stored is not None
    assert stored.data == {"set": [1], "bytes": "AP8=", "5": "five"}


async def test_a_moment_needs_its_zone():
    with pytest.raises(InvalidOptionError, match="time zone"):
        NewJob("a", run_at=NAIVE)
    job = NewJob("a", run_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert job.normalised("run_at") == 1893456000000


def test_no_annotation_of_a_checked_method_is_beyond_reach():
    """An annotation that cannot be looked up checks nothing, and nobody would notice."""
    from toril import checking

    for owner in (Queue, toril.FlowProducer, toril.ManualWorker, toril.Worker, toril.sync.Queue):
        for name in public_methods(owner):
            method = inspect.unwrap(getattr(owner, name))
            for parameter in arguments_of(method).values():
                words = str(parameter.annotation)
                if words.startswith("Unpack"):
                    continue
                resolved = checking._resolve(parameter.annotation, method)
                assert resolved is not typing.Any or words == "Any", (owner, name, parameter)
