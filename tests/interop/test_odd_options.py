"""Options as Node programs write them: numbers as text, -1, half a second, nothing at all.

Each value is written raw into a job of a queue of its own, the same for BullMQ 5, BullMQ 6 and
Toril.  Each ends one attempt at it, and what is left must be the same.
"""

from __future__ import annotations

import json
import time
from itertools import zip_longest
from typing import Any

import pytest

from tests.features.lanes import Hand
from tests.interop.support import wait_for_finished
from toril.client.connection import Connection
from toril.protocol.keys import Keys

HOUR_MS = 3_600_000
LONG = 440_000
"""Seven minutes and a third: what is left is rounded, and may shrink by fifty seconds."""
LATER = (("older", 2 * HOUR_MS), ("old", 2 * HOUR_MS - 1), ("new", HOUR_MS // 3))
"""Jobs that finished before, and how long ago."""

RETENTIONS: list[Any] = [
    *(True, False, 0, 1, 2, -1, -5, 0.5, 1.5, None, "", "0", "2", "false", [], {}),
    *({"count": value} for value in (0, 1, -1, "1", "0", None, True, 1.5)),
    *({"age": value} for value in (3600, "3600", 0.5, "0.5", 0, "0", -1, 1e12, 1e300)),
    *({"age": value} for value in (" 3600 ", "0x10", "1e1", "x", "", None, True)),
    {"age": 3600, "count": 1},
    {"age": 3600, "count": -1},
    {"age": "3600", "count": 0},
    {"age": 3600, "limit": "1"},
    {"age": 3600, "limit": 0},
    {"age": 3600, "limit": -1},
    {"age": 3600, "limit": 1.5},
    {"limit": 1},
    {"unknown": 1},
]
ATTEMPTS: list[Any] = [
    *(3, "3", "3.0", 1.5, 1, "1", True, None, "many", "", " 2 ", "0x2", -1, "Infinity", [2], {}),
    *("1e1", "1_0", 1e300, "\u0663"),
]
DELAYS: list[Any] = [
    *(
        LONG,
        str(LONG),
        f" {LONG} ",
        [LONG],
        LONG + 0.7,
        0,
        "0",
        -1,
        "-1",
        -5000,
        None,
        "soon",
        True,
    ),
    hex(LONG),
]
BACKOFFS: list[Any] = [
    *(LONG, LONG + 0.7, 0, -1, -5, str(LONG), True, None, "", [], {}),
    *({"type": "fixed", "delay": delay} for delay in DELAYS),
    *({"type": "exponential", "delay": delay} for delay in DELAYS),
    *({"type": "fixed", "delay": LONG, "jitter": value} for value in ("0", -1, None, "x", "1e-9")),
    *({"type": kind} for kind in ("fixed", "exponential", "unheard of", None)),
    {"delay": LONG},
    {"delay": str(LONG)},
]
TRACES: list[Any] = [2, "2", 0, "0", -1, "x", None, 1.5, True, "", 1, "1"]
FAILING: list[dict[str, Any]] = [
    *({"removeOnFail": value} for value in (-1, "2", {"age": "3600"}, {"age": 0.5}, {"count": 1})),
    *(
        {"attempts": value, "stackTraceLimit": limit}
        for value, limit in zip_longest(ATTEMPTS, TRACES, fillvalue=5)
    ),
    *({"attempts": 3, "backoff": value} for value in BACKOFFS),
]


class Trial:
    """One attempt at each job by each party."""

    def __init__(self, node_peers, url, client, prefix):
        self.node_peers, self.url, self.client, self.prefix = node_peers, url, client, prefix

    async def of(self, values, outcome):
        """For each of the options what BullMQ 5, BullMQ 6 and Toril left; None for who stumbled."""
        by_party = []
        for party in (5, 6, "toril"):
            names = [f"{party}-{number}" for number in range(len(values))]
            await self._write(names, values)
            if party == "toril":
                stumbled = await self._settle(names, outcome)
            else:
                stumbled = (
                    await self.node_peers[party]
                    .at(self.prefix)
                    .call("worker.settleEach", names=names, outcome=outcome)
                )
            left = await self._left(names)
            by_party.append(
                [None if why else what for why, what in zip(stumbled, left, strict=True)]
            )
        return list(zip(*by_party, strict=True))

    async def _write(self, names, values):
        now = int(time.time() * 1000)
        plain = {"name": "x", "data": "{}", "timestamp": now, "delay": 0, "priority": 0}
        async with self.client.pipeline(transaction=False) as pipeline:
            for name, options in zip(names, values, strict=True):
                base = f"{self.prefix}:{name}"
                for place in ("completed", "failed"):
                    for job_id, ago in LATER:
                        pipeline.hset(f"{base}:{place}-{job_id}", mapping={**plain, "opts": "{}"})
                        pipeline.zadd(f"{base}:{place}", {f"{place}-{job_id}": now - ago})
                odd = {**plain, "opts": json.dumps(options), "stacktrace": '["one","two"]'}
                pipeline.hset(f"{base}:odd", mapping=odd)
                pipeline.lpush(f"{base}:wait", "odd")
            await pipeline.execute()

    async def _settle(self, names, outcome):
        connection = Connection(self.url)
        for name in names:
            hand = Hand(connection, Keys(self.prefix, name), "hand")
            (job,) = await hand.take(1)
            await (hand.fail(job) if outcome == "fail" else hand.complete(job))
        await connection.close()
        return [None] * len(names)

    async def _left(self, names):
        async with self.client.pipeline(transaction=False) as pipeline:
            for base in (f"{self.prefix}:{name}" for name in names):
                pipeline.zrange(f"{base}:completed", 0, -1)
                pipeline.zrange(f"{base}:failed", 0, -1)
                pipeline.zscore(f"{base}:delayed", "odd")
                pipeline.lrange(f"{base}:wait", 0, -1)
                pipeline.hget(f"{base}:odd", "stacktrace")
            answers = await pipeline.execute()
        return [_summed_up(*answers[n : n + 5]) for n in range(0, len(answers), 5)]


def _summed_up(completed, failed, due, waiting, traces):
    minutes = None if due is None else round((due / 4096 / 1000 - time.time()) / 60)
    is_ready = bool(waiting) or (minutes is not None and minutes <= 0)
    return {
        "completed": completed,
        "failed": failed,
        "ready": is_ready,
        "minutes": None if is_ready else minutes,
        "traces": traces and len(json.loads(traces)),
    }


@pytest.fixture
def trial(node_peers, url, client, prefix):
    return Trial(node_peers, url, client, prefix)


@pytest.mark.no_audit
@pytest.mark.parametrize(
    ("outcome", "values"),
    [("complete", [{"removeOnComplete": value} for value in RETENTIONS]), ("fail", FAILING)],
    ids=["complete", "fail"],
)
async def test_odd_options_are_read_as_node_reads_them(outcome, values, trial):
    results = await trial.of(values, outcome)

    different = {}
    for options, (five, six, ours) in zip(values, results, strict=True):
        assert five == six, options
        if five is not None and ours != five:
            different[json.dumps(options)] = (five, ours)
    assert different == {}
    assert any(five is None for five, _, _ in results), "BullMQ stumbles over some, Toril over none"


async def test_a_timeout_that_bull_left_in_the_options_limits_nothing(peer, toril, client, prefix):
    """BullMQ takes the option and ignores it; a job of Toril's is limited under another name."""
    theirs = await peer.add("q", "long", {}, timeout=1)
    ours = await toril.add("q", "long", timeout=1, job_id="ours")
    assert "timeout" not in json.loads(await client.hget(f"{prefix}:q:ours", "opts"))

    await toril.start_worker("q", {"long": [["sleep", 100]]})
    await wait_for_finished(client, prefix, "q", 2)

    assert await toril.queue("q").get_state(theirs) == "completed"
    assert await toril.queue("q").get_state(ours) == "failed"
