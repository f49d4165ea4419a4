"""Whoever looks at a queue whose own keys are damaged gets an answer or a typed error."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from random import Random
from typing import Any

import pytest
import redis.asyncio

from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from tests.hostile import damage
from tests.hostile.damage import Damage
from tests.proving import amount
from toril import GroupJob, InvalidGroupStateError, Queue, TorilError, Worker
from toril.cli.main import run as run_command
from toril.doctor import examine
from toril.errors import ServerRefusalError
from toril.protocol import glancing, starting
from toril.protocol.new_group import new_group

WORLDS = amount(30, 2000)
PER_TEST = 10
LONGEST_S = 60
COMMANDS = (
    ("queues",),
    ("queues", "q"),
    ("lanes", "list", "q"),
    ("lanes", "list", "q", "--state", "stopped"),
    ("lanes", "show", "q", "ana"),
    ("lanes", "jobs", "q", "ana"),
    ("groups", "list", "q"),
    ("groups", "show", "q", "g1"),
    ("schedulers", "list", "q"),
    ("events", "q", "--since", "0", "--count", "1"),
    ("dlq", "list", "q", "--force"),
    ("dlq", "summary", "q", "--force"),
    ("dlq", "show", "q", "2"),
    ("doctor", "--queue", "q", "--no-audit"),
    ("monitor", "--queue", "q", "--json"),
)


@pytest.mark.no_audit("the queues are damaged on purpose")
@pytest.mark.parametrize("first", range(0, WORLDS, PER_TEST))
async def test_whoever_looks_at_a_damaged_queue_is_told_what_is_wrong(
    first: int, url: str, prefix: str
) -> None:
    raw = redis.asyncio.Redis.from_url(url)
    async with raw:
        for seed in range(first, first + PER_TEST):
            dice = Random(seed)
            done = [damage.draw(dice) for _ in range(dice.choice((1, 1, 2, 3)))]
            async with Queue("q", connection=url, prefix=prefix) as queue:
                try:
                    await build(raw, queue, done)
                    await look(queue, url, seed)
                    await walk(queue)
                except Exception as error:
                    error.add_note(f"seed {seed}: {'; '.join(each.says for each in done)}")
                    raise
                finally:
                    if keys := [key async for key in raw.scan_iter(f"{prefix}:*")]:
                        await raw.unlink(*keys)


async def build(raw: Any, queue: Queue, done: list[Damage]) -> None:
    """Letters, lanes, a group and a scheduler in one queue, and the damage."""
    base = queue.keys.base.encode()
    await forge(raw, queue.keys.prefix, "q", 4, source="elsewhere")
    await queue.add("in order", lane="ana")
    await queue.add("in order", lane="ana", delay=60_000)
    await queue.pause_lane("bob")
    await queue.upsert_job_scheduler("tick", every=60_000)
    trip = new_group("trip", [GroupJob("book", queue_name="q")], None)
    await queue._connection.run(starting.create(queue.keys.prefix, trip, "g1", ["member"]))
    pipeline = raw.pipeline(transaction=False)
    for each in done:
        each.do(pipeline, base)
    await pipeline.execute(raise_on_error=False)  # two may contradict each other


async def look(queue: Queue, url: str, seed: int) -> None:
    connection, keys = queue._connection, queue.keys
    for call in (
        queue.get_job_counts(),
        queue.get_jobs("waiting"),
        queue.get_jobs("delayed"),
        queue.get_workers(),
        queue.get_metrics("completed"),
        queue.get_lanes(),
        queue.get_lanes(state="stopped"),
        queue.get_lane("ana"),
        queue.get_lane_jobs("ana"),
        queue.get_groups(),
        queue.get_group_state("g1"),
        queue.get_group_jobs("g1"),
        queue.get_job_schedulers(),
        queue.explain("2"),
        queue.get_dead_letter_count(),
        queue.get_dead_letter_jobs(0, -1, force=True),
        queue.get_dead_letter_summary(force=True),
        queue.replay_dead_letter("2", dry_run=True),
        connection.run(glancing.look(keys)),
        connection.run(glancing.active(keys, most=9)),
        connection.run(glancing.lanes_at_work(keys, most=9)),
        connection.run(glancing.newest_groups(keys, most=9)),
    ):
        await ends(call)
    await asyncio.wait_for(
        examine(connection, prefix=keys.prefix, queues=["q"], audit=seed % 30 == 0), LONGEST_S
    )
    await command(url, keys.prefix, *COMMANDS[seed % len(COMMANDS)])


async def walk(queue: Queue) -> None:
    """What changes many at once ends too."""
    await ends(queue.replay_all_dead_letters(force=True))
    await ends(queue.purge_dead_letters(force=True))
    await ends(queue.recover_lanes())
    await ends(queue.reconcile_groups())


async def ends(call: Any) -> None:
    try:
        await asyncio.wait_for(call, LONGEST_S)
    except TimeoutError as error:
        if not isinstance(error, TorilError):
            raise AssertionError(f"{call.__qualname__} hangs") from error
    except TorilError as error:
        if "user_script" in str(error):  # a script met what it did not expect
            raise AssertionError(f"{call.__qualname__}: {error}") from error


async def command(url: str, prefix: str, *words: str) -> None:
    """Run a command of ``toril``; it may refuse, and must not crash."""

    def run() -> int:
        with (
            contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")),
            contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8")),
        ):
            return run_command(["--url", url, "--prefix", prefix, *words])

    assert await asyncio.wait_for(asyncio.to_thread(run), LONGEST_S) in (0, 1, 2, 3), words


@pytest.mark.no_audit("a letter is damaged on purpose")
async def test_the_others_are_replayed_and_purged_although_one_letter_is_no_hash(
    queue: Queue, client: Any
) -> None:
    base = queue.keys.base
    await forge(client, queue.keys.prefix, "q", 5, source="elsewhere")
    await client.set(f"{base}:2", "odd")
    assert len(await queue.get_dead_letter_jobs()) == 4
    assert [group.count for group in await queue.get_dead_letter_summary()] == [4]

    assert await queue.replay_all_dead_letters(name="charge") == 4

    assert await client.lrange(f"{base}:wait", 0, -1) == ["2"]
    await forge(client, queue.keys.prefix, "q", 3, source="elsewhere")
    assert await queue.purge_dead_letters() == 4
    assert not await client.exists(f"{base}:2")


@pytest.mark.no_audit("the queue is damaged on purpose")
async def test_due_jobs_of_lanes_run_although_somebody_wrote_a_member_of_their_own(
    queue: Queue, client: Any, url: str
) -> None:
    base = queue.keys.base
    await client.zadd(f"{base}:lanes:delayed", {"x": 1})
    await client.hset(f"{base}:lanes:held", "ana", "garbage")
    await client.hset(f"{base}:lanes:settings", "ana", "[")
    await client.hset(f"{base}:meta", "opts.maxLenEvents", "many")
    wanted = {(await queue.add("a", lane="ana", delay=delay)).id for delay in (0, 1, 2)}
    ran = set()

    async def handle(job: Any) -> None:
        ran.add(job.id)

    async with Worker("q", handle, connection=url, prefix=queue.keys.prefix, drain_delay=100):
        await wait_until(lambda: ran == wanted)

    assert await client.zcard(f"{base}:lanes:delayed") == 0


@pytest.mark.no_audit("a group is damaged on purpose")
async def test_a_group_of_an_unknown_state_is_named_and_does_not_hide_the_others(
    queue: Queue, client: Any
) -> None:
    for group_id in ("g1", "g2"):
        trip = new_group("trip", [GroupJob("book", queue_name="q")], None)
        command = starting.create(queue.keys.prefix, trip, group_id, [f"of-{group_id}"])
        await queue._connection.run(command)
    await client.hset(f"{queue.keys.base}:groups:g1", "state", "SUSPENDED")

    with pytest.raises(InvalidGroupStateError, match=r"'SUSPENDED'.*newer version"):
        await queue.get_group_state("g1")
    assert [group.id for group in await queue.get_groups()] == ["g2"]
    newest = await queue._connection.run(glancing.newest_groups(queue.keys, most=9))
    assert [group.id for group in newest] == ["g2"]


@pytest.mark.no_audit("a key is damaged on purpose")
async def test_a_key_of_another_kind_is_said_in_words_and_the_doctor_names_it(
    queue: Queue, client: Any
) -> None:
    await client.set(f"{queue.keys.base}:delayed", "odd")

    with pytest.raises(ServerRefusalError, match=r"holds a value of another kind.*doctor"):
        await queue.get_job_counts()
    report = await examine(queue._connection, prefix=queue.keys.prefix)
    assert any(f"{queue.keys.base}:delayed" in finding.problem for finding in report.findings)


NOTES: list[dict[str, Any]] = [
    *({"source": odd} for odd in ({}, True, 5)),
    *({"why": odd} for odd in (None, 5, {})),
    *({"fp": odd} for odd in (5, {})),
    *({"opts": odd} for odd in ({}, True)),
    *({"key": odd} for odd in ({}, True, 5)),
    *({"lane": odd} for odd in ([], True)),
    *({"priority": odd} for odd in ("high", {})),
    *({"delay": odd} for odd in ("long", {})),
    *({"order_ms": odd} for odd in ("late", {})),
    {"size": "many"},
]


@pytest.mark.no_audit("a letter is damaged on purpose")
@pytest.mark.parametrize("odd", NOTES, ids=str)
async def test_what_the_note_of_one_letter_holds_loses_no_other(
    queue: Queue, client: Any, odd: dict[str, Any]
) -> None:
    """The letters before it in its slice were gone, and their jobs in no list."""
    base = queue.keys.base
    await forge(client, queue.keys.prefix, "q", 5, source="elsewhere")
    note = json.loads(await client.hget(f"{base}:3", "x.letter"))
    await client.hset(f"{base}:3", "x.letter", json.dumps({**note, **odd}))

    await _replay_but_for(queue, client, "3")


@pytest.mark.no_audit("a letter is damaged on purpose")
@pytest.mark.parametrize("part", ["", ":jobs", ":plan"])
async def test_what_the_group_of_one_letter_is_loses_no_other(
    queue: Queue, client: Any, part: str
) -> None:
    base = queue.keys.base
    await forge(client, queue.keys.prefix, "q", 5, source="elsewhere")
    await client.hset(f"{base}:3", "x.member", f"{base}:groups:g:m0")
    if part:
        await client.hset(f"{base}:groups:g", "state", "ACTIVE")
    await client.set(f"{base}:groups:g{part}", "no hash")

    await _replay_but_for(queue, client, "3", force=True)


async def _replay_but_for(queue: Queue, client: Any, damaged: str, **options: Any) -> None:
    """Every letter but perhaps this one goes back, and it is purged."""
    (group, *_) = await queue.get_dead_letter_summary()
    assert group.count >= 4
    counted = await queue.replay_all_dead_letters(dry_run=True, failed_reason="REFUSED", **options)
    replayed = await queue.replay_all_dead_letters(failed_reason="REFUSED", **options)

    assert counted >= replayed >= 4
    jobs = await client.lrange(f"{queue.keys.prefix}:elsewhere:wait", 0, -1)
    assert len(jobs) == replayed
    assert await client.lrange(f"{queue.keys.base}:wait", 0, -1) == [damaged] * (5 - replayed)
    assert await queue.purge_dead_letters() == 5 - replayed


@pytest.mark.no_audit("a queue is damaged on purpose")
@pytest.mark.parametrize("key", ["elsewhere:meta", "q:events"])
async def test_a_replay_that_a_damaged_queue_ends_says_so_and_loses_nothing(
    queue: Queue, client: Any, key: str
) -> None:
    prefix = queue.keys.prefix
    await forge(client, prefix, "q", 5, source="elsewhere")
    await client.set(f"{prefix}:{key}", "odd")

    with pytest.raises(ServerRefusalError, match="WRONGTYPE"):
        await queue.replay_all_dead_letters()

    jobs = await client.lrange(f"{prefix}:elsewhere:wait", 0, -1)
    letters = await client.lrange(f"{queue.keys.base}:wait", 0, -1)
    assert len(jobs) + len(letters) == 5
    for name, ids in (("elsewhere", jobs), ("q", letters)):
        for one in ids:
            assert await client.hget(f"{prefix}:{name}:{one}", "name") == "charge"
