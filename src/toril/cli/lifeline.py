"""Children of a command end when it is gone, however it died: SIGKILL tells nobody.

The parent holds one end of a pipe into which nobody writes, and each child reads from the other.
The system closes the parent's end with the parent; the child then does what SIGTERM asks of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading

from toril.errors import UnsupportedPlatformError

_NAME = "TORIL_LIFELINE"
"""In a child's environment: the number of the file to read from."""


class Lifeline:
    """The parent's side; it must live as long as its children."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise UnsupportedPlatformError(
                "--processes and --reload hand a pipe to the processes that they start, as Unix"
                " does, which this operating system cannot; start `toril worker` several times, or"
                " again after a change"
            )
        self._theirs, self._ours = os.pipe()

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a child in a session of its own: Ctrl-C reaches it through the parent, once."""
        return subprocess.Popen(
            command,
            env={**os.environ, **environment, _NAME: str(self._theirs)},
            start_new_session=True,
            pass_fds=[self._theirs],
        )

    def close(self) -> None:
        """Let go of the children, which then end."""
        os.close(self._theirs)
        os.close(self._ours)


def hold_lifeline() -> None:
    """In a child: stop as on SIGTERM when the parent is gone; elsewhere nothing."""
    # Taken out of the environment: the programs that a handler starts have other files.
    number = os.environ.pop(_NAME, None)
    if number is not None:
        os.set_inheritable(int(number), False)
        threading.Thread(
            target=_end_with_parent, args=(int(number),), name="toril-lifeline", daemon=True
        ).start()


def _end_with_parent(number: int) -> None:
    os.read(number, 1)
    os.kill(os.getpid(), signal.SIGTERM)
