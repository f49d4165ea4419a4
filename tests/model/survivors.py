"""Planted bugs that the explorer does not find, by name."""

from __future__ import annotations

# ruff: noqa: E501

EQUIVALENT: dict[str, str] = {
    "changePriority:31 without wake(queue, gate)": "a job that waits was announced when it began to",
    "includes/deduplication:43 without wakeForLanes(queue, gate)": "every script that ends a job wakes for lanes at its end",
    'includes/groups:39 without redis.call("ZREM", openGroups(owner), id)': "a group that is forgotten has ended, and was taken out of the open ones then",
}
"""Those that change nothing that anybody can see, and why; they do not count."""

SURVIVORS: frozenset[str] = frozenset(
    [
        'includes/deduplicate:28 without redis.call("DEL", pending)',
        'includes/deduplicate:56 without redis.call("DEL", queue.base .. ":dn:" .. wanted.id)',
        'includes/finish:78 without redis.call("HDEL", job, "defa", "x.cancel")',
        'includes/groups:165 "LPUSH" for "RPUSH"',
        'includes/lanes:192 without redis.call("ZREM", ready, lane)',
        'includes/lanes:197 without redis.call("ZREM", ready, lane)',
        "includes/lanes:200 without wakeLanesWhenDue(queue)",
        "includes/lanes:290 without releaseLane(queue, field, id)",
        'includes/parents:40 "LPUSH" for "RPUSH"',
        "includes/parents:41 without wake(queue, gate)",
        'includes/parents:93 without redis.call("HSET", parent.key, "defa", reason)',
        "includes/promoteDue:11 without wake(queue, gate)",
        'includes/schedule:46 "RPUSH" for "LPUSH"',
        "includes/schedule:48 without wake(queue, gate)",
        'includes/take:32 "ZPOPMAX" for "ZPOPMIN"',
        'includes/takeLanes:64 without redis.call("HSET", queue.meta, "toril.laneTurn", string.format("%.17g", lanes.turn))',
        'pause:11 without redis.call("RENAME", wait, paused)',
        "promote:18 without wake(queue, gate)",
        'remove:66 "SADD" for "SREM"',
        'remove:66 without redis.call("SREM", parent_key .. ":dependencies", child)',
        'remove:67 without redis.call("HDEL", parent_key .. ":processed", child)',
        'remove:68 without redis.call("HDEL", parent_key .. ":failed", child)',
        'remove:69 without redis.call("ZREM", parent_key .. ":unsuccessful", child)',
        'renew:11 without redis.call("SET", job .. ":lock", token, "PX", a.lock_ms)',
        'renew:22 without redis.call("SREM", stalled, unpack(ids))',
        "resume:22 without wake(queue, readGate(queue))",
        "resume:24 without wakeWhenDue(queue)",
        "resume:25 without wakeLanesWhenDue(queue)",
        'settle:110 without redis.call("HSET", job, "stacktrace", stacktrace)',
        "settle:129 without returnToLane(queue, known[4], outcome.id)",
        'settle:131 "LPUSH" for "RPUSH"',
        "settle:157 without placeDelayed(queue, outcome.id, now + outcome.delay)",
    ]
)
"""Those that no check finds yet."""
