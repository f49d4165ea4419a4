"""Waiting until replicas have what a command wrote.

``WAIT`` speaks of what its own connection wrote before it, so it leaves in one message with the
command, whichever socket that takes and however often it is sent.  Only numbered commands may wait:
each of them writes its number, also one that comes again or finds nothing to add, and so there is
always something behind which ``WAIT`` can stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from toril.errors import NotReplicatedError
from toril.options import Replicas
from toril.protocol.command import Command, Resend
from toril.protocol.packing import Word

T = TypeVar("T")

_SLACK_MS = 3000
"""So that a server which answers late is not taken for one that waits for its replicas."""

Short = Callable[[Sequence[str]], NotReplicatedError]
"""Makes the error of jobs that too few replicas have."""


def words(replicas: Replicas) -> tuple[Word, ...]:
    """What is sent behind the command."""
    return ("WAIT", replicas.count, replicas.timeout_ms)


def replicated(
    command: Command[T], replicas: Replicas | None, tell: Callable[[T, Short], T]
) -> Command[T]:
    """The same command, answered when ``replicas`` have what it wrote.

    When too few of them have it in time, ``tell`` says so to whoever asked: it raises the error of
    the jobs that were added, or puts it in their place.
    """
    if replicas is None:
        return command
    assert command.resend is Resend.NUMBERED

    def parse(reply: tuple[Any, Any]) -> T:
        answer = command.parse(reply[0])
        reached = reply[1] if isinstance(reply[1], int) else 0
        if reached >= replicas.count:
            return answer
        why = f" (the server answered {reply[1]})" if isinstance(reply[1], Exception) else ""

        def short(job_ids: Sequence[str]) -> NotReplicatedError:
            return NotReplicatedError(job_ids, reached, replicas.count, replicas.timeout_ms, why)

        return tell(answer, short)

    return msgspec.structs.replace(
        command, parse=parse, replicas=replicas, block_ms=replicas.timeout_ms + _SLACK_MS
    )
