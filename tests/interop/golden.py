"""Everything a scenario left in Redis, made comparable between two runs.

``dump`` reads the keyspace under a prefix. ``normalise`` takes out what must differ between two
runs (job ids, times, lock tokens, stack traces) and what Toril is allowed to add, and nothing else:
a time becomes a statement that can be true or false ("the score is the job's finishedOn"), a job id
becomes its order of appearance. ``diff`` says in words what is left.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

Dump = dict[str, dict[str, Any]]

LISTS = {"wait", "paused", "active"}
FINISHED = {"completed", "failed"}
JOB_KEYS = {"lock", "logs", "dependencies", "processed", "failed", "unsuccessful"}
OWN_NAMES = re.compile(r"^(x\.|toril)")
EARLIEST_MS = 1_500_000_000_000
LATEST_MS = 3_000_000_000_000


async def dump(client: Any, prefix: str) -> Dump:
    """Every key under ``prefix`` that BullMQ knows: its type, its content, whether it expires."""
    found: Dump = {}
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + ":*"
    async for raw in client.scan_iter(match=pattern, count=1000):
        key = _text(raw)
        if ":toril:" in key:
            continue
        kind = _text(await client.type(key))
        expires = await client.pttl(key) >= 0
        value = await _value(client, key, kind)
        if value is not None:
            found[key.removeprefix(f"{prefix}:")] = {
                "type": kind,
                "value": value,
                "expires": expires,
            }
    return dict(sorted(found.items()))


def normalise(
    found: Dump, *, prefix: str, keep: Iterable[str] = (), markers: bool = False
) -> dict[str, Any]:
    """The dump without what two runs of one scenario may differ in.

    Ids in ``keep`` (those the scenario chose) stay as they are. Markers depend on how far an idle
    worker got before it was closed, so they are compared only when no worker took part.
    """
    return _Normaliser(found, prefix, frozenset(keep), markers).result()


def diff(left: Any, right: Any, path: str = "") -> list[str]:
    """What ``right`` has differently from ``left``, one readable line each."""
    if isinstance(left, dict) and isinstance(right, dict):
        lines = []
        for key in sorted(set(left) | set(right), key=str):
            inner = f"{path} → {key}" if path else str(key)
            if key not in right:
                lines.append(f"{inner}: only left has it: {_short(left[key])}")
            elif key not in left:
                lines.append(f"{inner}: only right has it: {_short(right[key])}")
            else:
                lines += diff(left[key], right[key], inner)
        return lines
    if isinstance(left, list) and isinstance(right, list):
        return _diff_lists(left, right, path)
    if left != right or type(left) is not type(right):
        return [f"{path}: {_short(left)} ≠ {_short(right)}"]
    return []


def _diff_lists(left: list[Any], right: list[Any], path: str) -> list[str]:
    ours, theirs = [_short(item, 500) for item in left], [_short(item, 500) for item in right]
    lines = []
    for tag, a, b, c, d in difflib.SequenceMatcher(
        None, ours, theirs, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            continue
        lines.append(
            f"{path}[{a}]: left {', '.join(ours[a:b]) or 'nothing'}"
            f" | right {', '.join(theirs[c:d]) or 'nothing'}"
        )
    return lines


def _short(value: Any, limit: int = 200) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return text if len(text) <= limit else f"{text[:limit]}…"


def _text(raw: Any) -> str:
    return raw.decode(errors="surrogateescape") if isinstance(raw, bytes) else str(raw)


async def _value(client: Any, key: str, kind: str) -> Any:
    if kind == "string":
        raw = await client.get(key)
        return None if raw is None else _text(raw)
    if kind == "list":
        return [_text(item) for item in await client.lrange(key, 0, -1)]
    if kind == "set":
        return sorted(_text(item) for item in await client.smembers(key))
    if kind == "zset":
        rows = await client.zrange(key, 0, -1, withscores=True)
        return [(_text(member), float(score)) for member, score in rows]
    if kind == "hash":
        return {_text(k): _text(v) for k, v in (await client.hgetall(key)).items()}
    if kind == "stream":
        rows = await client.xrange(key)
        return [{_text(k): _text(v) for k, v in fields.items()} for _, fields in rows]
    return None


class _Normaliser:
    def __init__(self, found: Dump, prefix: str, keep: frozenset[str], markers: bool) -> None:
        self.found = found
        self.prefix = prefix
        self.keep = keep
        self.markers = markers
        self.names: dict[tuple[str, str], str] = {}
        # The events tell the order in which jobs appeared; the rest only fills gaps.
        for key, entry in sorted(found.items(), key=lambda item: not item[0].endswith(":events")):
            queue, _, suffix = key.partition(":")
            for job_id in self._mentioned(suffix, entry["value"]):
                self._learn(queue, job_id)

    def result(self) -> dict[str, Any]:
        normalised: dict[str, Any] = {}
        for key, entry in self.found.items():
            queue, _, suffix = key.partition(":")
            if self._is_momentary(suffix):
                continue
            name, value = self._entry(queue, suffix, entry)
            if value is None:
                continue
            normalised[f"{queue}:{name}"] = {
                "type": entry["type"],
                "value": value,
                **({"expires": True} if entry["expires"] else {}),
            }
        return normalised

    # -- job ids --

    @staticmethod
    def _mentioned(suffix: str, value: Any) -> Iterable[str]:
        if suffix == "events":
            for event in value:
                if OWN_NAMES.match(event.get("event", "")):
                    continue
                yield from (event[field] for field in ("jobId",) if field in event)
        elif suffix in LISTS:
            yield from reversed(value)
        elif suffix in FINISHED | {"delayed", "prioritized", "waiting-children"}:
            yield from (member for member, _ in value)

    def _learn(self, queue: str, job_id: str) -> None:
        if (queue, job_id) in self.names:
            return
        if job_id in self.keep:
            self.names[queue, job_id] = job_id
            return
        count = sum(1 for known, name in self.names.items() if known[0] == queue and "#" in name)
        self.names[queue, job_id] = f"#{count + 1}"

    def _id(self, queue: str, job_id: str) -> str:
        return self.names.get((queue, job_id), f"unknown id {job_id}")

    def _job_key(self, text: str) -> str:
        """Full job keys inside a text, by their names."""
        for (queue, job_id), name in sorted(self.names.items(), key=lambda item: -len(item[0][1])):
            full = re.escape(f"{self.prefix}:{queue}:{job_id}")
            text = re.sub(rf"{full}(?![\w-])", f"{queue}:{name}", text)
        return text.replace(f"{self.prefix}:", "")

    # -- one key --

    @staticmethod
    def _is_momentary(suffix: str) -> bool:
        # The counter is not how Toril numbers jobs; stalled-check says when somebody last looked.
        return suffix in {"id", "stalled-check", "limiter"}

    def _entry(self, queue: str, suffix: str, entry: dict[str, Any]) -> tuple[str, Any]:
        value = entry["value"]
        if (queue, suffix) in self.names:
            return self._id(queue, suffix), self._job(queue, value)
        owner, _, part = suffix.rpartition(":")
        if part in JOB_KEYS and (queue, owner) in self.names:
            return f"{self._id(queue, owner)}:{part}", self._job_part(part, value)
        if suffix in LISTS or suffix == "stalled":
            return suffix, [self._id(queue, job_id) for job_id in value]
        if suffix == "events":
            return suffix, [e for event in value if (e := self._event(queue, event)) is not None]
        if suffix == "meta":
            return suffix, self._meta(value)
        if suffix == "marker":
            return suffix, self._marker(value)
        if suffix == "repeat":
            return suffix, [[member, _time(score)] for member, score in value]
        if entry["type"] == "zset":
            return suffix, self._scores(queue, suffix, value)
        if suffix.startswith("de:"):
            return suffix, self._id(queue, value)
        if suffix.startswith("dn:"):
            return suffix, {**value, "jid": self._id(queue, value.get("jid", "")), "opts": "…"}
        if suffix.startswith("repeat:"):
            return suffix, self._scheduler(queue, value)
        if suffix.startswith("metrics:") and isinstance(value, dict):
            return suffix, {k: _time(v) if k == "prevTS" else v for k, v in value.items()}
        return suffix, value

    def _marker(self, members: list[tuple[str, float]]) -> Any:
        if strange := [member for member, _ in members if member not in {"0", "1"}]:
            return f"members that are no markers: {strange}"
        if not self.markers:
            return None
        return {member: "now" if score == 0 else _time(score) for member, score in members}

    @staticmethod
    def _meta(fields: dict[str, str]) -> dict[str, str]:
        return {k: v for k, v in fields.items() if k != "version" and not OWN_NAMES.match(k)}

    def _scheduler(self, queue: str, fields: dict[str, str]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for field, value in fields.items():
            if field in {"opts", "data"}:
                result[field] = json.loads(value)
            else:
                result[field] = "a time" if field in {"startDate", "endDate", "offset"} else value
        return result

    def _scores(self, queue: str, suffix: str, members: list[tuple[str, float]]) -> list[Any]:
        if suffix in FINISHED:
            order = self._order_of_events(queue, suffix)
            members = sorted(members, key=lambda row: (row[1], order.get(row[0], 0)))
        return [[self._id(queue, m), self._score(queue, suffix, m, s)] for m, s in members]

    def _order_of_events(self, queue: str, name: str) -> dict[str, int]:
        events = self.found.get(f"{queue}:events", {"value": []})["value"]
        return {
            event["jobId"]: number
            for number, event in enumerate(events)
            if event.get("event") == name and "jobId" in event
        }

    def _score(self, queue: str, suffix: str, job_id: str, score: float) -> Any:
        job = self.found.get(f"{queue}:{job_id}", {}).get("value", {})
        if suffix == "prioritized":
            return {"priority": int(score) >> 32, "turn": int(score) & 0xFFFFFFFF}
        if suffix == "delayed":
            due_ms, tie = divmod(int(score), 4096)
            expected = int(job.get("timestamp", 0)) + int(job.get("delay", 0))
            due = "timestamp + delay" if due_ms == expected else _time(due_ms)
            return {"due": due, "tie": tie}
        for field in ("finishedOn", "timestamp"):
            if job.get(field) == str(int(score)):
                return field
        return _time(score)

    # -- one job --

    def _job(self, queue: str, fields: dict[str, str]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for field, value in fields.items():
            if OWN_NAMES.match(field):
                continue
            result[field] = self._field(queue, field, value)
        if "rjk" in fields and fields.get("delay", "0") != "0":
            result["delay"] = "until the iteration"
        times = [int(fields[f]) for f in ("timestamp", "processedOn", "finishedOn") if f in fields]
        # Two machines' clocks are one clock here; a millisecond of rounding is not a lie.
        if any(later < earlier - 1 for earlier, later in itertools.pairwise(times)):
            result["times"] = f"not in order: {times}"
        return result

    def _field(self, queue: str, field: str, value: str) -> Any:
        if field in {"timestamp", "processedOn", "finishedOn"}:
            return _time(value)
        if field == "opts":
            return self._opts(queue, json.loads(value))
        if field in {"data", "returnvalue", "progress"}:
            return json.loads(value)
        if field == "parent":
            parent = json.loads(value)
            parent_queue = parent["queueKey"].removeprefix(f"{self.prefix}:")
            return {**parent, "id": self._id(parent_queue, parent["id"]), "queueKey": parent_queue}
        if field == "stacktrace":
            return [f"trace {number}" for number, _ in enumerate(json.loads(value), 1)]
        if field == "failedReason":
            return self._job_key(without_class(value))
        if field in {"parentKey", "defa"}:
            return self._job_key(value)
        if field == "nrjid":
            return self._id(queue, value)
        return value

    def _opts(self, queue: str, opts: dict[str, Any]) -> dict[str, Any]:
        result = {}
        for option, value in opts.items():
            if OWN_NAMES.match(option) or value is None:
                continue
            if option == "jobId":
                value = self._id(queue, value)
            elif option in {"timestamp", "prevMillis"}:
                value = _time(value)
            elif option == "delay" and opts.get("repeatJobKey"):
                value = "until the iteration"
            elif option == "parent":
                parent_queue = value["queue"].removeprefix(f"{self.prefix}:")
                value = {"id": self._id(parent_queue, value["id"]), "queue": parent_queue}
            elif option == "repeat":
                value = {
                    k: _time(v) if k in {"startDate", "endDate"} else v for k, v in value.items()
                }
            # Lua's JSON encoder writes an empty array as an object.
            result[option] = {} if value == [] else value
        return result

    def _job_part(self, part: str, value: Any) -> Any:
        if part == "lock":
            return "a token"
        if part == "logs":
            return value
        if part == "dependencies":
            return sorted(self._job_key(key) for key in value)
        if part == "unsuccessful":
            return sorted(self._job_key(key) for key, _ in value)
        values = {self._job_key(key): text for key, text in value.items()}
        read = json.loads if part == "processed" else without_class
        return {key: read(text) for key, text in values.items()}

    # -- one event --

    def _event(self, queue: str, event: dict[str, str]) -> dict[str, Any] | None:
        if OWN_NAMES.match(event.get("event", "")):
            return None
        result: dict[str, Any] = {}
        for field, value in event.items():
            if OWN_NAMES.match(field):
                continue
            if field in {"jobId", "deduplicatedJobId"}:
                result[field] = self.names.get((queue, value), "an id never stored")
            elif field == "delay":
                result[field] = _time(value)
            elif field in {"returnvalue", "data"}:
                result[field] = json.loads(value)
            elif field == "failedReason":
                result[field] = self._job_key(without_class(value))
            else:
                result[field] = self._job_key(value)
        return result


def without_class(reason: str) -> str:
    """A failed reason without the class of the Python exception, which Node has no word for."""
    return re.sub(r"^\w+Error: ", "", reason)


def _time(value: Any) -> str:
    try:
        ms = float(value)
    except ValueError:
        return f"no time: {value!r}"
    if isinstance(value, str) and not value.isdecimal():
        return f"no integer: {value!r}"
    return "a time" if EARLIEST_MS < ms < LATEST_MS else f"no time: {value!r}"
