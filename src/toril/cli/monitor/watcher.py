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
from toril.client.connection import Connection
from toril.client.finder import PATIENCE_S, Finder
from toril.protocol import glancing, groups
from toril.protocol.command import Command
from toril.protocol.events import Event
from toril.protocol.glancing import ActiveJob, FailedJob, Glance, LaneGlance
from toril.protocol.groups import GroupInfo, GroupMember
from toril.protocol.keys import Keys

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
    """One queue: its last look, its pace, and its last events."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.glance: Glance | None = None
        self.needing_a_person = 0
        """How many of its groups go no further by themselves."""
        self.pace = Pace()
        self.events: deque[Event] = deque(maxlen=EVENTS_PER_LOOK)
        self._last_event = glancing.BEGINNING

    @property
    def name(self) -> str:
        return self.keys.name

    def look(self) -> Command[Glance]:
        return glancing.look(self.keys, after=self._last_event, most=EVENTS_PER_LOOK)

    def note(self, glance: Glance, now_s: float) -> None:
        """Take in the answer to the last look."""
        self.glance = glance
        self.pace.note(glance, now_s)
        self.events.extend(glance.events)
        if glance.events:
            self._last_event = glance.events[-1].id


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
        self._finder = None if names else Finder(connection, prefix)
        self.left_out = 0
        self.queues: dict[str, QueueWatch] = {}
        self.details = Details()
        self.letters: LetterSurvey | None = None
        self._adopt(names)

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
        if self._finder is not None:
            self._adopt(await self._finder.names(patience_s=0.0 if self.queues else PATIENCE_S))
        watches = list(self.queues.values())
        watch = self.queues.get(chosen or "")
        commands: list[Command[Any]] = [each.look() for each in watches]
        owners = [each for each in watches if each.glance is not None and each.glance.groups]
        commands += [groups.count_needing_a_person(each.keys) for each in owners]
        if watch is not None:
            commands += self._detail_commands(watch.keys, view, group_id)
        answers = await self._connection.run_all(commands) if commands else []
        now_s = self._clock()
        for each in watches:
            each.note(answers.pop(0), now_s)
        for each in owners:
            each.needing_a_person = answers.pop(0)
        if watch is not None:
            self._note_details(view, answers)
            await self._read_details(watch, view)

    async def _read_details(self, watch: QueueWatch, view: View) -> None:
        """What takes more than one round trip; as much of it as the screen shows."""
        if view is View.FAILED:
            is_any = watch.glance is not None and watch.glance.failed
            plan = glancing.failed(watch.keys, most=MOST_ROWS)
            self.details.failed = await self._connection.follow(plan) if is_any else []
        if view is View.GROUPS and watch.needing_a_person:
            plan_of_groups = groups.needing_a_person(watch.keys, most=MOST_ROWS)
            first = await self._connection.follow(plan_of_groups)
            known = {group.id for group in first}
            self.details.groups = first + [
                group for group in self.details.groups if group.id not in known
            ]

    def _detail_commands(self, keys: Keys, view: View, group_id: str | None) -> list[Command[Any]]:
        match view:
            case View.ACTIVE:
                return [glancing.active(keys, most=MOST_ROWS)]
            case View.LANES:
                return [glancing.lanes_at_work(keys, most=MOST_ROWS)]
            case View.GROUPS:
                newest: Command[Any] = glancing.newest_groups(keys, most=MOST_ROWS)
                return [newest, groups.members(keys, group_id)] if group_id else [newest]
            case View.LETTERS:
                if self.letters is None or self.letters.keys.base != keys.base:
                    self.letters = LetterSurvey(keys)
                return [self.letters.next_command()]
            case View.EVENTS | View.FAILED:
                return []

    def _note_details(self, view: View, answers: list[Any]) -> None:
        match view:
            case View.ACTIVE:
                self.details.active = answers[0]
            case View.LANES:
                self.details.lanes = answers[0]
            case View.GROUPS:
                self.details.groups = answers[0]
                self.details.members = answers[1] if len(answers) > 1 else []
            case View.LETTERS if self.letters is not None:
                self.letters.note(answers[0])
            case _:
                pass

    def _adopt(self, names: Sequence[str]) -> None:
        if not self.is_searching:
            for name in set(self.queues) - set(names):
                del self.queues[name]
        for name in names:
            if name not in self.queues and len(self.queues) < MOST_QUEUES:
                self.queues[name] = QueueWatch(Keys(self.prefix, name))
        if self._finder is not None:
            self.queues = dict(sorted(self.queues.items()))
        self.left_out = len(names) - len(self.queues)
