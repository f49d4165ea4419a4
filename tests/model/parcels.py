"""A parcel as the checks see it: where it is, where it goes, what it says and about whom."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec


class Parcel(NamedTuple):
    id: str
    source: str
    """The key of the queue where it was left."""
    target: str
    body: dict[str, Any]
    transit: str | None
    """The job that is in no other place."""
    about: tuple[str, ...]
    """The keys of the jobs that it is about."""

    @property
    def verb(self) -> str:
        return str(self.body["verb"])


@lru_cache(maxsize=100_000)
def parcel_of(parcel_id: str, source: str, text: str) -> Parcel:
    """What the server keeps of it."""
    size, _, rest = text.encode("utf-8", "surrogateescape").partition(b":")
    head = msgspec.msgpack.decode(rest[: int(size)], strict=False)
    body = msgspec.msgpack.decode(rest[int(size) :], strict=False)
    target = head["target"]
    return Parcel(parcel_id, source, target, body, head.get("transit"), tuple(_about(target, body)))


def _about(target: str, body: dict[str, Any]) -> list[str]:
    match body["verb"]:
        case "addMember" | "insert":
            return [f"{target}:{body['job']['id']}"]
        case "removeMember" | "remove":
            return [f"{target}:{body['id']}"]
        case "memberEnded" | "memberRetried" | "memberSought":
            return [body["job"]]
        case "cancelMembers":
            return list(body["jobs"])
        case "seekMembers":
            return [asked[0] for asked in body["jobs"]]
        case "childEnded" | "unlink" | "relink":
            return [body["child"]]
        case "addFlow":
            return [f"{body['queues'][node['queue'] - 1]}:{node['id']}" for node in body["nodes"]]
        case _:
            return []


def letter_id(parcel: Parcel) -> str:
    """The id of a letter that is on its way: its own if it goes back, else that of the parcel."""
    return str(parcel.body.get("id") or parcel.id)
