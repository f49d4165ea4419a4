"""Requests as bytes: however they are put together, they are what hiredis makes of their words."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.options import NewJob
from toril.protocol import adding, codec, leasing, settling
from toril.protocol.command import Command, Way, plain, skew
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys
from toril.protocol.packing import PackedKeys, pack_call, pack_words
from toril.protocol.settling import Policy, Raised, Returned, Settled, Take

KEYS = Keys("bull", "mäil")
DEAD = Keys("bull", "dead")
TAKE = Take(count=1, token="t:1", lock_ms=30_000)


def settled(number: int, attempt: Any, policy: Policy | None = None) -> Settled:
    fields = {b"name": b"n", b"data": b'{"x":1}', b"opts": b"{}", b"ats": b"1"}
    job = StoredJob("bull", KEYS.name, f"job-{number}", fields)
    outcome = settling.decide(job, attempt, policy or Policy(), dice=0.0)
    return Settled(job.id, "t:0", outcome, job)


def settle(*items: Settled, dead_letters: Keys | None = None) -> Command[Any]:
    return settling.settle(KEYS, items, TAKE, flight="f", request=7, dead_letters=dead_letters)


def add(*data: Any) -> Command[Any]:
    return adding.add(
        KEYS, [adding.prepare(NewJob("n", one), f"id-{at}") for at, one in enumerate(data)]
    )


COMMANDS = {
    "add": add({"x": 1}),
    "add many": add(*range(200), "ü", "x" * 100_000),
    "settle nothing": settle(),
    "settle": settle(settled(1, Returned(None)), settled(2, Returned("ü"))),
    "fail": settle(settled(1, Raised(ValueError("ü")))),
    "job of its own": leasing.extend_lock(KEYS, "job-1", "t", lock_ms=5),
    "plain": plain("PING", parse=bool),
    "numbers": plain("BLPOP", "k", 1.5, 7, parse=bool),
}


@pytest.mark.parametrize("number", [None, {"flight": "f", "request": "0001"}], ids=["", "numbered"])
@pytest.mark.parametrize("way", Way, ids=lambda way: way.name)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_bytes_are_those_of_the_words(command, way, number):
    words = command.request(way=way, number=number)

    assert command.packed(way=way, number=number) == hiredis.pack_command(words)


def test_the_keys_of_the_dead_letter_queue_come_last():
    from toril.protocol.burying import BurialPolicy

    policy = Policy(dead_letters=BurialPolicy(include_stalled=True, keep_source=False))
    command = settle(settled(1, Raised(ValueError("no")), policy), dead_letters=DEAD)
    without = settle(settled(1, Raised(ValueError("no"))), dead_letters=DEAD)

    assert command.keys[: len(without.keys)] == without.keys
    assert {*command.keys[len(without.keys) :]} == {
        *(DEAD.base, DEAD.wait, DEAD.paused, DEAD.active),
        *(DEAD.marker, DEAD.meta, DEAD.id, DEAD.events),
    }
    assert command.packed() == hiredis.pack_command(command.request())


def test_a_turned_clock_is_told_in_the_bytes_too(monkeypatch):
    monkeypatch.setattr(skew, "ms", 5_000)

    assert b"skew_ms" in add(1).packed()


def test_a_name_that_is_no_utf_8_is_sent_as_the_bytes_it_is():
    name = codec.name(b"job-\xff")

    assert pack_words(("GET", name)) == b"*2\r\n$3\r\nGET\r\n$5\r\njob-\xff\r\n"


WORDS = st.one_of(st.binary(max_size=40), st.text(max_size=40).filter(lambda text: _fits(text)))


def _fits(text: str) -> bool:
    return text.isprintable()


@given(st.lists(st.text("abc:{}ü", max_size=9), max_size=30), st.lists(WORDS, max_size=9))
def test_any_keys_and_any_words_behind_them(keys, rest):
    begin = ("FCALL", "settle_0000")

    packed = pack_call(begin, PackedKeys(keys), tuple(rest))

    assert packed == hiredis.pack_command((*begin, len(keys), *keys, *rest))
