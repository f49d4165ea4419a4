"""``toril lanes``: jobs that run in order, key by key."""

from __future__ import annotations

from typing import Any

import click

from toril.cli.catalogue import CommandGroup
from toril.cli.jobs import data_of, summary
from toril.cli.printing import age, print_facts, print_json, print_table, say, shortened, when
from toril.cli.server import Server, create_option, queue_argument, with_server
from toril.cli.values import confirm, counted, yes_option
from toril.errors import RefusedError
from toril.protocol import lanes as protocol
from toril.protocol.lanes import Lane


@click.group("lanes", cls=CommandGroup)
def lanes() -> None:
    """List, pause, resume and drain lanes.

    The jobs of a lane run one at a time, in order; different lanes run concurrently.

    \b
    Examples:
      toril lanes list imports
      toril lanes list imports --state stopped
      toril lanes show imports user:42
      toril lanes jobs imports user:42
      toril lanes pause imports user:42
    """


@lanes.command("list")
@queue_argument
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many first.")
@click.option(
    "-s",
    "--state",
    type=click.Choice(protocol.STATES),
    help="Only lanes that are paused, halted, or either (stopped), with jobs or without.",
)
@with_server
def list_lanes(server: Server, queue_name: str, limit: int, skip: int, state: str | None) -> None:
    """List the lanes that have jobs, the longest running first."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        if state is None:
            total = queue.get_lane_count()
            names = queue.get_lanes(skip, skip + limit - 1)
        else:
            stopped = queue.get_lanes(state=state)
            total, names = len(stopped), stopped[skip : skip + limit]
        if len(queue.partitions) > 1:
            found = [queue.get_lane(name) for name in names]
        else:
            found = server.connection.run_all([protocol.read(queue.keys, name) for name in names])
    read = [lane for lane in found if lane is not None]
    if server.as_json:
        print_json([_facts(lane) for lane in read])
        return
    print_table(
        ["lane", "#waiting", "next", "held by", "since", "state"],
        [
            [
                lane.name,
                lane.depth,
                lane.head,
                ", ".join(lane.holders),
                age(lane.held_since),
                state_of(lane),
            ]
            for lane in read
        ],
        empty=f"No lane of queue {queue_name!r} {f'is {state}' if state else 'has a job'}.",
        title=f"{counted(total, 'lane')} in {queue_name}",
    )


@lanes.command("show")
@queue_argument
@click.argument("lane")
@with_server
def show(server: Server, queue_name: str, lane: str) -> None:
    """Show one lane: who holds it, who is next, and why it waits."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        found = queue.get_lane(lane)
    if found is None:
        raise RefusedError(f"lane {lane!r} of queue {queue_name!r} has no job and no settings")
    if server.as_json:
        print_json(_facts(found))
        return
    print_facts(
        [
            ("lane", found.name),
            ("state", state_of(found)),
            ("waiting", found.depth),
            ("next", found.head),
            ("held by", ", ".join(found.holders) or None),
            ("since", when(found.held_since)),
            ("halted by", found.halted_by),
            ("limited until", when(found.limited_until)),
            ("concurrency", found.concurrency),
            ("weight", found.weight),
        ]
    )


@lanes.command("jobs")
@queue_argument
@click.argument("lane")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many first.")
@with_server
def list_jobs(server: Server, queue_name: str, lane: str, limit: int, skip: int) -> None:
    """List the jobs of a lane: those that hold it, waiting ones in order, delayed ones."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        found = queue.get_lane_jobs(lane, skip, skip + limit - 1)
    if server.as_json:
        print_json([summary(job) for job in found])
        return
    print_table(
        ["id", "name", "#attempts", "added", "data"],
        [
            [
                job.id,
                job.name,
                f"{job.attempts_made}/{max(job.opts.attempts, 1)}",
                age(job.timestamp),
                shortened(data_of(job), 40),
            ]
            for job in found
        ],
        empty=f"Lane {lane!r} of queue {queue_name!r} has no jobs.",
    )


@lanes.command("pause")
@queue_argument
@click.argument("lane")
@create_option
@with_server
def pause(server: Server, queue_name: str, lane: str, create: bool) -> None:
    """Pause a lane; a running job continues."""
    with server.queue(queue_name, may_be_missing=create) as queue:
        queue.pause_lane(lane)
    say(server, f"Lane {lane!r} is paused.", queue=queue_name, lane=lane, is_paused=True)


@lanes.command("resume")
@queue_argument
@click.argument("lane")
@with_server
def resume(server: Server, queue_name: str, lane: str) -> None:
    """Resume a lane that is paused, or halted by a failure."""
    with server.queue(queue_name) as queue:
        had_stopped = queue.resume_lane(lane)
    how = "goes on" if had_stopped else "was neither paused nor halted"
    say(server, f"Lane {lane!r} {how}.", queue=queue_name, lane=lane, had_stopped=had_stopped)


@lanes.command("drain")
@queue_argument
@click.argument("lane")
@click.option("--delayed", is_flag=True, help="Also delayed ones.")
@yes_option
@with_server
def drain(server: Server, queue_name: str, lane: str, delayed: bool, yes: bool) -> None:
    """Remove the waiting jobs of a lane."""
    with server.queue(queue_name) as queue:
        found = queue.get_lane(lane)
        waiting, later = (found.depth, found.delayed) if found is not None else (0, 0)
        jobs = counted(waiting, "waiting job")
        if delayed:
            jobs = counted(waiting + later, "waiting and delayed job")
        confirm(f"Remove {jobs} of lane {lane!r}?", yes=yes)
        removed = queue.drain_lane(lane, delayed=delayed)
    say(server, f"Removed {counted(removed, 'job')}.", lane=lane, removed=removed)


def state_of(lane: Lane) -> str:
    """What keeps the lane, or that nothing does."""
    if lane.is_paused:
        return "paused"
    if lane.halted_by:
        return f"halted by {lane.halted_by}"
    if lane.holders:
        return "running"
    if lane.limited_until:
        return "rate limited"
    return "ready" if lane.is_ready else "waiting"


def _facts(lane: Lane) -> dict[str, Any]:
    return {
        "lane": lane.name,
        "state": state_of(lane),
        "depth": lane.depth,
        "head": lane.head,
        "holders": list(lane.holders),
        "held_since": lane.held_since,
        "is_paused": lane.is_paused,
        "halted_by": lane.halted_by,
        "limited_until": lane.limited_until,
        "weight": lane.weight,
        "concurrency": lane.concurrency,
    }
