"""The server, or each of a cluster's: version, memory, persistence, clock, access."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec

from toril.doctor.finding import Finding, Severity
from toril.doctor.reader import SLOT_COUNT, ConnectionReader
from toril.protocol.discovering import ClusterNode

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)
_LATE_MS = 1000
_FAR_OFF_MS = 30_000


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells of itself; None where it may not."""

    info: dict[str, str] | None = None
    save: str | None = None
    user: str | None = None
    has_password: bool | None = None
    clock_ms: int = 0
    """By how much our clock is ahead of the server's."""


async def examine_servers(reader: ConnectionReader) -> list[Finding]:
    """The one server, or every node of a cluster and the cluster as a whole."""
    facts = await asyncio.gather(*(read_facts(reader, node) for node in reader.nodes))
    findings: list[Finding] = []
    for node, of_node in zip(reader.nodes, facts, strict=True):
        for one in check_server(of_node):
            subject = f"{one.subject} {node.address}".rstrip()
            findings.append(msgspec.structs.replace(one, subject=subject))
    return [*findings, *_silent(reader.silent), *_uncovered(reader.slots_without_node)]


def _silent(nodes: Sequence[ClusterNode]) -> Iterator[Finding]:
    for node in nodes:
        slots = ", ".join(f"{low}-{high}" for low, high in node.ranges)
        yield Finding(
            code="D112",
            severity=Severity.ERROR,
            subject=f"server {node.address}",
            problem=f"this node of the cluster does not answer; it has the slots {slots}",
            harm="Queues in these slots stand still; they could not be examined.",
            remedy="Start it, or let a replica take over: CLUSTER FAILOVER FORCE on the replica.",
        )


def _uncovered(slots: int) -> Iterator[Finding]:
    if slots:
        yield Finding(
            code="D113",
            severity=Severity.ERROR,
            subject="cluster",
            problem=f"{slots} of {SLOT_COUNT} slots belong to no node",
            harm="Queues in these slots cannot be used, and by default none on the whole cluster.",
            remedy="Give every slot to a node: CLUSTER ADDSLOTS, or valkey-cli --cluster fix.",
        )


async def read_facts(reader: ConnectionReader, node: ClusterNode) -> ServerFacts:
    text = await reader.try_to_ask_node(node, "INFO")
    before_ms = time.time() * 1000
    seconds, micros = await reader.ask_node(node, "TIME")
    ours_ms = (before_ms + time.time() * 1000) / 2
    save = await reader.try_to_ask_node(node, "CONFIG", "GET", "save")
    user = await reader.try_to_ask_node(node, "ACL", "WHOAMI")
    account = await reader.try_to_ask_node(node, "ACL", "GETUSER", user or "default")
    return ServerFacts(
        info=None if text is None else _parse(text),
        save=save[1] if save else None,
        user=user,
        has_password=None if account is None else "nopass" not in str(account),
        clock_ms=round(ours_ms - (int(seconds) * 1000 + int(micros) / 1000)),
    )


def _parse(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value for name, value in pairs}  # noqa: C416 (a list of two is no pair)


def check_server(facts: ServerFacts) -> Iterator[Finding]:
    yield from _clock(facts)
    yield from _access(facts)
    if facts.info is None:
        yield Finding(
            code="D110",
            severity=Severity.INFO,
            subject="server",
            problem="INFO is not allowed for this user",
            harm="Its version, memory policy and persistence could not be checked.",
            remedy="Run the doctor as a user with +info, or look at them yourself.",
        )
        return
    yield from _version(facts.info)
    yield from _memory(facts.info)
    yield from _persistence(facts.info, facts.save)


def _version(info: dict[str, str]) -> Iterator[Finding]:
    is_valkey = "valkey_version" in info
    text = info["valkey_version"] if is_valkey else info.get("redis_version", "0")
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    oldest = OLDEST_VALKEY if is_valkey else OLDEST_REDIS
    if version < oldest:
        name = "Valkey" if is_valkey else "Redis"
        yield Finding(
            code="D101",
            severity=Severity.ERROR,
            subject="server",
            problem=f"{name} {text} is too old",
            harm="Toril's scripts begin with #!lua, which it does not know: every call fails.",
            remedy="Use Redis 7.0 or Valkey 7.2, or newer.",
        )
    if info.get("role", "master") != "master":
        yield Finding(
            code="D109",
            severity=Severity.ERROR,
            subject="server",
            problem="this server is a replica",
            harm="Nothing can be written to it, and it is cut off from what others write.",
            remedy="Connect to the master, or through Sentinel: sentinel://…",
        )


def _memory(info: dict[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield Finding(
            code="D102",
            severity=Severity.ERROR,
            subject="server",
            problem=f"maxmemory-policy is {policy!r}",
            harm="When memory is full the server deletes keys of your queues: jobs vanish.",
            remedy="CONFIG SET maxmemory-policy noeviction, and keep caches on another server.",
        )
    if int(info.get("evicted_keys", 0)) > 0:
        yield Finding(
            code="D107",
            severity=Severity.ERROR,
            subject="server",
            problem=f"{info['evicted_keys']} keys were evicted since it started",
            harm="Jobs may be among them; a queue whose keys are missing loses jobs later, too.",
            remedy="Set noeviction, give it memory, and look at what the keyspace audit says.",
        )
    limit = int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    if limit and used > 0.8 * limit:
        yield Finding(
            code="D108",
            severity=Severity.WARNING,
            subject="server",
            problem=f"{100 * used // limit} % of maxmemory is used",
            harm="When it is full, adding jobs fails; running ones can still be finished.",
            remedy="Keep fewer finished jobs (remove_on_complete, remove_on_fail), or add memory.",
        )


def _persistence(info: dict[str, str], save: str | None) -> Iterator[Finding]:
    has_aof = info.get("aof_enabled") == "1"
    has_rdb = bool(save) if save is not None else None
    if not has_aof and has_rdb is False:
        yield Finding(
            code="D103",
            severity=Severity.WARNING,
            subject="server",
            problem="nothing is written to disk: no AOF, no snapshots",
            harm="A restart of the server loses every job.",
            remedy="CONFIG SET appendonly yes, or relay from an outbox with confirm=True.",
        )
    elif not has_aof:
        yield Finding(
            code="D103",
            severity=Severity.WARNING,
            subject="server",
            problem="there are snapshots at most, no append-only file",
            harm="A crash loses what was added since the last snapshot, often minutes.",
            remedy="CONFIG SET appendonly yes; with appendfsync everysec a crash costs a second.",
        )
    for name, what in (
        ("rdb_last_bgsave_status", "the last snapshot"),
        ("aof_last_write_status", "the last write to the append-only file"),
    ):
        if info.get(name, "ok") != "ok":
            yield Finding(
                code="D111",
                severity=Severity.ERROR,
                subject="server",
                problem=f"{what} failed",
                harm="Writes are refused or will be lost at the next restart.",
                remedy="Look at the server's log and its disk.",
            )


def _clock(facts: ServerFacts) -> Iterator[Finding]:
    off_ms = abs(facts.clock_ms)
    if off_ms <= _LATE_MS:
        return
    side = "ahead of" if facts.clock_ms > 0 else "behind"
    yield Finding(
        code="D105",
        severity=Severity.ERROR if off_ms > _FAR_OFF_MS else Severity.WARNING,
        subject="clock",
        problem=f"this host's clock is {off_ms} ms {side} the server's",
        harm="Toril goes by the server's clock; run_at times and Node workers go by this one.",
        remedy="Synchronise both with NTP.",
    )


def _access(facts: ServerFacts) -> Iterator[Finding]:
    if facts.user == "default" and facts.has_password is False:
        yield Finding(
            code="D106",
            severity=Severity.WARNING,
            subject="server",
            problem="anybody who reaches it may do everything: user 'default' without a password",
            harm="Whoever can run scripts on the server can read and change every job.",
            remedy="Set a password, or better an ACL user that may touch your prefix only.",
        )
    elif facts.user == "default":
        yield Finding(
            code="D106",
            severity=Severity.INFO,
            subject="server",
            problem="this program is the server's user 'default'",
            harm="It may do more than a queue needs, such as FLUSHALL.",
            remedy="Give workers and producers ACL users of their own.",
        )
