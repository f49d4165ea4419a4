"""Put the peers into ``.peers/``: a virtual environment per Python peer, one folder for Node.

Nothing is installed twice: a stamp records what was requested, and a changed list installs again.
A peer that cannot be installed (no network, no Node) is left out of the run, with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
PEERS = ROOT / ".peers"
NODE_PACKAGES = ("bullmq@6", "bullmq5@npm:bullmq@5", "groupmq", "ioredis")
BASIC = frozenset({"add", "add_bulk", "add_concurrent", "drain", "latency"})
SMALL_DRAINS = frozenset({"drain_1", "drain_10", "drain_5ms"})


class NotInstallableError(Exception):
    """A peer cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Peer:
    """One other queue: where its program is, what it needs, and which measures it supports."""

    name: str
    label: str
    program: str
    measures: frozenset[str]
    requirements: tuple[str, ...] = ()
    package: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def is_node(self) -> bool:
        return self.program.endswith(".js")


PEER_LIST = (
    Peer(
        "bullmq6",
        "BullMQ 6 (Node)",
        "bullmq.js",
        BASIC | SMALL_DRAINS,
        package="bullmq",
        environment={"BULLMQ": "bullmq"},
    ),
    Peer(
        "bullmq5",
        "BullMQ 5 (Node)",
        "bullmq.js",
        BASIC | SMALL_DRAINS,
        package="bullmq5",
        environment={"BULLMQ": "bullmq5"},
    ),
    Peer(
        "groupmq",
        "GroupMQ (Node)",
        "groupmq.js",
        (BASIC - {"add_bulk"}) | {"lanes", "many_lanes"},
        package="groupmq",
        note="100 groups; 10,000 for many lanes",
    ),
    Peer(
        "bullmq-python", "bullmq (Python)", "bullmq_py.py", BASIC, ("bullmq", "hiredis"), "bullmq"
    ),
    Peer(
        "arq",
        "arq",
        "arq_py.py",
        BASIC - {"add_bulk"},
        ("arq", "hiredis"),
        "arq",
        note="poll_delay 10 ms instead of its 500 ms",
    ),
    Peer(
        "saq",
        "SAQ",
        "saq_py.py",
        BASIC - {"add_bulk"},
        ("saq", "typing_extensions", "redis", "hiredis"),
        "saq",
    ),
    Peer(
        "dramatiq",
        "dramatiq",
        "dramatiq_py.py",
        BASIC - {"add_bulk"},
        ("dramatiq[redis]", "hiredis"),
        "dramatiq",
        note="threads: 8 workers; concurrent adds from 100 threads",
    ),
    Peer(
        "taskiq",
        "taskiq",
        "taskiq_py.py",
        BASIC - {"add_bulk"},
        ("taskiq", "taskiq-redis", "hiredis"),
        "taskiq",
    ),
    Peer("streaq", "streaq", "streaq_py.py", BASIC, ("streaq", "hiredis"), "streaq"),
)


def install(peer: Peer) -> str:
    """Make the peer ready and return its version."""
    return _install_node(peer) if peer.is_node else _install_python(peer)


def command(peer: Peer) -> list[str]:
    """How its program is started."""
    program = str(BENCHMARKS / "peers" / peer.program)
    if peer.is_node:
        return ["node", program]
    return [str(_python(PEERS / peer.name)), program]


def environment(peer: Peer) -> dict[str, str]:
    """What its program needs in the environment in addition to ours."""
    if peer.is_node:
        return {"NODE_PATH": str(PEERS / "node" / "node_modules"), **peer.environment}
    return {"PYTHONPATH": str(BENCHMARKS)}


def _install_python(peer: Peer) -> str:
    home = PEERS / peer.name
    wanted = "\n".join(peer.requirements)
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        _say(f"installing {peer.label}")
        venv.create(home, with_pip=True, clear=home.exists())
        _run([str(_python(home)), "-m", "pip", "install", "-q", *peer.requirements], home)
        stamp.write_text(wanted)
    question = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
    return _run([str(_python(home)), "-c", question], home).strip()


def _install_node(peer: Peer) -> str:
    if not shutil.which("node") or not shutil.which("npm"):
        raise NotInstallableError("Node and npm are not installed")
    home = PEERS / "node"
    wanted = "\n".join(NODE_PACKAGES)
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        _say("installing the Node peers")
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}\n')
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES], home)
        stamp.write_text(wanted)
    manifest = home / "node_modules" / peer.package / "package.json"
    return str(json.loads(manifest.read_text())["version"])


def _python(home: Path) -> Path:
    return home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise NotInstallableError(f"{arguments[0]} failed: {lines[-1]}")
    return done.stdout


def _say(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    for each in PEER_LIST:
        try:
            _say(f"{each.label} {install(each)}")
        except NotInstallableError as reason:
            _say(f"{each.label} left out: {reason}")
