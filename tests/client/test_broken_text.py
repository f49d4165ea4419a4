"""Text that is no Unicode (half a surrogate pair) is refused before it is sent, and by its name."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from toril import (
    Backoff,
    Deduplication,
    FlowJob,
    FlowProducer,
    GroupJob,
    InvalidInputError,
    NewJob,
    Parent,
    Queue,
    QueueEvents,
    Worker,
)

BROKEN = "a\ud800b"
FITTING: dict[str, Any] = {
    "name": "name",
    "job_id": "some-id",
    "group_id": "some-group",
    "member": "some-member",
    "lane": "some-lane",
    "priority": 1,
    "delay": 1,
    "data": {},
    "progress": 1,
    "row": "a row",
    "reason": "why",
    "note": "why",
    "token": "token",
    "duration": 1000,
    "scheduler_id": "some-scheduler",
    "deduplication_id": "some-deduplication",
    "weight": 1,
    "concurrency": 1,
    "limit": None,
    "repeat": {"every": 1000},
    "kind": "completed",
    "state": "failed",
    "states": "failed",
}
NO_NAMES = {"kind", "state", "states", "token", "resume"}
"""What is one of a few words is refused as another word; a token is compared and never stored."""


def text_arguments() -> list[tuple[str, str]]:
    found = []
    for method, function in inspect.getmembers(Queue, inspect.isfunction):
        if method.startswith("_"):
            continue
        for name, parameter in inspect.signature(function).parameters.items():
            if "str" in str(parameter.annotation).replace("Mapping[str", "").split(" | "):
                found.append((method, name))
    return found


@pytest.mark.parametrize(("method", "argument"), text_arguments())
async def test_every_text_of_a_queue_is_looked_at(method, argument, url, prefix):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        call = getattr(queue, method)
        parameters = inspect.signature(call).parameters
        given = {
            name: FITTING[name]
            for name, parameter in parameters.items()
            if parameter.default is inspect.Parameter.empty
            and parameter.kind is not inspect.Parameter.VAR_KEYWORD
            and parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        }
        given[argument] = BROKEN
        if method == "upsert_job_scheduler" and argument != "cron":
            given["cron"] = "* * * * *"
        if parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL:
            coroutine = call(BROKEN)
        else:
            coroutine = call(**given)
        with pytest.raises(InvalidInputError) as refusal:
            await coroutine
        if argument not in NO_NAMES:
            names = [argument, argument.replace("_", " "), "the id of a job"]
            if method == "publish_event":
                names += ["event", "jobId"]
            assert any(name in str(refusal.value) for name in names)


OPTIONS = {
    "job id": lambda: NewJob("n", job_id=BROKEN),
    "lane": lambda: NewJob("n", lane=BROKEN),
    "idempotency_key": lambda: NewJob("n", idempotency_key=BROKEN),
    "telemetry": lambda: NewJob("n", telemetry=BROKEN),
    "deduplication": lambda: NewJob("n", deduplication=Deduplication(BROKEN)),
    "backoff": lambda: NewJob("n", backoff=Backoff(BROKEN, 1)),
    "job name": lambda: NewJob(BROKEN),
    "the id of a job": lambda: NewJob("n", parent=Parent(BROKEN, "q")),
    "queue name": lambda: NewJob("n", parent=Parent("p", BROKEN)),
    "prefix": lambda: NewJob("n", parent=Parent("p", "q", BROKEN)),
}


@pytest.mark.parametrize("option", OPTIONS)
async def test_a_broken_text_in_one_job_hurts_no_other_of_its_batch(option, url, prefix):
    async with Queue("q", connection=url, prefix=prefix) as queue:

        async def add_broken() -> None:
            job = OPTIONS[option]()
            await queue.add_bulk([job])

        adds = [queue.add(f"n{number}") for number in range(49)]
        answers = await asyncio.gather(*adds[:25], add_broken(), *adds[25:], return_exceptions=True)

        (refusal,) = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(refusal, InvalidInputError), repr(refusal)
        assert option in str(refusal)
        assert await queue.get_waiting_count() == 49


async def test_a_broken_name_hurts_no_other_add(url, prefix):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        answers = await asyncio.gather(
            *(queue.add(BROKEN if n == 7 else "fine") for n in range(50)), return_exceptions=True
        )

        assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [7]
        assert isinstance(answers[7], InvalidInputError)


@pytest.mark.parametrize(
    "make",
    [
        lambda url: Queue(BROKEN, connection=url),
        lambda url: Queue("q", connection=url, prefix=BROKEN),
        lambda url: QueueEvents(BROKEN, connection=url),
        lambda url: QueueEvents("q", connection=url, prefix=BROKEN),
        lambda url: FlowProducer(connection=url, prefix=BROKEN),
        lambda url: Worker(BROKEN, print, connection=url),
        lambda url: Worker("q", print, connection=url, prefix=BROKEN),
        lambda url: Worker("q", print, connection=url, worker_name=BROKEN),
        lambda url: Worker("q", print, connection=url, dead_letter_queue=BROKEN),
        lambda url: FlowJob("n", queue_name=BROKEN),
        lambda url: FlowJob("n", queue_name="q", prefix=BROKEN),
        lambda url: GroupJob(BROKEN, {}, queue_name="q"),
    ],
)
async def test_whoever_is_made_looks_at_its_texts(make, url):
    async def use() -> None:
        made = make(url)
        if isinstance(made, FlowJob):
            async with FlowProducer(connection=url) as flows:
                await flows.add(made)

    with pytest.raises(InvalidInputError):
        await use()
