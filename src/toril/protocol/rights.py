"""The smallest rights that producers, workers and operators need on a server with ACLs.

A call of the library runs with the rights of the user who calls it, so a user needs every command
that the calls of its role may come to.  These are read from the library itself; what is sent beside
calls is listed here.  Nobody needs ``EVAL``.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from toril.errors import InvalidOptionError
from toril.protocol import scripts

_ADD = (
    "add",
    "addFlow",
    "addGroup",
    "upsertScheduler",
    "removeScheduler",
    "pauseScheduler",
    "changeScheduler",
    "publish",
    "clock",
)
_LOOK = ("count", "locate", "explain", "listGroup", "glanceChildren")
_WORK = (
    *("settle", "sweep", "renew", "confirm", "leave", "advanceScheduler", "hold", "update"),
    *("addLog", "clearLogs", "reconcileGroups", "dueGroups", "recoverLanes", "divertLane"),
    *("beginOnce", "endOnce", "abandonOnce"),
)
_CARRY = ("fetchParcels", "deliverParcels", "collectParcels")
_CONNECT = ("auth", "hello", "select", "ping", "client|setname", "client|setinfo", "cluster|slots")
_CALL = ("fcall", "fcall_ro", "function|load", "time", "wait")
_READ = (
    *("exists", "get", "hget", "hgetall", "hmget", "hlen", "hexists", "hscan", "llen", "lrange"),
    *("scard", "smembers", "sscan", "zcard", "zcount", "zrange", "zrevrange", "zscore", "zscan"),
    *("zlexcount", "zrangebylex", "xread", "xrange", "xrevrange", "pttl"),
)
_LITERAL = re.compile(r'"([A-Z]{3,})"')
_COMMANDS = frozenset(
    {
        *(
            "HVALS",
            "COPY",
            "DEL",
            "EXISTS",
            "GET",
            "HDEL",
            "HEXISTS",
            "HGET",
            "HRANDFIELD",
            "HGETALL",
            "HINCRBY",
            "HLEN",
            "HMGET",
        ),
        *(
            "HSCAN",
            "HSET",
            "HSETNX",
            "HSTRLEN",
            "INCR",
            "INCRBY",
            "LINDEX",
            "LINSERT",
            "LLEN",
            "LMOVE",
            "LPOP",
        ),
        *("LPOS", "LPUSH", "LRANGE", "LREM", "LSET", "LTRIM", "MGET", "OBJECT", "PERSIST"),
        *("PEXPIRE", "PEXPIREAT", "PTTL", "RENAME", "RPOP", "RPUSH", "SADD", "SCAN", "SCARD"),
        *("SET", "SISMEMBER", "SMISMEMBER", "SPOP", "SRANDMEMBER", "SREM", "SSCAN", "TIME", "TYPE"),
        *("UNLINK", "XADD", "XINFO", "XRANGE", "XREVRANGE", "XTRIM", "ZADD", "ZCARD", "ZCOUNT"),
        *("ZLEXCOUNT", "ZMSCORE", "ZPOPMIN", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYLEX"),
        *("ZRANGEBYSCORE", "ZRANK", "ZREM", "ZREVRANGE", "ZREVRANGEBYSCORE", "ZSCAN", "ZSCORE"),
    }
)
"""The commands that the library uses; a test compares them with it."""


class Role(msgspec.Struct, frozen=True):
    """What a user of that role does."""

    what: str
    calls: tuple[str, ...]
    commands: tuple[str, ...]


ROLES = {
    "producer": Role(
        "adds jobs, flows, groups and schedules, waits for results and events",
        (*_ADD, *_LOOK),
        (*_CONNECT, *_CALL, *_READ),
    ),
    "worker": Role(
        "runs jobs, and adds what its handlers add",
        (*_ADD, *_LOOK, *_WORK, *_CARRY),
        (*_CONNECT, *_CALL, *_READ, "bzpopmin", "blpop", "info"),
    ),
    "operator": Role(
        "does everything the command line, the monitor and the dashboard do, and examines servers",
        (),
        (
            *(*_CONNECT, *_CALL, *_READ, "del", "unlink", "xadd", "xtrim", "expire", "scan"),
            *("info", "client|list", "config|get", "acl|whoami", "acl|getuser", "cluster|nodes"),
            *("function|list", "function|delete", "xlen", "type"),
        ),
    ),
}
"""An operator may make every call."""


@cache
def commands_of(role: str) -> tuple[str, ...]:
    """The commands that a user of this role needs, in lower case."""
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise InvalidOptionError(f"there is no role {role!r}; use one of {known}")
    library = scripts.library()
    found = set(ROLES[role].commands)
    for call in ROLES[role].calls or tuple(library.calls):
        found |= {word.lower() for word in _COMMANDS.intersection(_words(library.reach(call)))}
    return tuple(sorted(found))


def _words(code: str) -> list[str]:
    return _LITERAL.findall(code)


def acl_rules(role: str, prefix: str = "bull") -> tuple[str, ...]:
    """The rules of ``ACL SETUSER`` for a user of this role on the queues under ``prefix``."""
    return ("resetkeys", f"~{prefix}:*", "-@all", *(f"+{name}" for name in commands_of(role)))
