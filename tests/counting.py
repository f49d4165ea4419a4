"""Counts what clients and scripts do at a server of the test's own: exact on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tests.servers import Server
from toril.protocol import scripts


class Counted:
    """What came of the commands that clients sent."""

    def __init__(self) -> None:
        self.commands: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        """The calls of our library by their names, without those that only read."""

    def _count(self, words: list[str]) -> None:
        verb = words[0].upper()
        self.commands[verb] = self.commands.get(verb, 0) + 1
        call = words[1].partition("_")[0] if verb == "FCALL" else None
        if verb == "EVALSHA":
            call = _calls_by_hash().get(words[1])
        if call is not None:
            self.calls[call] = self.calls.get(call, 0) + 1


@cache
def _calls_by_hash() -> dict[str, str]:
    named = {name: scripts.load(name) for name in scripts.library().calls}
    return {one.sha: name for name, one in named.items() if not one.is_reading}


@contextmanager
def counting(server: Server) -> Iterator[Counted]:
    """Count what clients send; what scripts do inside the server is not counted."""
    counted = Counted()
    with seeing(server) as seen:
        yield counted
    for sender, command in seen:
        if sender != "lua":
            counted._count(command.split(" "))


@contextmanager
def inside(server: Server) -> Iterator[list[str]]:
    """The commands that scripts run meanwhile."""
    commands: list[str] = []
    with seeing(server) as seen:
        yield commands
    commands += [command for sender, command in seen if sender == "lua"]


@contextmanager
def seeing(server: Server) -> Iterator[list[tuple[str, str]]]:
    """Everything that the server runs, and who sent it; complete when the block has ended."""
    seen: list[tuple[str, str]] = []
    with server.client() as raw, server.client() as watching:
        raw.ping()
        with watching.monitor() as monitor:
            yield seen
            raw.echo("the end")
            for one in monitor.listen():
                if verb_of(one["command"]) == "ECHO":
                    break
                seen.append((one["client_type"], one["command"]))


def verb_of(command: str) -> str:
    return command.split(" ", maxsplit=1)[0].upper()
