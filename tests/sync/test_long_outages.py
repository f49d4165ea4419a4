"""A server that is away for long: however often it was tried, the next time counts."""

from __future__ import annotations

import pytest

from toril.errors import ServerUnavailableError
from toril.protocol.command import plain
from toril.sync.connection import Connection

PING = plain("PING", parse=bytes)


def test_a_connection_works_again_after_hundreds_of_failed_attempts(start_server):
    server = start_server(tcp=True)
    connection = Connection(server.url, patience_s=0.0)
    assert connection.run(PING) == b"PONG"
    server.stop()
    for _ in range(150):
        with pytest.raises(ServerUnavailableError):
            connection.run(PING)

    server.start()

    assert connection.run(PING) == b"PONG"
    connection.close()
