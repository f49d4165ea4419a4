"""What is known about partitions is forgotten now and then, also while somebody asks."""

from __future__ import annotations

import asyncio

import pytest

from toril.client.agreeing import MOST_KNOWN, Agreeing
from toril.client.connection import Connection


@pytest.fixture
async def agreeing(url, prefix):
    connection = Connection(url)
    yield Agreeing(connection, prefix, None, asks=True)
    await connection.close()


async def test_names_that_are_forgotten_while_others_are_asked_for_are_still_answered(agreeing):
    """Everything is forgotten when it has become too much: a relay died of that."""
    names = [f"q{number}" for number in range(MOST_KNOWN + 1)]
    await agreeing.each(names)

    assert (await agreeing.each([names[0], "new"])).keys() == {names[0], "new"}


async def test_two_who_ask_at_the_same_time_take_nothing_from_each_other(agreeing):
    """A relay under load sends two batches at a time."""
    # What cannot be the name of a queue is forgotten as soon as it is answered.
    names = ["a:b", "good"]

    answers = await asyncio.gather(agreeing.each(names), agreeing.each(names))

    assert [answer.keys() for answer in answers] == [set(names)] * 2
