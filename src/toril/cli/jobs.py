"""``toril jobs``: the jobs of a queue, a page of them."""

from __future__ import annotations

from typing import Any

import click

from toril.cli.printing import age, print_json, print_table, shortened
from toril.cli.server import Server, queue_argument, with_server
from toril.protocol.job import Job
from toril.protocol.reading import STATES

_STATE = click.Choice([state.replace("_", "-") for state in STATES])


@click.command("jobs")
@queue_argument
@click.option("-s", "--state", "states", type=_STATE, multiple=True, help="Only in this state.")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many first.")
@click.option("--oldest-first", is_flag=True, help="Start with the oldest of each state.")
@click.option("--name", help="Only jobs with this name, of those listed.")
@with_server
def jobs(
    server: Server,
    queue_name: str,
    states: tuple[str, ...],
    limit: int,
    skip: int,
    oldest_first: bool,
    name: str | None,
) -> None:
    """List the jobs of a queue.

    \b
    Examples:
      toril jobs payments --state failed
      toril jobs payments -s waiting -s delayed -n 100 --oldest-first
      toril jobs payments --state failed --json | jq -r '.[].id'
    """
    with server.queue(queue_name, may_be_missing=True) as queue:
        listed = [
            (state, job)
            for state in states or STATES
            for job in queue.get_jobs(state, skip, skip + limit - 1, newest_first=not oldest_first)
            if name in (None, job.name)
        ]
    if server.as_json:
        print_json([{"state": state.replace("-", "_"), **summary(job)} for state, job in listed])
        return
    print_table(
        ["id", "name", "state", "#attempts", "added", "data", "reason"],
        [
            [
                job.id,
                job.name,
                state.replace("_", "-"),
                f"{job.attempts_made}/{max(job.opts.attempts, 1)}",
                age(job.timestamp),
                shortened(data_of(job), 40),
                shortened(job.failed_reason or "", 40),
            ]
            for state, job in listed
        ],
        empty=f"Queue {queue_name!r} has no such jobs.",
    )


def summary(job: Job) -> dict[str, Any]:
    """A job in a few words, for programs."""
    return {
        "id": job.id,
        "name": job.name,
        "queue": job.queue_name,
        "data": data_of(job),
        "timestamp": job.timestamp,
        "attempts": max(job.opts.attempts, 1),
        "attempts_made": job.attempts_made,
        "attempts_started": job.attempts_started,
        "processed_on": job.processed_on,
        "finished_on": job.finished_on,
        "failed_reason": job.failed_reason,
    }


def data_of(job: Job) -> Any:
    """A job's data, or its text when it is no JSON."""
    try:
        return job.data
    except (ValueError, RecursionError):
        return job.data_text.decode(errors="replace")
