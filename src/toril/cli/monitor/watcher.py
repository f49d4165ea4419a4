"""What the monitor asks the server: the same number of commands at every tick.

One look at each queue, and one or two commands for the open view of the chosen queue.  How many
jobs there are makes no difference.  The search for queues goes on beside the ticks (``Finder``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from toril.cli.monitor.letters import LetterSurvey
from toril.cli.monitor.pace import Pace
from toril.client.agreeing import sizes_of
from toril.client.connection import Connection
from toril.client.finder import PATIENCE_S, Finder
from toril.protocol import glancing, groups, partitioning, reading
from toril.protocol.command import Command
from toril.protocol.events import Event
from toril.protocol.glancing import ActiveJob, FailedJob, Glance, LaneGlance
from toril.protocol.groups import GroupInfo, GroupMember
from toril.protocol.keys import Keys
from toril.protocol.partitioning import Row

MOST_QUEUES = 50
MOST_ROWS = 100
EVENTS_PER_LOOK = 200


class View(StrEnum):
    """What of the chosen queue is shown."""

    ACTIVE = "active"
    LANES = "lanes"
    GROUPS = "groups"
    LETTERS = "letters"
    EVENTS = "events"
    FAILED = "failed"


class QueueWatch:
    """One queue: its last look, its pace, and its last events.

    A queue with partitions is made of several ``queues``, and is shown as one.
    """

    def __init__(self, keys: Keys, queues: Sequence[Keys] = (), label: str = "") -> None:
        self.keys = keys
        self.label = label or keys.name
        """Its name on the screen: a plain queue may be beside partitions of the same name."""
        self.queues = list(queues) or [keys]
        self.glance: Glance | None = None
        self.needing_a_person = 0
        """How many of its groups go no further by themselves."""
        self.pace = Pace()
        self.events: deque[Event] = deque(maxlen=EVENTS_PER_LOOK)
        self._last_events = [glancing.BEGINNING] * len(self.queues)

    @property
    def name(self) -> str:
        return self.keys.name

    def look(self) -> list[Command[Glance]]:
        return [
            glancing.look(keys, after=last, most=EVENTS_PER_LOOK)
            for keys, last in zip(self.queues, self._last_events, strict=True)
        ]

    def note(self, glances: list[Glance], now_s: float) -> None:
        """Take in the answers to the last look."""
        for number, one in enumerate(glances):
            if one.events:
                self._last_events[number] = one.events[-1].id
        self.glance = glance = glancing.together(glances)
        self.pace.note(glance, now_s)
        self.events.extend(glance.events)


class Details(msgspec.Struct):
    """What the open view shows of the chosen queue."""

    active: list[ActiveJob] = []
    failed: list[FailedJob] = []
    lanes: list[LaneGlance] = []
    groups: list[GroupInfo] = []
    members: list[GroupMember] = []


class Watcher:
    """Looks at the queues that are named, or at all that it finds under the prefix."""

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        names: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self.prefix = prefix
        self._clock = clock
        self._named = [Keys(prefix, name) for name in names]
        self._finder = None if names else Finder(connection, prefix)
        self.left_out = 0
        self.queues: dict[str, QueueWatch] = {}
        self.details = Details()
        self.letters: LetterSurvey | None = None
        self._stems: dict[str, int] = {}
        """How many partitions the queues have that others may be partitions of; 0 for none."""
        self._adopt([Row(name, (name,)) for name in names])

    @property
    def is_searching(self) -> bool:
        """Has a part of the key space never been looked at?"""
        return self._finder is not None and self._finder.is_searching

    async def close(self) -> None:
        """Stop searching."""
        if self._finder is not None:
            await self._finder.close()

    async def tick(
        self, chosen: str | None = None, view: View = View.EVENTS, group_id: str | None = None
    ) -> None:
        """Look at everything once."""
        if self._finder is None:
            self._adopt(await self._rows_of_named())
        else:
            await self._find(
                await self._finder.names(patience_s=0.0 if self.queues else PATIENCE_S)
            )
        watches = list(self.queues.values())
        watch = self.queues.get(chosen or "")
        commands: list[Command[Any]] = [look for each in watches for look in each.look()]
        owners = [each for each in watches if each.glance is not None and each.glance.groups]
        commands += [groups.count_asking(keys) for each in owners for keys in each.queues]
        if watch is not None:
            commands += self._detail_commands(watch, view, group_id)
        answers = await self._connection.run_all(commands) if commands else []
        now_s = self._clock()
        for each in watches:
            each.note([answers.pop(0) for _ in each.queues], now_s)
        for each in owners:
            each.needing_a_person = sum(answers.pop(0) for _ in each.queues)
        if watch is not None:
            self._note_details(view, answers, len(watch.queues))
            await self._read_details(watch, view)

    async def _read_details(self, watch: QueueWatch, view: View) -> None:
        """What takes more than one round trip; as much of it as the screen shows."""
        if view is View.FAILED:
            is_any = watch.glance is not None and watch.glance.failed
            plans = [glancing.failed(keys, most=MOST_ROWS) for keys in watch.queues if is_any]
            found = [await self._connection.follow(plan) for plan in plans]
            failed = sorted(_joined(found), key=lambda job: -job.finished_on)
            self.details.failed = failed[:MOST_ROWS]
        if view is View.GROUPS and watch.needing_a_person:
            first: list[GroupInfo] = []
            for keys in watch.queues:
                plan_of_groups = groups.needing_a_person(keys, most=MOST_ROWS)
                first += await self._connection.follow(plan_of_groups)
            known = {group.id for group in first}
            self.details.groups = first + [
                group for group in self.details.groups if group.id not in known
            ]

    def _detail_commands(
        self, watch: QueueWatch, view: View, group_id: str | None
    ) -> list[Command[Any]]:
        queues = watch.queues
        match view:
            case View.ACTIVE:
                return [glancing.active(one, most=MOST_ROWS) for one in queues]
            case View.LANES:
                return [glancing.lanes_at_work(one, most=MOST_ROWS) for one in queues]
            case View.GROUPS:
                newest: list[Command[Any]] = [
                    glancing.newest_groups(one, most=MOST_ROWS) for one in queues
                ]
                members = [groups.first_members(one, group_id) for one in queues if group_id]
                return newest + members
            case View.LETTERS:
                if self.letters is None or self.letters.queues is not queues:
                    self.letters = LetterSurvey(watch.label, queues)
                return [self.letters.next_command()]
            case View.EVENTS | View.FAILED:
                return []

    def _note_details(self, view: View, answers: list[Any], queues: int) -> None:
        match view:
            case View.ACTIVE:
                self.details.active = _joined(answers)
            case View.LANES:
                self.details.lanes = _joined(answers)
            case View.GROUPS:
                self.details.groups = _joined(answers[:queues])
                self.details.members = _joined(answers[queues:])
            case View.LETTERS if self.letters is not None:
                self.letters.note(answers[0])
            case _:
                pass

    async def _find(self, names: Sequence[str]) -> None:
        """Look at these queues, at those of them together that are partitions of one."""
        unknown = [one for one in partitioning.wholes_of(names) if one not in self._stems]
        sizes = await sizes_of(self._connection, self.prefix, unknown)
        self._stems |= {stem: sizes.get(stem, 0) for stem in unknown}
        self._adopt(partitioning.fold(names, self._stems))

    async def _rows_of_named(self) -> list[Row]:
        """The named queues, those that have partitions whole.

        Asked each time: a queue that is watched may be made, or grow, meanwhile.
        """
        names = [keys.name for keys in self._named]
        sizes = await sizes_of(self._connection, self.prefix, names)
        rows: list[Row] = []
        for keys in self._named:
            if keys.name not in sizes:
                rows.append(Row(keys.name, (keys.name,)))
                continue
            rows.append(partitioning.whole_row(keys.name, sizes[keys.name]))
            if await self._connection.run(reading.is_found(keys)):
                rows.append(Row(keys.name, (keys.name,), is_beside=True))
        return rows

    def _adopt(self, rows: Sequence[Row]) -> None:
        names = [row.label for row in rows]
        if not self.is_searching:
            for name in set(self.queues) - set(names):
                del self.queues[name]
        for row in rows:
            watch = self.queues.get(row.label)
            if watch is None and len(self.queues) >= MOST_QUEUES:
                continue
            if watch is None or len(watch.queues) != len(row.queues):
                queues = [Keys(self.prefix, name) for name in row.queues]
                self.queues[row.label] = QueueWatch(Keys(self.prefix, row.name), queues, row.label)
        if self._finder is not None:
            self.queues = dict(sorted(self.queues.items()))
        self.left_out = len(names) - len(self.queues)


def _joined(parts: Sequence[list[Any]]) -> list[Any]:
    return [item for part in parts for item in part]
