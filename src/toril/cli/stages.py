"""The stages of a group as a table: who comes after whom, and where the group stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toril.cli.printing import when
from toril.protocol.groups import GroupMember, GroupStep, stage_of

HERE = ("pending", "active", "awaited", "failed")
"""A stage in which a member is one of these is where the group stands."""

COLUMNS = ["stage", "member", "queue", "status", "after", "undone", "job"]


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
