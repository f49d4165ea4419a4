"""JSON and the wire's names."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from tests.helpers import name_of
from toril.client.ids import new_job_id
from toril.errors import PayloadError, PayloadTooLargeError
from toril.options import Backoff, Deduplication, Keep, NewJob
from toril.protocol import codec
from toril.protocol.job import Job, StoredJob, fields_of


@dataclasses.dataclass
class Point:
    x: float


class Struct(msgspec.Struct):
    x: float


class Model:
    def model_dump(self, mode: str):
        return {"mode": mode}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'),
        (9007199254740993, "9007199254740993"),
        (2**70, str(2**70)),
        ([2**70, "x"], f'[{2**70},"x"]'),
        (Point(1.5), '{"x":1.5}'),
        (Struct(1.5), '{"x":1.5}'),
        (Model(), '{"mode":"json"}'),
        ([], "[]"),
        ({"s": "null"}, '{"s":"null"}'),
    ],
    ids=name_of,
)
def test_values_are_written_as_strict_json(value, text):
    assert codec.encode(value, "the data") == text.encode()


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "value",
    [object(), NAN, [INFINITY], {"a": {"b": -INFINITY}}, Point(NAN), Struct(NAN), {"a": {NAN}},
     {(1, 2): 3}, ["\ud800", NAN], [2**70, NAN], [2**70, object()]],
    ids=name_of,
)  # fmt: skip
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(PayloadError, match="the data"):
        codec.encode(value, "the data")


def test_what_is_too_deep_is_refused():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PayloadError):
        codec.encode(deep, "the data")


def test_a_size_limit():
    assert codec.encode_limited("abc", 5, "the data") == b'"abc"'
    assert codec.encode_limited("abc", None, "the data") == b'"abc"'
    with pytest.raises(PayloadTooLargeError, match="takes 6 bytes as JSON, and its"):
        codec.encode_limited("abcd", 5, "the data")


@pytest.mark.parametrize(
    ("text", "value"),
    [(None, "default"), (b"[]", []), (str(2**70).encode(), 2**70), (b'{"a":NaN}', None)],
)
def test_texts_are_read(text, value):
    read = codec.decode(text, "default")

    assert read == value or text == b'{"a":NaN}'


def test_what_is_no_json_may_be_text():
    assert codec.decode_or_text(b"[1]") == [1]
    assert codec.decode_or_text(b"plain words") == "plain words"


@pytest.mark.parametrize(
    ("value", "number"),
    [(None, None), (5, 5), (b"5", 5), (b"5.9", 5), (b"x", None), (b"inf", None), (b"", None)],
)
def test_numbers(value, number):
    assert codec.number(value) == number


def test_raw_texts():
    assert codec.text(None) == ""
    assert codec.text(b"\xff") == "\ufffd"
    assert codec.reason('"in quotes"') == "in quotes"
    assert codec.reason('"') == '"'
    assert codec.reason('"a \\"b\\" c\\u00e9"') == 'a "b" c\u00e9'
    assert codec.reason('"amount" must be one of "1", "2"') == '"amount" must be one of "1", "2"'
    assert codec.reason('"\u00e9"') == '"\u00e9"'


@pytest.mark.parametrize(
    ("options", "wire"),
    [
        ({}, {"attempts": 0}),
        ({"attempts": 3}, {"attempts": 3}),
        ({"job_id": "a", "delay": 5, "priority": 1, "lifo": True},
         {"attempts": 0, "jobId": "a", "delay": 5, "priority": 1, "lifo": True}),
        ({"backoff": 5}, {"attempts": 0, "backoff": {"type": "fixed", "delay": 5}}),
        ({"backoff": Backoff("exponential", 5, 0.5)},
         {"attempts": 0, "backoff": {"type": "exponential", "delay": 5, "jitter": 0.5}}),
        ({"remove_on_complete": True, "remove_on_fail": 7},
         {"attempts": 0, "removeOnComplete": True, "removeOnFail": 7}),
        ({"remove_on_complete": False}, {"attempts": 0, "removeOnComplete": False}),
        ({"remove_on_complete": Keep(age=1500, count=2, limit=3)},
         {"attempts": 0, "removeOnComplete": {"count": 2, "age": 2, "limit": 3}}),
        ({"keep_logs": 1, "stack_trace_limit": 2, "size_limit": 3, "timeout": 4},
         {"attempts": 0, "kl": 1, "stackTraceLimit": 2, "sizeLimit": 3, "timeoutMs": 4}),
        ({"idempotency_key": "k", "telemetry": "t", "timestamp": 9},
         {"attempts": 0, "idempotencyKey": "k", "tm": "t", "timestamp": 9}),
        ({"deduplication": Deduplication("d", ttl=5, extend=True)},
         {"attempts": 0, "de": {"id": "d", "ttl": 5, "extend": True}}),
        ({"deduplication": Deduplication("d", keep_last_if_active=True)},
         {"attempts": 0, "de": {"id": "d", "keepLastIfActive": True}}),
    ],
    ids=name_of,
)  # fmt: skip
def test_options_on_the_wire(options, wire):
    assert json.loads(codec.encode_options(NewJob("x", **options))) == wire


def test_plain_options_cost_nothing():
    assert codec.encode_options(NewJob("x")) is codec.PLAIN_OPTIONS


def read(**raw) -> codec.JobOpts:
    return codec.decode_options(json.dumps(raw).encode())


@pytest.mark.parametrize(
    ("raw", "name", "value"),
    [
        ({}, "attempts", 0),
        ({"attempts": "many"}, "attempts", 0),
        ({"attempts": 3.0}, "attempts", 3),
        ({"delay": 5}, "delay", 5),
        ({"priority": True}, "priority", 1),
        ({"lifo": 1}, "lifo", True),
        ({"jobId": "a"}, "job_id", "a"),
        ({}, "timeout", None),
        ({"timeoutMs": 0}, "timeout", None),
        ({"timeoutMs": 5}, "timeout", 5),
        ({"timeout": 5}, "timeout", None),
        ({"kl": 5}, "keep_logs", 5),
        ({"keepLogs": 5}, "keep_logs", 5),
        ({}, "keep_logs", None),
        ({"stackTraceLimit": 5}, "stack_trace_limit", 5),
        ({}, "stack_trace_limit", None),
        ({"idempotencyKey": "k"}, "idempotency_key", "k"),
        ({"removeOnComplete": 5}, "remove_on_complete", 5),
        ({"removeOnFail": True}, "remove_on_fail", True),
        ({"tm": "t"}, "telemetry", "t"),
        ({"backoff": 5}, "backoff", Backoff("fixed", 5)),
        ({"backoff": 0}, "backoff", None),
        ({"backoff": {"type": "mine", "delay": -5, "jitter": 7}}, "backoff", Backoff("mine")),
        ({"backoff": {"delay": 5}}, "backoff", Backoff("fixed", 5)),
        ({"removeOnComplete": True}, "keep_completed", {"count": 0}),
        ({"removeOnComplete": False}, "keep_completed", None),
        ({"removeOnComplete": -5}, "keep_completed", None),
        ({"removeOnComplete": {"age": 5, "x": 1}}, "keep_completed", {"age": 5}),
        ({"removeOnComplete": {}}, "keep_completed", None),
        ({"removeOnComplete": "x"}, "keep_completed", {"count": 0}),
        ({}, "keep_failed", codec.UNSET),
    ],
    ids=name_of,
)
def test_options_as_others_write_them(raw, name, value):
    assert getattr(read(**raw), name) == value


def test_options_that_are_no_options():
    for text in (b"[]", b"not json", b"7"):
        assert codec.decode_options(text).raw == {}
    assert codec.decode_options(b'{"x":1}').raw == {"x": 1}
    assert repr(read(x=1)) == "JobOpts({'x': 1})"


def job(**fields) -> Job:
    return Job("bull", "q", "41", {name.encode(): value for name, value in fields.items()})


def test_a_job_that_says_nothing():
    empty = job()

    assert (empty.name, empty.data, empty.data_text) == ("", {}, b"{}")
    assert (empty.timestamp, empty.attempts_started, empty.attempts_made) == (0, 0, 0)
    assert (empty.stalled_count, empty.priority, empty.delay) == (0, 0, 0)
    assert (empty.parent_key, empty.scheduler_id, empty.deduplication_id) == (None, None, None)
    assert (empty.deferred_failure, empty.failed_reason, empty.stacktrace) == (None, None, [])
    assert (empty.progress, empty.return_value, empty.processed_on) == (0, None, None)
    assert (empty.finished_on, empty.processed_by, empty.telemetry) == (None, None, None)
    assert empty.idempotency_key == "q:41:0"
    assert repr(empty) == "<Job '41' '' of queue 'q'>"


def test_a_job_that_says_everything():
    full = job(
        name=b"charge", data=b'{"n":1}', opts=b'{"idempotencyKey":"k","tm":"t"}', timestamp=b"5",
        ats=b"2", atm=b"1", stc=b"3", priority=b"4", delay=b"6", parentKey=b"p", rjk=b"s",
        deid=b"d", defa=b"why", failedReason=b'"no"', stacktrace=b'["a",1]', progress=b"50",
        returnvalue=b"[1]", processedOn=b"7", finishedOn=b"8", pb=b"w",
    )  # fmt: skip

    assert (full.name, full.data, full.data_text) == ("charge", {"n": 1}, b'{"n":1}')
    assert full.data is full.data
    assert (full.timestamp, full.attempts_started, full.attempts_made) == (5, 2, 1)
    assert (full.stalled_count, full.priority, full.delay) == (3, 4, 6)
    assert (full.parent_key, full.scheduler_id, full.deduplication_id) == ("p", "s", "d")
    assert (full.deferred_failure, full.failed_reason, full.stacktrace) == ("why", "no", ["a", "1"])
    assert (full.progress, full.return_value, full.processed_on) == (50, [1], 7)
    assert (full.finished_on, full.processed_by, full.telemetry) == (8, "w", "t")
    assert full.idempotency_key == "k"


def test_traces_that_are_none():
    assert job(stacktrace=b"not json").stacktrace == []
    assert job(stacktrace=b'"x"').stacktrace == []
    assert job(tm=b"own").telemetry == "own"


def test_the_last_of_equal_names_counts():
    assert fields_of([b"a", b"1", b"b", b"2", b"a", b"3"]) == {b"a": b"3", b"b": b"2"}
    assert isinstance(job(), StoredJob)


@pytest.mark.parametrize(
    ("queue", "job_id", "fields", "timeout"),
    [
        pytest.param("q", new_job_id(), {}, 5, id="an id of ours"),
        ("q", "of-a-lane", {b"x.lane": b"1"}, 5),
        ("q", "member", {b"x.group": b"1"}, 5),
        ("q:compensation", "undo", {}, 5),
        ("q", "7", {}, None),
        ("q", "order-7", {}, None),
        ("q", "repeat:digest:5", {}, None),
    ],
)
def test_the_time_limits_of_toril_0_1_count_and_those_of_bull_do_not(
    queue, job_id, fields, timeout
):
    fields = {b"name": b"x", b"opts": b'{"attempts":2,"timeout":5}', **fields}

    job = StoredJob("bull", queue, job_id, fields)

    assert job.opts.timeout == timeout
    assert job.opts.attempts == 2


def test_a_time_limit_has_the_last_word_under_its_own_name():
    fields = {b"name": b"x", b"opts": b'{"timeout":5,"timeoutMs":7}'}

    assert StoredJob("bull", "q", new_job_id(), fields).opts.timeout == 7


@pytest.mark.parametrize(
    "text", [b'"\\ud800"', b'{"a\\udfff":["x\\ud83d",123456789012345678901234567890]}']
)
def test_what_came_in_by_data_can_go_out_again(text):
    """Half of a surrogate pair is no character, and JavaScript's texts may have one."""
    assert codec.encode(codec.decode(text), "the data") == text


def test_a_model_with_half_a_surrogate_pair_can_be_written():
    class Model:
        def model_dump(self, mode):
            return {"text": "\ud800"}

    assert codec.encode([Model()], "the data") == b'[{"text":"\\ud800"}]'
