"""Payloads survive byte for byte, whatever they are (DLQ-14; C-12, S7)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.dead_letters.conftest import DLQ
from toril.protocol import replaying, settling
from toril.protocol.burying import BurialPolicy
from toril.protocol.command import plain
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised, Settled, Take, decide
from toril.sync.connection import Connection

TRICKY = [
    "{}",
    " { } ",
    "\n{\t}\r\n",
    "[]",
    "null",
    "true",
    '""',
    "0",
    '"}"',
    '{"a":[]}',
    '{"a":{},"b":[{}]}',
    '{"n":9007199254740993,"m":123456789012345678901234567890}',
    '{"f":0.30000000000000004,"g":1.0,"h":1e400,"i":-0.0,"j":1E+2}',
    '{"a":1,"a":2}',
    '{"u":"\\ud800","s":"\\/","t":"\\u00e9é"}',
    '{"a":"}"}   ',
    '{"_dlqMeta":{"sourceQueue":"elsewhere"},"_dlqData":1}',
    '{"_dlqData":1}',
    "[" * 500 + "]" * 500,
    '{"a":' * 300 + "1" + "}" * 300,
    '"plain text with \\"quotes\\" and ,\\"_dlqMeta\\":"',
    "12345678901234567890.123456789",
    json.dumps({"text": "日本語 ünï \u2028 \x7f" * 30_000, "nested": [[{"a": None}]] * 1000}),
]

spaces = st.text(" \n\r\t", max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A JSON text: as some writer would lay it out."""
    value = draw(values)
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:")]))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators)
    return draw(spaces) + text.replace("Infinity", "1e999") + draw(spaces)


class Laboratory:
    """Kills jobs and replays them without a worker: a few calls for any number of them."""

    def __init__(self, url: str, prefix: str) -> None:
        self.connection = Connection(url)
        self.source = Keys(prefix, "orders")
        self.target = Keys(prefix, DLQ)
        self._request = 0
        self._ids = 0

    def put(self, client: Any, texts: list[bytes]) -> None:
        for text in texts:
            self._ids += 1
            job_id = f"job-{self._ids}"
            fields = {"name": "x", "data": text, "opts": '{"attempts":1}', "timestamp": 5}
            client.hset(self.source.job(job_id), mapping=fields)
            client.lpush(self.source.wait, job_id)

    def kill(self, count: int, meanwhile: Callable[[str], object] = str) -> list[str]:
        """Take ``count`` jobs and let them fail; returns their ids among the dead letters.

        ``meanwhile`` is called with the id of each job between the two.
        """
        taken = self._settle([], count)
        items = []
        for row in taken.jobs:
            job_id = row.pop().decode()
            job = StoredJob(self.source.prefix, self.source.name, job_id, fields_of(row))
            policy = Policy(dead_letters=BurialPolicy())
            outcome = decide(job, Raised(ValueError("no")), policy, dice=0.0)
            items.append(Settled(job_id, "token", outcome, job))
            meanwhile(job_id)
        assert len(items) == count
        return [code.decode() for code in self._settle(items, 0).results]  # type: ignore[union-attr]

    def replay(self, letter_id: str) -> str:
        self._ids += 1
        command = replaying.replay(self.target, letter_id, f"new-{self._ids}", "orders")
        new_id = self.connection.run(command)
        assert new_id is not None, "the metadata could not be cut out"
        return new_id

    def close(self) -> None:
        self.connection.run(plain("DEL", self.source.own("replies"), parse=int))
        self.connection.close()

    def _settle(self, items: list[Settled], count: int) -> settling.Reply:
        self._request += 1
        take = Take(count=count, token="token", lock_ms=60_000)
        return self.connection.run(
            settling.settle(
                self.source,
                items,
                take,
                flight="lab",
                request=self._request,
                dead_letters=self.target,
            )
        )


@pytest.fixture
def raw(url: str) -> Any:
    import redis

    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def laboratory(url: str, prefix: str) -> Any:
    laboratory = Laboratory(url, prefix)
    yield laboratory
    laboratory.close()


def there_and_back(laboratory: Laboratory, raw: Any, texts: list[bytes]) -> None:
    """Kill, look, replay, compare; twice, because a replayed job may die again."""
    laboratory.put(raw, texts)
    for _ in range(2):
        letters = laboratory.kill(len(texts))
        for text, letter_id in zip(texts, letters, strict=True):
            there = raw.hget(laboratory.target.job(letter_id), "data")
            check_letter(text, there)
            new_id = laboratory.replay(letter_id)
            assert raw.hget(laboratory.source.job(new_id), "data") == text
    laboratory.kill(len(texts))
    raw.delete(*raw.scan_iter(match=f"{laboratory.target.base}:*", count=1000))


def check_letter(text: bytes, there: bytes) -> None:
    """What a consumer reads: the data as they were, and the metadata."""
    original, data = json.loads(text), json.loads(there)
    meta = data.pop("_dlqMeta")
    assert meta["failedReason"] == "no"
    if isinstance(original, dict):
        original.pop("_dlqMeta", None)
    else:
        data = data.pop("_dlqData")
    assert _same(data, original)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isinf(one) and math.isinf(other))
    return bool(one == other)


@pytest.mark.parametrize("text", TRICKY, ids=lambda text: text[:20])
def test_tricky_payloads_come_back_byte_for_byte(text, laboratory, raw):
    """DLQ-14 (C-12)."""
    there_and_back(laboratory, raw, [text.encode()])


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(some=st.lists(texts(), min_size=1, max_size=10))
def test_random_payloads_come_back_byte_for_byte(some, laboratory, raw):
    """DLQ-14 (C-12)."""
    there_and_back(laboratory, raw, [text.encode("utf-8", "surrogatepass") for text in some])


@pytest.mark.parametrize("after", [b'{"n":2}', b'{"n":10}', b'{"n":1,"m":2}', b"{}", b"[1]"])
@pytest.mark.parametrize("before", [b'{"n":1}', b"{}", b"[1]", b'"}"', b'{"n":'])
def test_data_that_others_change_meanwhile_die_as_they_are(before, after, laboratory, raw):
    """DLQ-14: the worker has put its metadata into data that are not the job's any more."""
    laboratory.put(raw, [before])

    (letter_id,) = laboratory.kill(
        1, lambda job_id: raw.hset(laboratory.source.job(job_id), "data", after)
    )

    letter = json.loads(raw.hget(laboratory.target.job(letter_id), "data"))
    assert letter["_dlqMeta"]["failedReason"] == "no"
    new_id = laboratory.replay(letter_id)
    assert raw.hget(laboratory.source.job(new_id), "data") == after
    raw.delete(laboratory.source.job(new_id), laboratory.source.wait)


@pytest.mark.parametrize("text", [b'{"a":', b"\xff\xfe", b"", b"{'a': 1}", b"{]}"])
def test_data_that_are_no_json_do_not_spoil_the_target(text, laboratory, raw):
    """C-12: whoever reads the dead letters can decode them, and the bytes still come back."""
    laboratory.put(raw, [text])
    (letter_id,) = laboratory.kill(1)

    letter = json.loads(raw.hget(laboratory.target.job(letter_id), "data"))
    assert letter["_dlqData"] is None
    new_id = laboratory.replay(letter_id)
    assert raw.hget(laboratory.source.job(new_id), "data") == text
    raw.delete(laboratory.source.job(new_id), laboratory.source.wait)


REASONS = ['say "hi"', "back\\slash", "new\nline\ttab\r", "\x00\x01\x1f\x7f", "日本 é \u2028", ""]


@pytest.mark.parametrize("reason", REASONS)
def test_reasons_and_names_are_escaped(reason, url, prefix, raw):
    """DLQ-14: the metadata are JSON whatever the error says and however the queue is called."""
    laboratory = Laboratory(url, prefix)
    laboratory.source = Keys(prefix, 'quo"ted\\é')
    raw.hset(laboratory.source.job('i"d\\'), mapping={"name": "x", "data": "{}", "opts": "{}"})
    raw.lpush(laboratory.source.wait, 'i"d\\')
    reply = laboratory._settle([], 1)
    job = StoredJob(prefix, laboratory.source.name, 'i"d\\', fields_of(reply.jobs[0][:-1]))
    policy = Policy(dead_letters=BurialPolicy())
    outcome = decide(job, Raised(ValueError(reason)), policy, dice=0.0)

    (letter_id,) = laboratory._settle([Settled(job.id, "token", outcome, job)], 0).results

    text = raw.hget(laboratory.target.job(letter_id.decode()), "data")
    meta = json.loads(text)["_dlqMeta"]
    assert meta["failedReason"] == (reason or "ValueError")
    assert (meta["sourceQueue"], meta["originalJobId"]) == ('quo"ted\\é', 'i"d\\')
    laboratory.close()
