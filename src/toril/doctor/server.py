"""The server, or each of a cluster's: version, memory, persistence, clock, access."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec

from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.reader import SLOT_COUNT, ConnectionReader
from toril.protocol.discovering import ClusterNode

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)
_LATE_MS = 1000
_FAR_OFF_MS = 30_000
_LAG_S = 10


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells of itself; None where it may not."""

    info: dict[str, str] | None = None
    save: str | None = None
    user: str | None = None
    has_password: bool | None = None
    clock_ms: int = 0
    """By how much our clock is ahead of the server's, at least."""


async def examine_servers(reader: ConnectionReader) -> list[Finding]:
    """The one server, or every node of a cluster and the cluster as a whole."""
    facts = await asyncio.gather(*(read_facts(reader, node) for node in reader.nodes))
    findings: list[Finding] = []
    for node, of_node in zip(reader.nodes, facts, strict=True):
        for one in (*check_server(of_node), *_replicas(of_node, reader)):
            subject = f"{one.subject} {node.address}".rstrip()
            findings.append(msgspec.structs.replace(one, subject=subject))
    return [*findings, *_silent(reader.silent), *_uncovered(reader.slots_without_node)]


def _replicas(facts: ServerFacts, reader: ConnectionReader) -> Iterator[Finding]:
    """A node of a cluster without a replica takes its slots with it when it dies."""
    if facts.info is None or not (reader.silent or len(reader.nodes) > 1):
        return
    told = [facts.info[f"slave{n}"] for n in range(int(facts.info.get("connected_slaves", 0)))]
    replicas = [dict(pair.split("=", 1) for pair in one.split(",") if "=" in pair) for one in told]
    if not replicas:
        yield ailments.NO_REPLICA.of("server")
    elif all(_is_behind(one) for one in replicas):
        states = ", ".join(one.get("state", "?") for one in replicas)
        yield ailments.REPLICAS_BEHIND.of("server", states=states)


def _is_behind(replica: dict[str, str]) -> bool:
    return replica.get("state") != "online" or int(replica.get("lag", 0)) > _LAG_S


def _silent(nodes: Sequence[ClusterNode]) -> Iterator[Finding]:
    for node in nodes:
        slots = ", ".join(f"{low}-{high}" for low, high in node.ranges)
        yield ailments.NODE_SILENT.of(f"server {node.address}", slots=slots)


def _uncovered(slots: int) -> Iterator[Finding]:
    if slots:
        yield ailments.SLOTS_UNCOVERED.of("cluster", slots=slots, all_slots=SLOT_COUNT)


async def read_facts(reader: ConnectionReader, node: ClusterNode) -> ServerFacts:
    text = await reader.try_to_ask_node(node, "INFO")
    before_ms = time.time() * 1000
    seconds, micros = await reader.ask_node(node, "TIME")
    after_ms = time.time() * 1000
    server_ms = int(seconds) * 1000 + int(micros) / 1000
    # The server read its clock at some moment in between. If its time lies there too, the clocks
    # may agree; if not, they differ at least by what is missing.
    ours_ms = min(max(server_ms, before_ms), after_ms)
    save = await reader.try_to_ask_node(node, "CONFIG", "GET", "save")
    user = await reader.try_to_ask_node(node, "ACL", "WHOAMI")
    account = await reader.try_to_ask_node(node, "ACL", "GETUSER", user or "default")
    return ServerFacts(
        info=None if text is None else _parse(text),
        save=save[1] if save else None,
        user=user,
        has_password=None if account is None else "nopass" not in str(account),
        clock_ms=round(ours_ms - server_ms),
    )


def _parse(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value for name, value in pairs}  # noqa: C416 (a list of two is no pair)


def check_server(facts: ServerFacts) -> Iterator[Finding]:
    yield from _clock(facts)
    yield from _access(facts)
    if facts.info is None:
        yield ailments.INFO_REFUSED.of("server")
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
        yield ailments.TOO_OLD.of("server", version=f"{name} {text}")
    if info.get("role", "master") != "master":
        yield ailments.REPLICA.of("server")


def _memory(info: dict[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield ailments.EVICTS.of("server", policy=policy)
    if int(info.get("evicted_keys", 0)) > 0:
        yield ailments.HAS_EVICTED.of("server", keys=info["evicted_keys"])
    limit = int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    if limit and used > 0.8 * limit:
        yield ailments.MEMORY_FULL.of("server", percent=100 * used // limit)


def _persistence(info: dict[str, str], save: str | None) -> Iterator[Finding]:
    has_aof = info.get("aof_enabled") == "1"
    has_rdb = bool(save) if save is not None else None
    if not has_aof and has_rdb is False:
        yield ailments.WRITES_NOTHING.of("server")
    elif not has_aof:
        yield ailments.SNAPSHOTS_ONLY.of("server")
    for name, what in (
        ("rdb_last_bgsave_status", "the last snapshot"),
        ("aof_last_write_status", "the last write to the append-only file"),
    ):
        if info.get(name, "ok") != "ok":
            yield ailments.DISK_FAILS.of("server", what=what)


def _clock(facts: ServerFacts) -> Iterator[Finding]:
    off_ms = abs(facts.clock_ms)
    if off_ms <= _LATE_MS:
        return
    side = "ahead of" if facts.clock_ms > 0 else "behind"
    yield ailments.CLOCKS_DIFFER.of(
        "clock", has_come_far=off_ms > _FAR_OFF_MS, off_ms=off_ms, side=side
    )


def _access(facts: ServerFacts) -> Iterator[Finding]:
    if facts.user == "default" and facts.has_password is False:
        yield ailments.NO_PASSWORD.of("server")
    elif facts.user == "default":
        yield ailments.DEFAULT_USER.of("server")
