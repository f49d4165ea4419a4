"""The dead letters of a queue by fingerprint, counted a slice at a time."""

from __future__ import annotations

from collections.abc import Sequence

from toril.protocol import dead_letters
from toril.protocol.command import Command
from toril.protocol.dead_letters import Filter, Group, Slice, Walk
from toril.protocol.keys import Keys


class LetterSurvey:
    """Walks round and round through the dead letters, one command at a time.

    ``groups`` is what the last whole walk found, or the first one so far.
    """

    def __init__(self, label: str, queues: Sequence[Keys]) -> None:
        self.label = label
        """Which row of the monitor they belong to."""
        self.queues = queues
        """More than one for a queue that has partitions: they are walked through in turn."""
        self._at = 0
        self.groups: dict[str, Group] = {}
        self.is_complete = False
        self._walk = Walk()
        self.others = 0
        """Jobs there that no Toril worker buried: only their data tell whether they are letters."""
        self._found: dict[str, Group] = {}
        self._asked = 0
        self._elsewhere: tuple[dict[str, Group], int] = ({}, 0)

    def next_command(self) -> Command[Slice]:
        return dead_letters.survey_slice(self.queues[self._at], self._walk, Filter())

    def note(self, result: Slice) -> None:
        """Take in the answer to the last command."""
        if dead_letters.has_begun_anew(self._walk, result):
            self._found, self._asked = dict(self._elsewhere[0]), self._elsewhere[1]
        for fingerprint, group in result.groups.items():
            self._found[fingerprint] = group.merged(self._found.get(fingerprint))
        self._asked += len(result.asked)
        if not self.is_complete:
            self.groups = dict(self._found)
        if result.is_done:
            self._elsewhere = dict(self._found), self._asked
        if result.is_last and self._at + 1 < len(self.queues):
            self._at, self._walk = self._at + 1, Walk()
            return
        if result.is_last:
            self._at = 0
            self.groups, self.others, self.is_complete = self._found, self._asked, True
            self._walk, self._found, self._asked = Walk(), {}, 0
            self._elsewhere = {}, 0
            return
        self._walk = dead_letters.after(self._walk, result)
