"""``toril job``: everything that is known of one job."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from toril.cli.finding import queue_of
from toril.cli.jobs import data_of, summary
from toril.cli.printing import echo_lines, heading, print_facts, print_json, span, when
from toril.cli.server import Server, queue_option, with_server
from toril.errors import JobNotFoundError
from toril.protocol.attempts import JobAttempt
from toril.protocol.job import Job


@click.command("job")
@click.argument("job_id", metavar="ID")
@queue_option
@click.option(
    "--logs", "log_rows", type=int, default=20, show_default=True, help="Lines of its log to show."
)
@with_server
def job(server: Server, job_id: str, queue_name: str | None, log_rows: int) -> None:
    """Show everything about a job, and why it is not running.

    Its options, times, attempts, log, stack traces, parent, lane and group.

    \b
    Examples:
      toril job order-123
      toril job order-123 --queue payments --logs 200
      toril job order-123 --json | jq .failed_reason
    """
    with server.queue(queue_of(server, job_id, queue_name), may_be_missing=True) as queue:
        found = queue.get_job(job_id)
        state = queue.get_state(job_id)
        if found is None or state is None:
            raise JobNotFoundError(f"queue {queue.name!r} has no job {job_id!r}")
        logs = queue.get_job_logs(job_id, -log_rows, -1) if log_rows > 0 else []
        explained = queue.explain(job_id)
    if server.as_json:
        print_json(_everything(found, state, explained, logs))
        return
    _print(found, state, explained, logs)


def _everything(found: Job, state: str, explained: str, logs: list[str]) -> dict[str, Any]:
    return {
        **summary(found),
        "state": state,
        "why": explained,
        "opts": found.opts.raw,
        "priority": found.priority,
        "delay": found.delay,
        "progress": found.progress,
        "return_value": found.return_value,
        "stacktrace": found.stacktrace,
        "stalled_count": found.stalled_count,
        "processed_by": found.processed_by,
        "attempt_history": [msgspec.structs.asdict(one) for one in found.attempt_history],
        "parent_key": found.parent_key,
        "scheduler_id": found.scheduler_id,
        "deduplication_id": found.deduplication_id,
        "idempotency_key": found.idempotency_key,
        "lane": found.lane,
        "group": group_of(found),
        "logs": logs,
    }


def _print(found: Job, state: str, explained: str, logs: list[str]) -> None:
    print_facts(facts_of(found, state, explained))
    for title, text in parts_of(found, logs):
        heading(title)
        echo_lines(text)


def facts_of(found: Job, state: str, explained: str) -> list[tuple[str, Any]]:
    """The facts about a job that fit on one line each; None where there is nothing to say."""
    attempts = f"{found.attempts_made} of {max(found.opts.attempts, 1)} made"
    return [
        ("id", found.id),
        ("name", found.name),
        ("queue", found.queue_name),
        ("state", state.replace("_", "-")),
        ("why", explained),
        ("added", when(found.timestamp)),
        ("taken", when(found.processed_on)),
        ("finished", when(found.finished_on)),
        ("ran for", _ran_for(found)),
        ("attempts", f"{attempts}, {found.attempts_started} started"),
        ("stalled", found.stalled_count or None),
        ("worker", found.processed_by),
        ("priority", found.priority or None),
        ("delay", span(found.delay) if found.delay else None),
        ("progress", found.progress or None),
        ("lane", found.lane),
        ("group", group_of(found)),
        ("parent", found.parent_key),
        ("scheduler", found.scheduler_id),
        ("deduplication", found.deduplication_id),
        ("idempotency key", found.idempotency_key),
        ("failed" if state == "failed" else "last failure", found.failed_reason),
        ("returned", found.return_value),
    ]


def parts_of(found: Job, logs: list[str]) -> list[tuple[str, str]]:
    """What takes several lines: a title and a text each, without those that are empty."""
    data = json.dumps(data_of(found), indent=2, ensure_ascii=False, default=str)
    parts = [
        ("Data", data),
        ("Options", json.dumps(found.opts.raw, ensure_ascii=False)),
        ("Attempts", "\n".join(map(_attempt, found.attempt_history))),
        ("Log", "\n".join(logs)),
        *((f"Failed attempt {number}", trace) for number, trace in enumerate(found.stacktrace, 1)),
    ]
    return [(title, text) for title, text in parts if text]


def _attempt(one: JobAttempt) -> str:
    """``2  2026-11-16 09:00:00, 1.2 s, by mailer-1``."""
    ran = "no end recorded" if one.ended_on is None else span(one.ended_on - one.started_on)
    return f"{one.number}  {when(one.started_on)}, {ran}" + (
        f", by {one.worker}" if one.worker else ""
    )


def _ran_for(found: Job) -> str | None:
    if found.finished_on is None or found.processed_on is None:
        return None
    return span(found.finished_on - found.processed_on)


def group_of(found: Job) -> str | None:
    """The group that the job belongs to."""
    group = found.opts.raw.get("group")
    return group.get("id") if isinstance(group, dict) else None
