"""The queues of the worlds, and the slot of each: its name has a hash tag of its own.

On a single server the hash tags mean nothing. On a cluster, scripts are told so (``spread``), and
what goes from one of these queues to one with another hash tag goes as a parcel.
"""

from __future__ import annotations

from typing import NamedTuple

Q, COMPENSATION = "{a}q", "{a}q:compensation"
LETTERS, WRITTEN = "{b}q-dlq", "{b}letters"
"""Where workers bury, and letters that somebody wrote there."""
OTHER, OTHER_COMPENSATION = "{c}r", "{c}r:compensation"
"""Where members and children are that are in another slot than their group or their parent."""
OF_MEMBERS = (Q, OTHER)


class Layout(NamedTuple):
    """Which queues there are, and which jobs are elsewhere; on one server, or spread over slots."""

    queues: tuple[str, ...]
    elsewhere: frozenset[str] = frozenset()
    is_spread: bool = False

    def home(self, job_id: str) -> str:
        """The queue of a job, by its id."""
        return OTHER if job_id in self.elsewhere else Q


def tag_of(name: str) -> str:
    """What decides about the slot of a queue or a key."""
    return name[name.index("{") : name.index("}")]
