"""``toril schedulers``: jobs that come again and again."""

from __future__ import annotations

from typing import Any

import click

from toril import NewJob
from toril.cli.catalogue import CommandGroup
from toril.cli.printing import age, print_json, print_table, say, span
from toril.cli.server import Server, queue_argument, with_server
from toril.cli.values import DURATION, confirm, read_json, yes_option
from toril.errors import SchedulerNotFoundError
from toril.protocol.scheduling import JobScheduler


@click.group("schedulers", cls=CommandGroup)
def schedulers() -> None:
    """List, create, change, pause and remove schedulers.

    \b
    Examples:
      toril schedulers list mail
      toril schedulers set mail digest --cron '0 9 * * 1-5' --tz Europe/Berlin
      toril schedulers pause mail digest
      toril schedulers run mail digest
      toril schedulers change mail digest --every 10m
      toril schedulers remove mail digest
    """


@schedulers.command("list")
@queue_argument
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True)
@with_server
def list_schedulers(server: Server, queue_name: str, limit: int) -> None:
    """List the schedulers of a queue: paused ones, then the next due first."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        found = queue.get_job_schedulers(0, limit - 1)
    if server.as_json:
        print_json([_facts(scheduler) for scheduler in found])
        return
    print_table(
        ["id", "job", "when", "next", "#done"],
        [[s.id, s.name, _rhythm(s), _next(s), s.iterations] for s in found],
        empty=f"Queue {queue_name!r} has no schedulers.",
    )


@schedulers.command("set")
@queue_argument
@click.argument("scheduler_id", metavar="ID")
@click.option("--every", type=DURATION, help="Run this often: 10s, 5m, 1h.")
@click.option("--cron", help="At the times of this pattern: '0 9 * * 1-5'.")
@click.option("--tz", help="The time zone of the pattern.  [default: UTC]")
@click.option("--times", "--limit", "limit", type=int, help="Run this many times in all.")
@click.option("--immediately", is_flag=True, help="Run for the first time now.")
@click.option("--name", help="The name of its jobs.  [default: ID]")
@click.option("--data", help="The data of its jobs, as JSON, @FILE or - for stdin.")
@with_server
def set_scheduler(
    server: Server,
    queue_name: str,
    scheduler_id: str,
    name: str | None,
    data: str | None,
    **schedule: Any,
) -> None:
    """Create a scheduler, or change the one with this id."""
    payload = None if data is None else read_json(data, "--data")
    with server.queue(queue_name, may_be_missing=True) as queue:
        job = queue.upsert_job_scheduler(
            scheduler_id, template=NewJob(name or scheduler_id, payload), **schedule
        )
    due = job.timestamp + job.delay
    say(
        server,
        f"Scheduler {scheduler_id!r} is set; its next job is due {age(due)}.",
        id=scheduler_id,
        next_job_id=job.id,
        next_at=due,
    )


@schedulers.command("change")
@queue_argument
@click.argument("scheduler_id", metavar="ID")
@click.option("--every", type=DURATION, help="Run this often from now on: 10s, 5m, 1h.")
@click.option("--cron", help="At the times of this pattern: '0 9 * * 1-5'.")
@click.option("--tz", help="The time zone of the pattern.")
@click.option("--times", "--limit", "limit", type=int, help="Run this many times in all.")
@with_server
def change(server: Server, queue_name: str, scheduler_id: str, **schedule: Any) -> None:
    """Change when a scheduler runs, and keep everything else."""
    with server.queue(queue_name) as queue:
        found = queue.change_job_scheduler(scheduler_id, **schedule)
    say(
        server,
        f"Scheduler {scheduler_id!r} was changed; next: {_next(found)}.",
        **_facts(found),
    )


@schedulers.command("pause")
@queue_argument
@click.argument("scheduler_id", metavar="ID")
@with_server
def pause(server: Server, queue_name: str, scheduler_id: str) -> None:
    """Pause a scheduler: it makes no jobs until it is resumed."""
    with server.queue(queue_name) as queue:
        if not queue.pause_job_scheduler(scheduler_id):
            raise _missing(queue_name, scheduler_id)
    say(server, f"Scheduler {scheduler_id!r} is paused.", id=scheduler_id, paused=True)


@schedulers.command("resume")
@queue_argument
@click.argument("scheduler_id", metavar="ID")
@with_server
def resume(server: Server, queue_name: str, scheduler_id: str) -> None:
    """Resume a paused scheduler, from its next time on."""
    with server.queue(queue_name) as queue:
        found = queue.get_job_scheduler(scheduler_id)
        if found is None or not queue.resume_job_scheduler(scheduler_id):
            raise _missing(queue_name, scheduler_id)
        found = queue.get_job_scheduler(scheduler_id) or found
    say(
        server,
        f"Scheduler {scheduler_id!r} runs; next: {_next(found)}.",
        id=scheduler_id,
        paused=False,
        next_at=found.next_at,
    )


@schedulers.command("run")
@queue_argument
@click.argument("scheduler_id", metavar="ID")
@with_server
def run(server: Server, queue_name: str, scheduler_id: str) -> None:
    """Add one of its jobs now; its schedule stays as it is."""
    with server.queue(queue_name) as queue:
        job = queue.run_job_scheduler(scheduler_id)
    say(server, f"Added job {job.id!r}.", id=scheduler_id, job_id=job.id)


@schedulers.command("remove")
@queue_argument
@click.argument("scheduler_id", metavar="ID")
@yes_option
@with_server
def remove(server: Server, queue_name: str, scheduler_id: str, yes: bool) -> None:
    """Remove a scheduler and its next job."""
    with server.queue(queue_name) as queue:
        confirm(f"Remove scheduler {scheduler_id!r} of queue {queue_name!r}?", yes=yes)
        if not queue.remove_job_scheduler(scheduler_id):
            raise _missing(queue_name, scheduler_id)
    say(server, f"Scheduler {scheduler_id!r} was removed.", id=scheduler_id, removed=True)


def _missing(queue_name: str, scheduler_id: str) -> SchedulerNotFoundError:
    return SchedulerNotFoundError(f"queue {queue_name!r} has no scheduler {scheduler_id!r}")


def _next(scheduler: JobScheduler) -> str:
    return "paused" if scheduler.next_at is None else age(scheduler.next_at)


def _rhythm(scheduler: JobScheduler) -> str:
    if scheduler.every:
        return f"every {span(scheduler.every)}"
    return f"{scheduler.cron} {scheduler.tz or ''}".strip()


def _facts(scheduler: JobScheduler) -> dict[str, Any]:
    return {
        "id": scheduler.id,
        "name": scheduler.name,
        "every": scheduler.every,
        "cron": scheduler.cron,
        "tz": scheduler.tz,
        "next_at": scheduler.next_at,
        "paused_at": scheduler.paused_at,
        "iterations": scheduler.iterations,
        "limit": scheduler.limit,
        "data": scheduler.data,
    }
