"""Planted bugs in Python that the quick tests of their module do not find, by name."""

from __future__ import annotations

# ruff: noqa: E501

SURVIVORS: dict[str, str] = {
    "client/connection Connection.post: (not (not self._has_written)) for not self._has_written": "what is not posted is run: a turn of the loop later, with the same answer",
    "client/transport Sockets.leave_all_but: pass for self.free.remove(line)": "a line that is closed is passed over by whoever borrows one",
    "worker/flight Flight.call: pass for continue": "what was mended is sent a twentieth of a second later",
    "worker/lease module: 3000.0 for 3.0": "the thread ends as soon as its line is cut; the limit is for one that hangs while it opens a line",
    "worker/lease Lease._run: pass for continue": "after a renewal the mailbox is read for a millisecond, and then again",
    "worker/lease Lease._run: pass for self._connection.close()": "the line was cut when the thread was told to end: no client is left at the server",
}
"""Why each of them is not found; a bug that is found now comes off."""
