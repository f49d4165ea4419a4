"""Planted bugs in Python that the quick tests of their module do not find, by name."""

from __future__ import annotations

# ruff: noqa: E501

SURVIVORS: dict[str, str] = {
    "client/transport module: 16000 for 16": "a number of sockets that no quick test reaches; more of them are slower, not wrong",
    "client/transport module: 500.0 for 0.5": "how long a silent primary is waited for; the tests with Sentinel look at it",
    "client/transport ServerTransport._follow_primary: pass for sockets.is_open.set()": "only with Sentinel: tests/worker/test_sentinel.py",
    "client/connection module: 2000.0 for 2.0": "how long it is until the next try; no quick test waits that long for a server to come back",
    "client/waiting QueueWaiting.wait_for: (not (not listening.is_reading)) for not listening.is_reading": "the result is looked up once more or less before listening; it is looked up again after it in any case",
    "client/waiting QueueWaiting.wait_for: pass for listening.refuse_if_closed()": "a closed queue refuses at the next command all the same",
    "client/waiting QueueWaiting.wait_until_empty: pass for listening.refuse_if_closed()": "a closed queue refuses at the next command all the same",
    "worker/pump module: 200000 for 200": "a limit that no quick test reaches; tests/worker/test_big_jobs.py names it",
    "worker/pump Pump._on_news: (not (self._outbox.held - self._leaving == len(self._outbox.finished))) for self._outbox.held - self._leaving == len(self._outbox.finished)": "a call leaves a turn later, or too early; tests/worker/test_cost.py counts turns and calls",
    "worker/pump Pump.wait_and_take: (not (self._takes)) for self._takes": "a wait that is cut short; the crash points (tests/crash) look at it",
    "worker/pump Pump._digest: (not (jobs)) for jobs #2": "when a worker tells that it has drained the queue; tests/worker/test_local_events.py looks at it",
    "worker/pump Pump._digest: (not (self._has_found)) for self._has_found": "when a worker tells that it has drained the queue; tests/worker/test_local_events.py looks at it",
    "client/transport Sockets.cut: (not (self.watch is not None)) for self.watch is not None": "a timer is left that finds nothing to do",
    "client/connection module: 64000 for 64": "how many commands are under way at once; more of them need more memory",
    "client/batching Batcher._send: (not (not future.done())) for not future.done()": "only for one who gave up waiting while the call was under way",
    "client/transport ServerTransport.close: pass for self._server.close()": "a gap: no quick test looks whether the line is closed",
    "client/connection Connection.close: pass for await self._transport.close()": "a gap: no quick test looks whether the line is closed",
    "client/connection Connection._exchange_sendings: (not (end is reply)) for end is reply": "a gap: no quick test has several errors in one pipeline",
}
"""Why each of them is not found; a bug that is found now comes off."""
