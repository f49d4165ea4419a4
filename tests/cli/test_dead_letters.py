"""``toril dlq``: the wrong queue, what is interrupted, what is left alone, what cannot be read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis.asyncio

from tests.cli.conftest import Toril, start_asking
from tests.features.dead_letters.forging import forge
from toril.sync import Queue

DLQ = "payments-dlq"


@pytest.fixture
async def forged(client: Any, prefix: str) -> None:
    """Forty letters of the queue "payments"; every second one is a "refund"."""
    await forge(client, prefix, DLQ, 40, source="payments", names=("charge", "refund"))


@pytest.fixture
def payments(url: str, prefix: str) -> Iterator[Queue]:
    with Queue("payments", connection=url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
def dlq(url: str, prefix: str) -> Iterator[Queue]:
    with Queue(DLQ, connection=url, prefix=prefix) as queue:
        yield queue


def test_a_queue_that_is_none_is_emptied_only_by_force_and_its_name(toril: Toril, payments: Queue):
    """A forgotten "-dlq" must not empty production."""
    payments.add("charge")

    for command in (
        ("purge", "payments", "--all", "--yes"),
        ("purge", "payments", "--all", "--dry-run"),
        ("replay", "payments", "--all", "--yes"),
        ("list", "payments"),
        ("summary", "payments"),
    ):
        refused = toril("dlq", *command)
        assert refused.code == 1, refused
        assert "is no dead letter queue" in refused.err
        assert "--force" in refused.err
    assert "charge" in toril("dlq", "list", "payments", "--force").out
    assert toril("dlq", "summary", "payments", "--force").code == 0
    forced = ("dlq", "purge", "payments", "--all", "--yes", "--force")
    assert toril(*forced).code == 1
    wrong = toril(*forced, typed="payment\n")
    assert (wrong.code, payments.get_waiting_count()) == (1, 1), wrong
    done = toril(*forced, typed="payments\n")
    assert done.out.endswith("Removed 1 dead letter.\n"), done
    assert payments.get_waiting_count() == 0


def test_force_asks_for_no_name_in_a_dead_letter_queue(toril: Toril, forged: None):
    done = toril("dlq", "purge", DLQ, "--all", "--yes", "--force")

    assert (done.code, done.out) == (0, "Removed 40 dead letters.\n")


def test_an_empty_filter_is_refused(toril: Toril, forged: None, dlq: Queue):
    """`--reason "$R"` with R not set chose every letter, and `--yes` deleted them."""
    for option in ("--reason", "--name", "--source", "--fingerprint"):
        for line in (("purge", DLQ, "--yes"), ("replay", DLQ, "--yes"), ("summary", DLQ)):
            refused = toril("dlq", *line, option, "")
            assert refused.code == 2, refused
            assert option in refused.err
            assert "it is empty" in refused.err
    assert dlq.get_dead_letter_count() == 40


async def test_letters_that_came_after_the_question_are_not_purged(
    toril: Toril, cli_env: dict[str, str], dlq: Queue, client: Any, prefix: str
):
    """Somebody says yes to 3 letters; those of the outage that began meanwhile went, too."""
    await forge(client, prefix, DLQ, 3, source="payments")
    line = ("dlq", "purge", DLQ, "--name", "charge")
    asked, question = await start_asking(cli_env, *line)
    assert "Remove 3 dead letters" in question
    await forge(client, prefix, DLQ, 40, source="payments")
    out, refused = await asyncio.wait_for(asked.communicate(b"y\n"), 60)

    assert (asked.returncode, out) == (1, b"")
    assert b"nothing was removed: 43 dead letters match by now" in refused
    assert await asyncio.to_thread(dlq.get_dead_letter_count) == 43
    done = await asyncio.to_thread(toril, *line, typed="y\n")
    assert (done.code, done.out) == (0, "Removed 43 dead letters.\n"), done


async def test_whoever_sends_letters_elsewhere_is_asked_about_the_place(
    toril: Toril, cli_env: dict[str, str], forged: None, payments: Queue, dlq: Queue
):
    """A slip in its name makes a queue whose jobs wait for nobody."""
    await asyncio.to_thread(payments.add, "charge", {})
    for name, words in (("payments", "?"), ("paymets", ", which does not exist yet?")):
        asked, question = await start_asking(cli_env, "dlq", "replay", DLQ, "--all", "--to", name)
        await asyncio.wait_for(asked.communicate(b"n\n"), 60)

        assert f"Replay 40 dead letters of {DLQ!r} into {name!r}{words}" in question
    assert await asyncio.to_thread(dlq.get_dead_letter_count) == 40


async def test_letters_without_a_fingerprint_are_chosen_by_a_word_of_their_own(
    toril: Toril, forged: None, client: Any, prefix: str
):
    meta = {"sourceQueue": "payments", "originalJobId": "1", "failedReason": "no"}
    fields = {"name": "theirs", "data": json.dumps({"_dlqMeta": meta}), "timestamp": 1}
    await client.hset(f"{prefix}:{DLQ}:41", mapping=fields)
    await client.lpush(f"{prefix}:{DLQ}:wait", "41")

    line = ("dlq", "purge", DLQ, "--no-fingerprint", "--yes")
    both = await asyncio.to_thread(toril, *line, "--fingerprint", "x")
    done = await asyncio.to_thread(toril, *line)

    assert both.code == 2
    assert "either --fingerprint or --no-fingerprint" in both.err
    assert (done.code, done.out) == (0, "Removed 1 dead letter.\n"), done


def test_every_option_is_obeyed_for_letters_that_are_named(
    toril: Toril, forged: None, payments: Queue, dlq: Queue, prefix: str
):
    """`--dry-run` with an id replayed, and --max-replays, --rate and --resume were dropped."""
    dry = toril("dlq", "replay", DLQ, "1", "2", "--dry-run")
    assert (dry.code, dry.out) == (0, "1: would be replayed\n2: would be replayed\n")
    assert toril("dlq", "replay", DLQ, "1", "--dry-run", "--json").json == [
        {"id": "1", "new_id": None, "would_replay": True}
    ]
    missing = toril("dlq", "replay", DLQ, "1", "nobody", "--dry-run")
    assert (missing.code, len(missing.err.splitlines())) == (1, 1)
    assert (payments.get_waiting_count(), dlq.get_dead_letter_count()) == (0, 40)

    refused = toril("dlq", "replay", DLQ, "1", "--resume")
    assert (refused.code, "--resume does nothing here" in refused.err) == (2, True)
    often = toril("dlq", "replay", DLQ, "1", "--max-replays", "0")
    assert (often.code, "max_replays" in often.err) == (1, True)

    began = time.monotonic()
    paced = toril("dlq", "replay", DLQ, "1", "2", "3", "--rate", "20", "--by", "ana")
    assert paced.code == 0
    assert time.monotonic() - began >= 0.1
    assert payments.get_waiting_count() == 3


async def test_a_slip_among_letters_that_are_named_replays_none(
    toril: Toril, client: Any, forged: None, payments: Queue, dlq: Queue, prefix: str
):
    note = json.loads(await client.hget(f"{prefix}:{DLQ}:2", "x.letter"))
    await client.hset(f"{prefix}:{DLQ}:2", "x.letter", json.dumps({**note, "lane": "ana"}))

    for line, words in (
        (("1", "wait", "3"), "cannot be the id"),
        (("1", "2", "3", "--priority", "1"), "belongs to lane 'ana'"),
        (("1", "3", "--to", DLQ), "itself"),
    ):
        refused = await asyncio.to_thread(toril, "dlq", "replay", DLQ, *line, "--json")
        assert (refused.code, refused.out) == (2, ""), refused
        assert words in refused.err
    assert (payments.get_waiting_count(), dlq.get_dead_letter_count()) == (0, 40)

    done = await asyncio.to_thread(toril, "dlq", "replay", DLQ, "1", "nobody", "3", "--json")

    assert done.code == 1
    first, refused_one, last = json.loads(done.out)
    assert first["new_id"]
    assert last["new_id"]
    assert "nobody" in refused_one["error"]
    assert payments.get_waiting_count() == 2


def test_a_replay_with_a_relative_time_is_resumed(
    toril: Toril, client: Any, dlq: Queue, payments: Queue, prefix: str
):
    """The same line with --resume goes on, although an hour ago is another time by now."""
    asyncio.run(_forge_now(client.connection_pool.connection_kwargs, prefix))

    def stop(now: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dlq.replay_all_dead_letters(since=timedelta(hours=1), rate=100, on_progress=stop)
    assert dlq.get_dead_letter_count() == 30

    line = ("dlq", "replay", DLQ, "--since", "1h", "--yes")
    done = toril(*line, "--resume")

    assert done.out == "Replayed 40 dead letters, 10 of them before it was interrupted.\n", done
    assert payments.get_waiting_count() == 40


async def _forge_now(options: dict[str, Any], prefix: str) -> None:
    async with redis.asyncio.Redis(
        host=options["host"], port=options["port"], decode_responses=True
    ) as client:
        await forge(client, prefix, DLQ, 40, source="payments")
        for number in range(1, 41):
            key = f"{prefix}:{DLQ}:{number}"
            await client.hset(key, "timestamp", int(time.time() * 1000))


async def test_letters_of_a_group_that_is_over_are_left_with_words_and_a_code(
    toril: Toril, client: Any, forged: None, prefix: str
):
    await client.hset(f"{prefix}:payments:groups:g", mapping={"state": "FAILED", "totalJobs": 0})
    await client.zadd(f"{prefix}:payments:groups", {"g": 1})
    for number in range(1, 41, 2):
        await client.hset(f"{prefix}:{DLQ}:{number}", "x.member", f"{prefix}:payments:groups:g:m0")
    line = ("dlq", "replay", DLQ, "--name", "charge", "--yes")

    left = await asyncio.to_thread(toril, *line)

    assert (left.code, left.out) == (1, "Replayed 0 dead letters.\n")
    assert "20 letters of groups that are over or being undone (--force" in left.err
    some = await asyncio.to_thread(toril, "dlq", "replay", DLQ, "--all", "--yes", "--json")
    assert some.json == {"queue": DLQ, "replayed": 20, "held": 20}
    one = await asyncio.to_thread(toril, "dlq", "replay", DLQ, "1")
    assert (one.code, "--force" in one.err) == (1, True)
    done = await asyncio.to_thread(toril, *line, "--force")
    assert (done.code, done.out) == (0, "Replayed 20 dead letters.\n")


async def test_a_letter_whose_data_are_no_json_is_listed_and_shown(
    toril: Toril, client: Any, forged: None, prefix: str
):
    await client.hset(f"{prefix}:{DLQ}:40", "data", "{no json")

    listed = await asyncio.to_thread(toril, "dlq", "list", DLQ, "-n", "2")
    shown = await asyncio.to_thread(toril, "dlq", "show", DLQ, "40")
    told = await asyncio.to_thread(toril, "dlq", "list", DLQ, "-n", "1", "--json")
    grouped = await asyncio.to_thread(toril, "dlq", "summary", DLQ)

    assert listed.code == shown.code == grouped.code == 0, (listed, shown, grouped)
    assert "{no json" in shown.out
    assert told.json[0]["data"] == "{no json"
