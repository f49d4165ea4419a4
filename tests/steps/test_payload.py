"""Payloads, options and ids: what a step is on the wire (STEP-01, -02, -06, -07, C-25, C-27)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from toril.errors import InvalidNameError, PayloadError, PayloadMismatchError
from toril.options import Backoff
from toril.protocol import codec
from toril.protocol.job import StoredJob
from toril.protocol.keys import check_job_id
from toril.steps import EnqueueOptions, JobPayload
from toril.steps.enqueueing import step_job
from toril.steps.payload import decode


@dataclass
class Page:
    url: str
    depth: int = 0


class Row(msgspec.Struct):
    number: int


def stored(data: bytes, **fields: bytes) -> StoredJob:
    raw = {name.encode(): value for name, value in fields.items()}
    return StoredJob("bull", "q", "1", {b"name": b"step", b"data": data, **raw})


def make(payload: JobPayload[Any], options: EnqueueOptions | None = None, **defaults: Any) -> Any:
    return step_job(payload, options, defaults, now_ms=1700, chance="abc")


def test_a_payload_has_the_wire_names_and_leaves_out_an_attempt_not_given():
    """STEP-01: workflowId, stepId, data, attempt."""
    text = codec.encode(JobPayload("w1", "fetch", {"n": 1}), "a payload")
    with_attempt = codec.encode(JobPayload("w1", "fetch", None, 2), "a payload")

    assert json.loads(text) == {"workflowId": "w1", "stepId": "fetch", "data": {"n": 1}}
    assert json.loads(with_attempt)["attempt"] == 2
    assert msgspec.json.decode(text, type=JobPayload[dict]) == JobPayload("w1", "fetch", {"n": 1})


def test_the_attempt_is_that_of_the_queue_whatever_was_written():
    """C-27: one truth about attempts; the wire's field is accepted and not believed."""
    job = stored(b'{"workflowId":"w","stepId":"s","data":1,"attempt":9}', atm=b"2")

    assert decode(job, Any).attempt == 3


@pytest.mark.parametrize(
    ("data_type", "text", "expected"),
    [
        (Page, b'{"url":"u"}', Page("u")),
        (Row, b'{"number":3}', Row(3)),
        (list[int], b"[1,2]", [1, 2]),
        (Any, b"null", None),
        (Any, b'{"text":"cut \\ud83d","\\udfff":1}', {"text": "cut \ud83d", "\udfff": 1}),
        (Page, b'{"url":"cut \\ud83d"}', Page("cut \ud83d")),
    ],
)
def test_data_is_decoded_by_type(data_type, text, expected):
    job = stored(b'{"workflowId":"w","stepId":"s","data":' + text + b"}")

    assert decode(job, data_type).data == expected


def test_a_model_that_validates_aliases_comes_out_with_its_values():
    """Regression: it goes in under the names of its fields, which were not found."""
    import pydantic

    class Order(pydantic.BaseModel):
        order_id: int = pydantic.Field(0, alias="orderId")

    order = Order.model_validate({"orderId": 7})

    for data in (order, {"orderId": 7}):
        text = codec.encode(JobPayload("w", "s", data), "a payload")
        assert decode(stored(text), Order).data == order


def test_pydantic_models_go_in_and_come_out():
    import pydantic

    class Order(pydantic.BaseModel):
        number: int

    text = codec.encode(JobPayload("w", "s", Order(number=5)), "a payload")

    assert decode(stored(text), Order).data == Order(number=5)
    with pytest.raises(PayloadMismatchError, match="number: Input should be a valid integer"):
        decode(stored(text.replace(b"5", b'"five"')), Order)


def test_a_model_with_nan_is_refused_like_any_other_data():
    import pydantic

    class Reading(pydantic.BaseModel):
        value: float

    with pytest.raises(PayloadError, match="nan"):
        codec.encode(Reading(value=float("nan")), "data")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b'{"workflowId":"w","stepId":"s","data":{"url":1}}', r"\$\.data\.url"),
        (b'{"workflowId":"w","stepId":"s","data":{}}', "url"),
        (b'{"stepId":"s","data":{"url":"u"}}', "workflowId"),
        (b'{"workflowId":"w","stepId":7,"data":{"url":"u"}}', "stepId"),
        (b"[1]", "Expected `object`"),
    ],
)
def test_a_payload_that_does_not_fit_names_the_field(text, named):
    with pytest.raises(PayloadMismatchError, match=named):
        decode(stored(text), Page)


@pytest.mark.parametrize("ids", [("", "s"), ("w", ""), (None, "s"), ("w", 5)])
def test_a_step_without_workflow_or_step_is_refused(ids):
    with pytest.raises(InvalidNameError, match="_id="):
        make(JobPayload(*ids, data=None))


def test_defaults_are_those_of_the_source():
    """STEP-05, STEP-07, RULES-05, RULES-08: 3 attempts, exponential 1 s with jitter, bounded."""
    job = make(JobPayload("w1", "fetch", None))

    assert job.name == "step"
    assert job.attempts == 3
    assert (job.backoff.type, job.backoff.delay) == ("exponential", 1000)
    assert job.backoff.jitter > 0
    assert (job.remove_on_complete, job.remove_on_fail) == (1000, 500)


def test_options_go_before_the_queues_defaults_and_those_before_the_steps():
    """STEP-02, STEP-03: every option reaches the job."""
    options = EnqueueOptions(
        job_id="mine",
        attempts=7,
        delay_ms=1500,
        backoff=Backoff.fixed(10),
        remove_on_complete=True,
        remove_on_fail=5,
        idempotency_key="order-1",
    )

    job = make(JobPayload("w", "s", None), options, attempts=9)
    by_queue = make(JobPayload("w", "s", None), None, attempts=9, priority=4)

    assert (job.job_id, job.attempts, job.delay) == ("mine", 7, 1500)
    assert job.backoff == Backoff.fixed(10)
    assert (job.remove_on_complete, job.remove_on_fail) == (True, 5)
    assert job.idempotency_key == "order-1"
    assert (by_queue.attempts, by_queue.priority) == (9, 4)
    assert by_queue.remove_on_fail == 500


def test_the_default_id_tells_workflow_step_time_and_chance():
    """STEP-06, C-25."""
    job = make(JobPayload("w1", "fetch", None))

    assert job.job_id == "w1-fetch-1700-abc"
    assert job.idempotency_key == job.job_id


@pytest.mark.parametrize("name", ["a:b", "with space", "ключ", "x" * 500, "7"])
def test_any_workflow_id_gives_a_legal_job_id(name):
    """C-25: ``:`` and white space are illegal in ids."""
    check_job_id(make(JobPayload(name, name, None)).job_id)


def test_two_steps_may_have_one_idempotency_key():
    """The key of the order: the second step is not taken for the first."""
    key = EnqueueOptions(idempotency_key="order-1")
    jobs = [
        step_job(JobPayload(workflow, step, {}), key, {}, now_ms=1, chance="a")
        for workflow, step in (("w", "charge"), ("w", "mail"), ("v", "charge"), ("w", "charge"))
    ]

    assert len({job.job_id for job in jobs}) == 3
    assert jobs[0].job_id == jobs[3].job_id
    assert {job.idempotency_key for job in jobs} == {"order-1"}


def test_with_an_idempotency_key_the_id_is_derived_from_it():
    """C-25, STEP-13: the same key is the same job, at any time and of any characters."""
    key = EnqueueOptions(idempotency_key="order:1 ☃")
    payload = JobPayload("w", "s", None)

    first = step_job(payload, key, {}, now_ms=1, chance="a")
    second = step_job(payload, key, {}, now_ms=2, chance="b")
    other = step_job(payload, EnqueueOptions(idempotency_key="2"), {}, now_ms=1, chance="a")

    check_job_id(first.job_id)
    assert first.job_id == second.job_id != other.job_id
    assert first.idempotency_key == second.idempotency_key == "order:1 ☃"


def test_every_step_has_a_key_and_an_id_given_by_hand_does_not_make_two_steps_one():
    """C-28: the key is mandatory; an id that is used again for other work has another key."""
    payload = JobPayload("w", "s", None)
    options = EnqueueOptions(job_id="daily")

    first = step_job(payload, options, {}, now_ms=1, chance="a")
    second = step_job(payload, options, {}, now_ms=2, chance="b")

    assert first.job_id == second.job_id == "daily"
    assert first.idempotency_key != second.idempotency_key
