"""``toril groups``: jobs that all succeed, or what was done is undone."""

from __future__ import annotations

import shlex
from typing import Any

import click
import msgspec

from toril.cli import stages
from toril.cli.catalogue import CommandGroup
from toril.cli.printing import age, echo, heading, print_facts, print_json, print_table, say, when
from toril.cli.server import Server, queue_argument, with_server
from toril.cli.values import confirm, counted, read_json, yes_option
from toril.errors import GroupNotFoundError
from toril.protocol import groups as protocol
from toril.protocol import reading
from toril.protocol.groups import GroupInfo, GroupMember, GroupState
from toril.protocol.keys import Keys
from toril.sync.queue import Queue

_STATE = click.Choice([state.value for state in GroupState], case_sensitive=False)


@click.group("groups", cls=CommandGroup)
def groups() -> None:
    """List and cancel groups, and settle those that could not be undone.

    QUEUE is the queue that owns the group: by default that of its first job.

    \b
    Examples:
      toril groups list orders --state FAILED_COMPENSATION
      toril groups show orders 3f0c…
      toril groups complete-member orders order-123 approval --result '{"by": "back office"}'
      toril groups resolve orders 3f0c… --note "refunded by hand"
    """


@groups.command("list")
@queue_argument
@click.option("-s", "--state", "states", type=_STATE, multiple=True, help="Only in this state.")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many first.")
@click.option("--oldest-first", is_flag=True, help="Start with the oldest.")
@with_server
def list_groups(
    server: Server,
    queue_name: str,
    states: tuple[str, ...],
    limit: int,
    skip: int,
    oldest_first: bool,
) -> None:
    """List the groups that a queue owns, the newest first."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        found = queue.get_groups(states, skip, skip + limit - 1, newest_first=not oldest_first)
    if server.as_json:
        print_json([_facts(group) for group in found])
        return
    print_table(
        ["id", "name", "state", "#jobs", "#completed", "#failed", "#cancelled", "created"],
        [
            [
                group.id,
                group.name,
                group.state.value,
                group.total_jobs,
                group.completed_count,
                group.failed_count,
                group.cancelled_count,
                age(group.created_at),
            ]
            for group in found
        ],
        empty=f"Queue {queue_name!r} owns no such groups.",
    )


@groups.command("show")
@queue_argument
@click.argument("group_id", metavar="ID")
@with_server
def show(server: Server, queue_name: str, group_id: str) -> None:
    """Show one group, its jobs in all queues, and their compensations."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        group = _known(queue, group_id)
        members = queue.get_group_jobs(group_id)
        steps = queue.get_group_timeline(group_id)
    reasons = _reasons(server, members)
    if server.as_json:
        listed = [
            {
                "key": m.key,
                "job_id": m.job_id,
                "name": m.name,
                "queue": m.queue_name,
                "status": m.status,
                "after": list(m.after),
                "is_signal": m.is_signal,
                "reason": m.reason,
                "compensation_key": m.compensation_key,
                "compensation_status": m.compensation_status,
                "compensation_failed_reason": reasons.get(m.job_key),
            }
            for m in members
        ]
        told = [msgspec.to_builtins(step) for step in steps]
        print_json({**_facts(group), "members": listed, "timeline": told})
        return
    print_facts(facts_of(group))
    _print_members(members, reasons)
    heading("Timeline")
    print_table(["when", "member", "what", "why"], stages.timeline_rows(steps), empty="Nothing.")
    _print_advice(group, members, f"{shlex.quote(queue_name)} {shlex.quote(group_id)}")


def _print_members(members: list[GroupMember], reasons: dict[str, str]) -> None:
    if any(m.after or m.is_signal for m in members):
        heading("Stages")
        words = {
            m.job_key: " ".join(filter(None, (_undone(m), reasons.get(m.job_key)))) for m in members
        }
        print_table(stages.COLUMNS, stages.rows(members, words), empty="It has none.")
        return
    heading("Members")
    print_table(
        ["job", "name", "queue", "status", "undone", "why not"],
        [
            [m.job_id, m.name, m.queue_name, m.status, _undone(m), reasons.get(m.job_key)]
            for m in members
        ],
        empty="It has none.",
    )


def _print_advice(group: GroupInfo, members: list[GroupMember], where: str) -> None:
    """What a person can do about a group that waits for one."""
    if group.state is GroupState.FAILED_COMPENSATION:
        echo()
        echo("Fix the cause and try again, or fix it by hand and say so:")
        echo(f"  toril groups retry-compensation {where}")
        echo(f"  toril groups resolve {where} --note 'what was done'")
    if group.state is GroupState.BLOCKED:
        echo()
        echo("It can no longer be undone. Fix the cause and continue, or do it by hand and say so:")
        echo(f"  toril groups retry {where}")
        echo(f"  toril groups resolve {where} --note 'what was done'")
    for member in members:
        if member.status == "awaited":
            echo()
            echo(f"It waits for {member.key!r}:")
            echo(f"  toril groups complete-member {where} {shlex.quote(member.key)}")
            echo(f"  toril groups fail-member {where} {shlex.quote(member.key)} --reason 'why'")


def facts_of(group: GroupInfo) -> list[tuple[str, Any]]:
    """The facts about a group that fit on one line each; None where there is nothing to say."""
    return [
        ("id", group.id),
        ("name", group.name),
        ("state", group.state.value),
        ("created", when(group.created_at)),
        ("changed", when(group.updated_at)),
        ("jobs", group.total_jobs),
        ("completed", group.completed_count),
        ("failed", group.failed_count),
        ("cancelled", group.cancelled_count),
        ("failed job", group.failed_job_id),
        ("reason", group.reason),
        ("note", group.note),
        ("asks", group.asks),
    ]


def _undone(member: GroupMember) -> str | None:
    words = {"completed": "yes", "pending": "not yet", "failed": "no", "cancelled": "no"}
    return words.get(member.compensation_status or "")


def _reasons(server: Server, members: list[GroupMember]) -> dict[str, str]:
    """Why members could not be undone, by their keys."""
    keys = [m.compensation_key for m in members if m.compensation_status == "failed"]
    commands = []
    for key in keys:
        base, _, job_id = str(key).rpartition(":")
        name = base.removeprefix(f"{server.prefix}:")
        commands.append(reading.job(Keys(server.prefix, name), job_id))
    jobs = dict(zip(keys, server.connection.run_all(commands), strict=True)) if keys else {}
    found = {m.job_key: jobs.get(m.compensation_key) for m in members}
    return {key: job.failed_reason or "" for key, job in found.items() if job is not None}


@groups.command("cancel")
@queue_argument
@click.argument("group_id", metavar="ID")
@click.option("--reason", help="Why; kept with the group.")
@yes_option
@with_server
def cancel(server: Server, queue_name: str, group_id: str, reason: str | None, yes: bool) -> None:
    """Cancel the jobs of a group that have not started, and undo those that completed."""
    with server.queue(queue_name) as queue:
        group = _known(queue, group_id)
        confirm(
            f"Cancel group {group.name!r} with {counted(group.total_jobs, 'job')},"
            f" of which {group.completed_count} completed?",
            yes=yes,
        )
        queue.cancel_group(group_id, reason)
        after = _known(queue, group_id)
    say(server, f"Group {group_id} is {after.state.value}.", **_facts(after))


@groups.command("complete-member")
@queue_argument
@click.argument("group_id", metavar="ID")
@click.argument("member", metavar="MEMBER")
@click.option("--result", help="What it returns, as JSON.")
@with_server
def complete_member(
    server: Server, queue_name: str, group_id: str, member: str, result: str | None
) -> None:
    """Report that a member of a group completed: a signal, or one that blocks its group."""
    value = None if result is None else read_json(result, "--result")
    with server.queue(queue_name) as queue:
        queue.complete_member(group_id, member, value)
        after = _known(queue, group_id)
    say(
        server,
        f"{member!r} of group {group_id} is completed; it is {after.state.value}.",
        **_facts(after),
    )


@groups.command("fail-member")
@queue_argument
@click.argument("group_id", metavar="ID")
@click.argument("member", metavar="MEMBER")
@click.option("--reason", required=True, help="Why; kept with the group.")
@yes_option
@with_server
def fail_member(
    server: Server, queue_name: str, group_id: str, member: str, reason: str, yes: bool
) -> None:
    """Report that a member of a group failed; what was done is undone."""
    with server.queue(queue_name) as queue:
        group = _known(queue, group_id)
        confirm(f"Let member {member!r} of group {group.name!r} fail?", yes=yes)
        queue.fail_member(group_id, member, reason)
        after = _known(queue, group_id)
    say(
        server,
        f"{member!r} of group {group_id} has failed; it is {after.state.value}.",
        **_facts(after),
    )


@groups.command("retry")
@queue_argument
@click.argument("group_id", metavar="ID")
@with_server
def retry(server: Server, queue_name: str, group_id: str) -> None:
    """Retry the members that block a group in BLOCKED."""
    with server.queue(queue_name) as queue:
        retried = queue.retry_group(group_id)
    say(
        server,
        f"{counted(retried, 'member')} of group {group_id} will run again.",
        id=group_id,
        retried=retried,
    )


@groups.command("retry-compensation")
@queue_argument
@click.argument("group_id", metavar="ID")
@with_server
def retry_compensation(server: Server, queue_name: str, group_id: str) -> None:
    """Retry the failed compensations of a group in FAILED_COMPENSATION."""
    with server.queue(queue_name) as queue:
        retried = queue.retry_compensation(group_id)
    say(
        server,
        f"{counted(retried, 'compensation')} of group {group_id} will run again.",
        id=group_id,
        retried=retried,
    )


@groups.command("resolve")
@queue_argument
@click.argument("group_id", metavar="ID")
@click.option("--note", required=True, help="What was done by hand; kept with the group.")
@yes_option
@with_server
def resolve(server: Server, queue_name: str, group_id: str, note: str, yes: bool) -> None:
    """Close a group in FAILED_COMPENSATION that was fixed by hand; continue one in BLOCKED."""
    with server.queue(queue_name) as queue:
        group = _known(queue, group_id)
        broken = protocol.broken(group.state, queue.get_group_jobs(group_id))
        confirm(_question(group, broken), yes=yes)
        queue.resolve_group(group_id, note, expected_state=group.state, expected_members=broken)
        after = _known(queue, group_id)
    say(server, f"Group {group_id} is {after.state.value}.", **_facts(after))


def _question(group: GroupInfo, broken: list[str]) -> str:
    """What somebody who resolves a group is asked; it names the members that count as fixed."""
    which, names = f"group {group.name!r} ({group.state.value})", protocol.named(broken)
    if group.state is GroupState.BLOCKED:
        return f"Let {which} continue as if what failed were done ({names})?"
    return f"Close {which} as if what could not be undone were undone ({names})?"


def _known(queue: Queue, group_id: str) -> GroupInfo:
    group = queue.get_group_state(group_id)
    if group is None:
        raise GroupNotFoundError(f"queue {queue.name!r} has no group {group_id!r}")
    return group


def _facts(group: GroupInfo) -> dict[str, Any]:
    return {
        "id": group.id,
        "name": group.name,
        "state": group.state.value,
        "created_at": group.created_at,
        "updated_at": group.updated_at,
        "total_jobs": group.total_jobs,
        "completed_count": group.completed_count,
        "failed_count": group.failed_count,
        "cancelled_count": group.cancelled_count,
        "reason": group.reason,
        "note": group.note,
        "asks": group.asks,
    }
