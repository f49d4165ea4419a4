"""The audit sees what is wrong, and nothing where all is well."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from tests.keyspace import audit, classify

Client = redis.asyncio.Redis

JOB = {"name": "n", "data": "{}", "opts": "{}", "timestamp": "1", "delay": "0", "priority": "0"}


async def write(client: Client, prefix: str, commands: list[tuple[Any, ...]]) -> None:
    """Write one waiting and one active job, and then ``commands`` with Q for the queue."""
    base = f"{prefix}:q"
    for name, *arguments in [
        ("HSET", "Q:waiting-1", *(part for item in JOB.items() for part in item)),
        ("HSET", "Q:active-1", *(part for item in JOB.items() for part in item)),
        ("LPUSH", "Q:wait", "waiting-1"),
        ("LPUSH", "Q:active", "active-1"),
        ("SET", "Q:active-1:lock", "token", "PX", 30_000),
        ("ZADD", "Q:marker", 0, "0"),
        ("XADD", "Q:events", "*", "event", "waiting"),
        ("HSET", "Q:meta", "opts.maxLenEvents", 10_000),
        ("INCR", "Q:id"),
        *commands,
    ]:
        await client.execute_command(name, *(_name(word, base) for word in arguments))


def _name(word: Any, base: str) -> Any:
    return word.replace("Q:", f"{base}:", 1) if isinstance(word, str) else word


async def test_a_sound_queue_has_no_problems(client: Client, prefix: str) -> None:
    await write(client, prefix, [])

    assert await audit(client, prefix, expects_marker=True) == []


@pytest.mark.no_audit("every case is a defect")
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ([("SADD", "Q:wait-not", "x")], "K1: no rule knows"),
        ([("ZADD", "Q:marker", 0, "7")], "K1: .* unknown member '7'"),
        ([("LPUSH", "Q:wait", "waiting-1")], "K2: .* holds job 'waiting-1' 2 times"),
        ([("ZADD", "Q:delayed", 1, "waiting-1")], "K2: .* is in delayed and wait"),
        ([("LPUSH", "Q:wait", "ghost")], "K2: .* holds 'ghost', which has no hash"),
        ([("LREM", "Q:wait", 0, "waiting-1")], "K2: .* 'waiting-1' .* is in no container"),
        ([("SET", "Q:waiting-1:lock", "t", "PX", 9999)], "K3: .* not active"),
        ([("PERSIST", "Q:active-1:lock")], "K3: .* never expires"),
        ([("SADD", "Q:stalled", "waiting-1")], "K4: .* in stalled and not active"),
        ([("RPUSH", "Q:gone:logs", "row")], "K5: .* has no hash"),
        ([("SET", "Q:de:order", "gone")], "K6: .* names job 'gone'"),
        ([("SADD", "Q:active-1:dependencies", "Q:gone")], "K7: .* which is gone"),
        ([("SADD", "Q:active-1:dependencies", "Q:waiting-1")], "K7: .* does not know its parent"),
        (
            [
                ("SADD", "Q:active-1:dependencies", "Q:done-1"),
                ("HSET", "Q:done-1", "name", "x", "parentKey", "Q:active-1"),
                ("ZADD", "Q:completed", 1, "done-1"),
            ],
            "K7: .* waits for .*done-1', which completed",
        ),
        ([("SET", "Q:limiter", 1)], "K8: .*limiter never expires"),
        ([("ZADD", "Q:repeat", 1, "digest")], "K9: scheduler 'digest' .* has no record"),
        ([("HSET", "Q:groups:g", "totalJobs", 1)], "K9: group 'g' .* not both"),
    ],
)
async def test_a_defect_is_told(
    client: Client, prefix: str, damage: list[tuple[Any, ...]], told: str
) -> None:
    await write(client, prefix, damage)

    problems = await audit(client, prefix)

    assert any(_matches(told, problem) for problem in problems), problems


async def test_a_lost_marker_is_told_on_request(client: Client, prefix: str) -> None:
    await write(client, prefix, [("DEL", "Q:marker"), ("DEL", "Q:active"), ("DEL", "Q:active-1")])
    await client.delete(f"{prefix}:q:active-1:lock")

    assert await audit(client, prefix) == []
    assert "K10" in (await audit(client, prefix, expects_marker=True))[0]


@pytest.mark.parametrize(
    ("rest", "kind", "what"),
    [
        ("failed", "zset", "container"),
        ("41:failed", "hash", "job part"),
        ("repeat:digest", "hash", "scheduler"),
        ("repeat:digest:1794723276316", "hash", "job"),
        ("repeat:digest:1794723276316:lock", "string", "lock"),
        ("toril:anything", "stream", "own"),
        ("wait", "hash", "job"),
    ],
)
def test_names_and_types_tell_keys_apart(rest: str, kind: str, what: str) -> None:
    assert classify(rest, kind) == what


def _matches(pattern: str, text: str) -> bool:
    import re

    return re.search(pattern, text) is not None
