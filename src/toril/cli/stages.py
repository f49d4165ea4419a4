"""The stages of a group as a table: who comes after whom, and where the group stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toril.cli.printing import when
from toril.protocol.groups import GroupMember, GroupStep

HERE = ("pending", "active", "awaited", "failed")
"""A stage in which a member is one of these is where the group stands."""

COLUMNS = ["stage", "member", "queue", "status", "after", "undone", "job"]


def stage_of(members: Sequence[GroupMember]) -> dict[str, int]:
    """The stage of each member by its key: one more than the latest of those that it waits for."""
    after = {member.key: member.after for member in members}
    found: dict[str, int] = {}
    left = list(after)
    while left:
        ready = [key for key in left if all(one in found or one not in after for one in after[key])]
        for key in ready or left:  # a graph that somebody damaged is shown all the same
            found[key] = 1 + max((found.get(one, 0) for one in after[key]), default=0)
        left = [key for key in left if key not in found]
    return found


def rows(members: Sequence[GroupMember], undone: Mapping[str, str]) -> list[list[str]]:
    """A row for each member, stage by stage; ``undone`` says by job key how undoing it went."""
    stages = stage_of(members)
    standing = {stages[member.key] for member in members if member.status in HERE}
    drawn: list[list[str]] = []
    last = 0
    for member in sorted(members, key=lambda one: stages[one.key]):
        stage = stages[member.key]
        mark = "▶" if stage in standing else " "
        drawn.append(
            [
                f"{mark} {stage}" if stage != last else "",
                member.key,
                "(signal)" if member.is_signal else member.queue_name,
                member.status,
                ", ".join(member.after),
                undone.get(member.job_key, ""),
                "" if member.is_signal or member.status == "planned" else member.job_id,
            ]
        )
        last = stage
    return drawn


def timeline_rows(steps: Sequence[GroupStep]) -> list[list[str]]:
    """A row for each thing that happened."""
    return [
        [when(step.at) or "", step.member or "", step.what, step.reason or ""] for step in steps
    ]
