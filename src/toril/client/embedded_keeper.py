"""The keeper of an embedded server: runs it, and stops it when the last user is gone.

A separate script that imports nothing from Toril, so that it starts in a few milliseconds and
holds little memory. `embedded.py` starts it in the server's directory, with the path of the
server and the number of an open file: ``keeper.lock``, locked, which stays locked as long as
this process lives.

If the server dies while it has users, the keeper starts it again from its files. If the keeper
dies, the next user starts another, which adopts the server that is still running.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType

SOCKET_NAME = "valkey.sock"
LOG_NAME = "valkey.log"
DATA_NAME = "appendonlydir"
# A server that dies sooner than this would only die again.
SHORTEST_LIFE_S = 1.0
ADOPTED_POLL_S = 0.5
STOP_POLL_S = 0.01
LONGEST_STOP_S = 60.0

# Paths are relative to the directory, so that neither their length nor a blank in them matters.
OPTIONS = {
    "port": "0",
    "unixsocket": SOCKET_NAME,
    "unixsocketperm": "700",
    "dir": ".",
    "logfile": LOG_NAME,
    "daemonize": "no",
    "save": "",
    "appendonly": "yes",
    "appenddirname": DATA_NAME,
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
}


def main() -> None:
    binary = sys.argv[1]
    # Log and data contain what jobs carry: only this user may read them, wherever they are.
    os.umask(0o077)
    _close_to_others()
    _detach()
    keeper = Keeper(binary)
    signal.signal(signal.SIGTERM, keeper.on_signal)
    threading.Thread(target=keeper.keep_running, daemon=True).start()
    keeper.wait_for_the_last_user()
    keeper.stop()


class Keeper:
    """Keeps the server running from one thread, and waits for the last user in another."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._server: Server | None = adopt()

    def keep_running(self) -> None:
        """Start the server, and restart it whenever it dies, until told to stop."""
        while True:
            with self._guard:
                if self._stopping.is_set():
                    return
                server = self._server or spawn(self._binary)
                self._server = server
            started = time.monotonic()
            server.wait()
            with self._guard:
                self._server = None
                if self._stopping.is_set():
                    return
            if time.monotonic() - started < SHORTEST_LIFE_S:
                # The user that waits for us sees that our lock is released, and reads the log.
                os._exit(1)

    def wait_for_the_last_user(self) -> None:
        users = os.open("users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        # Never closed: a user that arrives while we stop the server waits until we have exited.
        fcntl.flock(users, fcntl.LOCK_EX)

    def stop(self) -> None:
        with self._guard:
            self._stopping.set()
            server = self._server
        if server is not None:
            server.stop()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        # The code that this interrupts may hold the guard, so another thread does the stopping.
        def stop_and_exit() -> None:
            self.stop()
            os._exit(0)

        threading.Thread(target=stop_and_exit, daemon=True).start()


class Server:
    """A running server, identified by its process id: our child, or one that we adopted."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        self._pid = pid
        self._child = child

    def wait(self) -> None:
        if self._child is not None:
            self._child.wait()
            return
        while self._is_alive():
            time.sleep(ADOPTED_POLL_S)

    def stop(self) -> None:
        """Let the server save everything and exit; kill it only if it does not."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + LONGEST_STOP_S
        while self._is_alive():
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
                return
            time.sleep(STOP_POLL_S)

    def _is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


def spawn(binary: str) -> Server:
    command = [binary]
    for name, value in OPTIONS.items():
        command += [f"--{name}", value]
    with open(LOG_NAME, "ab") as log:  # noqa: PTH123 - pathlib costs half of the start-up
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return Server(child.pid, child)


def adopt() -> Server | None:
    """The server that a dead keeper left running in this directory, if there is one.

    One that is frozen or busy, or that refuses us, is still there, and a second one would damage
    its files. So this takes as long as it takes; users have a limit of their own, and say so.
    """
    while True:
        try:
            pid = _ask_for_pid()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError:
            pid = None
        if pid is not None:
            return Server(pid, None)
        time.sleep(ADOPTED_POLL_S)


def _ask_for_pid() -> int | None:
    """The server's process id; None if it answers with an error or hangs up."""
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(SOCKET_NAME)
        # After QUIT the server hangs up, so that the end of its answer is seen, whatever it is.
        connection.sendall(b"INFO server\r\nQUIT\r\n")
        while received := connection.recv(65536):
            answer += received
    found = answer.partition(b"process_id:")[2].split(maxsplit=1)
    return int(found[0]) if found else None


def _close_to_others() -> None:
    """Earlier versions left the log and the data readable for everybody."""
    for name, mode in ((LOG_NAME, 0o600), (DATA_NAME, 0o700)):
        with contextlib.suppress(OSError):
            os.chmod(name, mode)  # noqa: PTH101 - pathlib costs half of the start-up


def _detach() -> None:
    """Detach from the process that started us: it must not wait for us, nor end us with it."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)


if __name__ == "__main__":
    main()
