"""Closing a blocking queue while another thread adds: what is cut off is said to be uncertain."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.helpers import wait_until_sync
from toril import NewJob
from toril.errors import AmbiguousResultError
from toril.sync import Queue
from toril.sync.line import Line


@pytest.mark.parametrize("verb", ["add", "add_bulk"])
def test_an_add_that_closing_cuts_off_is_uncertain(verb, start_server, monkeypatch):
    server = start_server()
    queue = Queue("mail", connection=server.unix_url)
    queue.add("opens a socket")
    server.freeze()
    is_sent = threading.Event()
    send = Line.send

    def notice(line: Line, *words: Any) -> None:
        send(line, *words)
        is_sent.set()

    monkeypatch.setattr(Line, "send", notice)
    met: list[Exception] = []

    def add() -> None:
        try:
            if verb == "add":
                queue.add("x")
            else:
                queue.add_bulk([NewJob("x", n) for n in range(1500)])
        except Exception as error:
            met.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    assert is_sent.wait(60)

    queue.close()
    thread.join(60)
    server.thaw()

    assert [type(error) for error in met] == [AmbiguousResultError]
    with Queue("mail", connection=server.unix_url) as again:
        wait_until_sync(lambda: again.get_waiting_count() > 1)
