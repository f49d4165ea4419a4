"""A queue with partitions on the command line: one name, one row."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.conftest import Toril
from tests.features.dead_letters.forging import forge
from toril import NewJob
from toril import Queue as AsyncQueue
from toril.protocol import partitioning
from toril.protocol.partitioning import Numbers
from toril.sync import Queue


@pytest.fixture
def mail(url, prefix):
    with Queue("mail", connection=url, prefix=prefix, partitions=3) as queue:
        queue.add_bulk([NewJob("send", {"n": n}, job_id=f"j-{n}") for n in range(12)])
        yield queue


def test_the_partitions_are_one_row(mail, toril: Toril, url, prefix):
    with Queue("plain", connection=url, prefix=prefix) as plain:
        plain.add("x")

    rows = toril("queues", "--json").json
    shown = toril("queues").out

    assert [(row["queue"], row["waiting"], row.get("partitions")) for row in rows] == [
        ("mail", 12, 3),
        ("plain", 1, None),
    ]
    assert "3 partitions" in shown
    assert "{mail-" not in shown
    assert toril("queues", "mail", "--json").json["partitions"] == 3


def test_a_plain_queue_of_the_same_name_is_a_row_beside_the_partitions(
    mail, toril: Toril, url, prefix
):
    """It took their place: twelve jobs were not to be seen."""
    with Queue("mail", connection=url, prefix=prefix) as plain:
        plain.add("x")

    rows = toril("queues", "--json").json
    shown = toril("queues").out.splitlines()
    looks = toril("monitor", "--json").json
    named = toril("monitor", "--json", "-q", "mail").json

    assert [
        (row["queue"], row["waiting"], row.get("partitions"), row.get("is_beside_partitions"))
        for row in rows
    ] == [("mail", 12, 3, None), ("mail", 1, None, True)]
    assert "3 partitions" in shown[-2]
    assert "plain queue beside its partitions" in shown[-1]
    for found in (looks, named):
        assert [
            (look["queue"], look["waiting"], look.get("is_beside_partitions")) for look in found
        ] == [("mail", 12, None), ("mail", 1, True)]


def test_commands_work_on_the_whole(mail, toril: Toril):
    assert len(toril("jobs", "mail", "--state", "waiting", "--json").json) == 12
    assert toril("job", "j-7", "-q", "mail", "--json").json["id"] == "j-7"
    assert toril("job", "j-7", "--json").json["id"] == "j-7"
    assert toril("add", "mail", "send", "--id", "j-99").code == 0
    assert mail.get_state("j-99") == "waiting"
    assert toril("pause", "mail").code == 0
    assert mail.is_paused()
    assert toril("resume", "mail").code == 0
    assert toril("cancel", "j-3", "-q", "mail").code == 0
    assert mail.get_failed_count() == 1
    assert toril("retry", "--all", "-q", "mail").code == 0
    assert toril("lanes", "list", "mail").code == 0
    assert len(toril("events", "mail", "--since", "0", "--count", "5").out.splitlines()) == 5
    assert toril("drain", "mail", "--yes").code == 0
    assert mail.get_waiting_count() == 0


def test_what_cannot_grow_is_refused(mail, toril: Toril):
    assert len(toril("partitions", "list", "mail", "--json").json) == 3
    assert "{mail-2}" in toril("partitions", "list", "mail").out

    assert toril("partitions", "grow", "mail", "2", "--yes").code == 2
    assert toril("partitions", "grow", "mail", "--yes").code == 2
    assert "is not growing" in toril("partitions", "grow", "mail", "--stop").err
    assert toril("partitions", "grow", "mail", "6").code == 1, "nobody said yes"
    mail.add("x", lane="busy")
    done = toril("partitions", "grow", "mail", "6", "--yes", "--wait", "0s")
    assert done.code == 1
    assert "1 have jobs" in done.err
    mail.drain()
    begun = partitioning.swap(mail.keys, Numbers((), 3), Numbers((), 3, 6))
    mail._connection.run(begun)
    assert toril("partitions", "grow", "mail", "--stop", "--json").json["partitions"] == 3
    assert toril("partitions", "grow", "plain", "4", "--yes").code == 1


async def test_a_replay_tells_of_the_letters_of_every_partition(toril: Toril, client, url, prefix):
    """It told what the last partition had held, and that was nothing."""
    where = {"connection": url, "prefix": prefix, "partitions": 3}
    async with AsyncQueue("mail-dlq", **where) as letters:
        await letters.resume()  # so that the server knows how many partitions there are
        first, second, _ = letters.partitions
    await forge(client, prefix, first.name, 4, source="mail")
    await forge(client, prefix, second.name, 2, source="mail")
    await client.hset(f"{prefix}:mail:groups:g", mapping={"state": "FAILED", "totalJobs": 0})
    await client.zadd(f"{prefix}:mail:groups", {"g": 1})
    for part, count in ((first, 3), (second, 2)):
        for number in range(1, count + 1):
            member = f"{prefix}:mail:groups:g:m0"
            await client.hset(f"{prefix}:{part.name}:{number}", "x.member", member)
    line = ("dlq", "replay", "mail-dlq", "--all", "--yes")

    some = await asyncio.to_thread(toril, *line)
    none = await asyncio.to_thread(toril, *line)

    assert (some.code, some.out) == (0, "Replayed 1 dead letter.\n"), some
    assert "left alone: 5 letters of groups" in some.err
    assert (none.code, none.out) == (1, "Replayed 0 dead letters.\n"), none
