"""Counts what clients send to a server of the test's own: exact on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers import Server


class Counted:
    """What came of the commands that clients sent."""

    def __init__(self) -> None:
        self.commands: dict[str, int] = {}


@contextmanager
def counting(server: Server) -> Iterator[Counted]:
    """Count what clients send; what scripts do inside the server is not counted."""
    counted = Counted()
    with server.client() as raw, server.client() as watching:
        raw.ping()
        with watching.monitor() as monitor:
            yield counted
            raw.echo("the end")
            for seen in monitor.listen():
                verb = seen["command"].split(" ")[0].upper()
                if verb == "ECHO":
                    break
                if seen["client_type"] != "lua":
                    counted.commands[verb] = counted.commands.get(verb, 0) + 1
