"""Planted bugs in Python that the quick tests of their module do not find, by name."""

from __future__ import annotations

# ruff: noqa: E501

SURVIVORS: dict[str, str] = {
    "client/connection Connection._exchange_sendings: pass for continue #2": "what was mended goes again all the same, and the answer that comes then replaces the error",
    "client/connection Connection.post: (not (not self._has_written)) for not self._has_written": "what is not posted is run: a turn of the loop later, with the same answer",
    "worker/flight Flight.call: pass for continue": "what was mended is sent a twentieth of a second later",
    "worker/lease Lease._run: pass for continue": "after a renewal the mailbox is read for a millisecond, and then again",
    "worker/lease Lease._run: pass for self._connection.close()": "the line was cut when the thread was told to end: no client is left at the server",
}
"""Why each of them is not found; a bug that is found now comes off."""
