"""``toril queues``: what queues there are, and how they are."""

from __future__ import annotations

from typing import Any

import click

from toril.cli.printing import echo, heading, print_facts, print_json, print_table, span
from toril.cli.server import Server, complete_queue, with_server
from toril.cli.values import counted
from toril.protocol import groups, pausing, reading
from toril.protocol.keys import Keys
from toril.protocol.partitioning import add_up

_COLUMNS = {
    "waiting": "#waiting",
    "active": "#active",
    "delayed": "#delayed",
    "prioritized": "#prioritized",
    "waiting_children": "#children",
    "completed": "#completed",
    "failed": "#failed",
}


_ALWAYS = ("waiting", "active", "completed", "failed")


@click.command("queues")
@click.argument("queue_name", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@with_server
def queues(server: Server, queue_name: str | None) -> None:
    """List the queues and their counts.

    With QUEUE, show more about that one: its limits and its workers.  Without it, the keyspace is
    scanned for queues, in small slices.

    \b
    Examples:
      toril queues
      toril queues payments
      toril queues --json | jq '.[] | select(.failed > 0) | .queue'
    """
    if queue_name is not None:
        _show_one(server, queue_name)
        return
    folded = server.rows()
    keys = [Keys(server.prefix, name) for row in folded for name in row.queues]
    counts = server.connection.run_all([reading.counts(key, reading.STATES) for key in keys])
    paused = server.connection.run_all([pausing.is_paused(key) for key in keys])
    stuck: list[groups.Stuck] = server.connection.follow(groups.count_stuck(keys))
    rows: list[dict[str, Any]] = []
    for row in folded:
        size, begin = len(row.queues), sum(len(before.queues) for before in folded[: len(rows)])
        part = slice(begin, begin + size)
        facts: dict[str, Any] = {"queue": row.name, **add_up(counts[part])}
        facts["groups_not_undone"] = sum(one.not_undone for one in stuck[part])
        facts["groups_needing_a_person"] = sum(one.needing_a_person for one in stuck[part])
        facts["is_paused"] = all(paused[part])
        if row.queues != (row.name,):
            facts["partitions"] = size
        if row.is_beside:
            facts["is_beside_partitions"] = True
        rows.append(facts)
    if server.as_json:
        print_json(rows)
        return
    states = [state for state in _COLUMNS if state in _ALWAYS or any(row[state] for row in rows)]
    print_table(
        ["queue", *(_COLUMNS[state] for state in states), ""],
        [
            [
                row["queue"],
                *(row[state] for state in states),
                _remarks(row),
            ]
            for row in rows
        ],
        empty=f"There is no queue under the prefix {server.prefix!r} on {server.label}.",
    )


def _remarks(row: dict[str, Any]) -> str:
    remarks = ["paused"] if row["is_paused"] else []
    if "partitions" in row:
        remarks.append(counted(row["partitions"], "partition"))
    if "is_beside_partitions" in row:
        remarks.append("plain queue beside its partitions")
    if stuck := row["groups_needing_a_person"]:
        remarks.append(f"{counted(stuck, 'group')} {'need' if stuck > 1 else 'needs'} a person")
    return ", ".join(remarks)


def _show_one(server: Server, name: str) -> None:
    with server.queue(name, may_be_missing=True) as queue:
        limit = queue.get_global_rate_limit()
        facts: dict[str, Any] = {
            "queue": name,
            **queue.get_job_counts(),
            "is_paused": queue.is_paused(),
            "global_concurrency": queue.get_global_concurrency(),
            "global_rate_limit": None if limit is None else [limit.max, limit.duration_ms],
            "rate_limited_ms": queue.get_rate_limit_ttl(),
        }
        workers = queue.get_workers()
        existing = [reading.exists(part.keys) for part in queue.partitions]
        found: list[bool] = server.connection.run_all(existing)
        is_there = any(found)
        if len(queue.partitions) > 1:
            facts["partitions"] = len(queue.partitions)
    listed = [
        {"name": w.name, "address": w.address, "age_s": w.age_s, "idle_s": w.idle_s}
        for w in workers
    ]
    if server.as_json:
        print_json({**facts, "workers": listed})
        return
    if not is_there:
        echo(f"There is no queue {name!r} under the prefix {server.prefix!r} (yet).")
        return
    print_facts(
        (name.removeprefix("is_").replace("_", " "), _readable(name, value))
        for name, value in facts.items()
    )
    heading("Workers")
    print_table(
        ["name", "address", "#connected for", "#idle for"],
        [[w.name or "-", w.address, span(w.age_s * 1000), span(w.idle_s * 1000)] for w in workers],
        empty="No worker is connected.",
    )


def _readable(name: str, value: Any) -> Any:
    match name, value:
        case "is_paused", _:
            return "yes" if value else "no"
        case "rate_limited_ms", _:
            return f"for another {span(value)}" if value else None
        case "global_rate_limit", [int(most), int(duration)]:
            return f"{most:,} jobs in {span(duration)}"
        case _:
            return value
