"""The names of the keys of one queue, and what may be part of a name."""

from __future__ import annotations

import re
from binascii import crc_hqx

from toril.errors import CrossSlotError, InvalidNameError
from toril.protocol.packing import PackedKeys

COMPENSATION_SUFFIX = ":compensation"

FOREIGN = "dead_"
"""How a script names the keys of the queue that takes its dead letters."""

QUEUE_KEYS = frozenset(
    {
        "wait",
        "paused",
        "active",
        "prioritized",
        "pc",
        "delayed",
        "waiting-children",
        "completed",
        "failed",
        "marker",
        "stalled",
        "stalled-check",
        "limiter",
        "meta",
        "id",
        "events",
        "repeat",
        "de",
    }
)
"""The fixed keys of a queue, by the last part of their names."""

LANE_KEYS = frozenset(
    {"waiting", "delayed", "aside", "held", "ready", "later", "index", "settings", "diverting"},
)
"""The fixed keys of a queue's lanes; ``keys.lanes_waiting`` is ``prefix:queue:lanes:waiting``."""

OWN_KEYS = frozenset(
    {"replies", "parcels", "parcels_due", "in_transit", "refused", "received"},
)
"""The fixed keys that only Toril knows; ``keys.replies`` is ``prefix:queue:toril:replies``."""

RESERVED_IDS = QUEUE_KEYS | {
    "dn",
    "metrics",
    "priority",
    "delay",
    "compensation",
    "groups",
    "lanes",
    "toril",
}

GENERATED_ID = re.compile(r"j[0-9a-hjkmnp-tv-z]{21}(-[0-9]{1,4})?")
"""The ids that clients choose (``client/ids.py``), and nobody else."""

# Never in a name: control characters, and halves of surrogate pairs, which are no text.
_NEVER = r"\x00-\x1f\x7f\ud800-\udfff"
_QUEUE_NAME = re.compile(rf"[^\s:{_NEVER}]([^:{_NEVER}]{{0,254}}[^\s:{_NEVER}])?")
_PREFIX = re.compile(rf"[^\s{_NEVER}]{{1,255}}")
_JOB_ID = re.compile(rf"[^\s:{_NEVER}]{{1,255}}")
_SCHEDULER_ID = re.compile(rf"[^\s:{_NEVER}]([^:{_NEVER}]{{0,253}}[^\s:{_NEVER}])?")
_NO_TEXT = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")
"""What ``codec.name`` makes of no bytes."""
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_SCHEDULED_ID = re.compile(r"repeat:.+:[0-9]+", re.DOTALL)
_FAMILIES = frozenset({"de", "dn", "metrics", "compensation", "groups", "lanes", "toril", "repeat"})
"""What the names of other things than jobs begin with, before a colon."""


class Keys:
    """The keys of one queue: ``keys.wait``, ``keys.job("41")``.

    ``base`` is the qualified name, ``prefix:queue``; every key of the queue begins with it.
    """

    __slots__ = ("_ordered", "base", "name", "prefix")

    def __init__(self, prefix: str, name: str) -> None:
        check_prefix(prefix)
        check_queue_name(name)
        self.prefix = prefix
        self.name = name
        self.base = f"{prefix}:{name}"
        self._ordered: dict[tuple[tuple[str, ...], str], tuple[tuple[str, ...], PackedKeys]] = {}

    def __getattr__(self, name: str) -> str:
        if name.startswith("lanes_") and name[6:] in LANE_KEYS:
            return f"{self.base}:lanes:{name[6:]}"
        if name in OWN_KEYS:
            return self.own(name.replace("_", "-"))
        suffix = name.replace("_", "-")
        if suffix not in QUEUE_KEYS:
            raise AttributeError(f"a queue has no key {suffix!r}")
        return f"{self.base}:{suffix}"

    def __repr__(self) -> str:
        return f"Keys({self.prefix!r}, {self.name!r})"

    def in_order(
        self, names: tuple[str, ...], beside: Keys | None = None
    ) -> tuple[tuple[str, ...], PackedKeys]:
        """The keys that a script's first line names, in its order, and the same as bytes.

        Those of another queue, ``dead_wait`` and its like, come last; they are those of ``beside``,
        or left out. Put together once: this is asked for at every call.
        """
        which = (names, "" if beside is None else beside.base)
        ordered = self._ordered.get(which)
        if ordered is None:
            extra = {} if beside is None else {name: beside.foreign(name) for name in names}
            keys = self.in_order_with(names, {name: key for name, key in extra.items() if key})
            ordered = self._ordered[which] = (keys, PackedKeys(keys))
        return ordered

    def in_order_with(self, names: tuple[str, ...], extra: dict[str, str]) -> tuple[str, ...]:
        """The same where some of them are not fixed keys of the queue."""
        if names[-1] not in extra:
            names = tuple(name for name in names if not name.startswith(FOREIGN))
        return tuple(extra[name] if name in extra else self._named(name) for name in names)

    def foreign(self, name: str) -> str:
        """The key that a script of another queue calls ``dead_wait`` or the like, or ""."""
        return self._named(name.removeprefix(FOREIGN)) if name.startswith(FOREIGN) else ""

    def _named(self, name: str) -> str:
        key: str = self.base if name == "base" else getattr(self, name)
        return key

    def job(self, job_id: str) -> str:
        """The hash of a job; its other keys are this one and a suffix."""
        return f"{self.base}:{job_id}"

    def own(self, name: str) -> str:
        """A key that only Toril knows, where no tool of BullMQ will touch it."""
        return f"{self.base}:toril:{name}"

    def sibling(self, name: str) -> Keys:
        """The keys of another queue under the same prefix."""
        return Keys(self.prefix, name)


def check_queue_name(name: str) -> None:
    """Refuse a queue name that other clients could not open or that would break the key space."""
    plain = name.removesuffix(COMPENSATION_SUFFIX) if isinstance(name, str) else name
    if not isinstance(plain, str) or not _QUEUE_NAME.fullmatch(plain):
        raise InvalidNameError(
            f"queue name {name!r} cannot be used: it must be 1 to 256 characters without ':' or "
            f"control characters, not beginning or ending with a space"
            f" (the suffix {COMPENSATION_SUFFIX!r} is the one exception)"
        )


def check_prefix(prefix: str) -> None:
    """Refuse a prefix with white space or nothing in it."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidNameError(
            f"prefix {prefix!r} cannot be used: it must be 1 to 255 characters without white space"
        )


def check_job_id(job_id: str, what: str = "job id") -> None:
    """Refuse a custom id that would collide with a key of the queue or with a generated id."""
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise InvalidNameError(
            f"{what} {job_id!r} cannot be used: it must be 1 to 255 characters without ':' and "
            f"white space; join parts with '-' instead"
        )
    if _INTEGER.fullmatch(job_id):
        raise InvalidNameError(
            f"{what} {job_id!r} is a number, and the queue assigns numbers itself;"
            f" put a word before it, such as 'order-{job_id}'"
        )
    if job_id in RESERVED_IDS:
        raise InvalidNameError(
            f"{what} {job_id!r} is the name of one of the queue's own keys; choose another"
        )


def check_known_id(job_id: str) -> None:
    """Refuse what cannot be the id of any job, whoever made it.

    Other programs give ids that ``check_job_id`` refuses, with colons for one: such jobs exist.
    """
    if not isinstance(job_id, str) or not job_id or job_id in RESERVED_IDS:
        raise InvalidNameError(f"{job_id!r} cannot be the id of a job")
    if not job_id.isascii() and _NO_TEXT.search(job_id):
        raise InvalidNameError(f"{job_id!r} cannot be the id of a job: it is not valid Unicode")
    first, colon, _ = job_id.partition(":")
    if colon and first in _FAMILIES and not _SCHEDULED_ID.fullmatch(job_id):
        raise InvalidNameError(
            f"{job_id!r} cannot be the id of a job: ids that begin with '{first}:' are reserved"
        )


def check_known_scheduler_id(scheduler_id: str) -> None:
    """Refuse what cannot be the id of any scheduler, whoever made it."""
    if not isinstance(scheduler_id, str) or not scheduler_id:
        raise InvalidNameError(f"{scheduler_id!r} cannot be the id of a scheduler")
    if not scheduler_id.isascii() and _NO_TEXT.search(scheduler_id):
        raise InvalidNameError(f"scheduler id {scheduler_id!r} is not valid Unicode")


def check_scheduler_id(scheduler_id: str) -> None:
    """Refuse an id for a new scheduler that could not be part of the ids of its jobs."""
    if not isinstance(scheduler_id, str) or not _SCHEDULER_ID.fullmatch(scheduler_id):
        raise InvalidNameError(
            f"scheduler id {scheduler_id!r} cannot be used: it must be 1 to 255 characters without "
            f"':' and control characters, not beginning or ending with a space"
        )


def keys_at(base: str) -> Keys:
    """The keys of the queue whose qualified name is ``base``."""
    prefix, name, _ = split_job_key(f"{base}:-")
    return Keys(prefix, name)


def split_job_key(key: str, prefix: str | None = None) -> tuple[str, str, str]:
    """The prefix, the queue's name and the job's id in the full key of a job.

    Under a ``prefix`` that is known the first colon ends the queue's name, which has none, and the
    id may have any number.  Elsewhere the last colon begins the id, but for a scheduler's
    iterations.
    """
    if prefix is not None and key.startswith(f"{prefix}:"):
        name, _, job_id = key.removeprefix(f"{prefix}:").partition(":")
        suffix = COMPENSATION_SUFFIX.removeprefix(":")
        if job_id.startswith(f"{suffix}:"):
            name, job_id = name + COMPENSATION_SUFFIX, job_id.removeprefix(f"{suffix}:")
        return prefix, name, job_id
    base, _, job_id = key.rpartition(":")
    head, found, scheduler = base.rpartition(":repeat:")
    if found and job_id.isdigit() and ":" not in scheduler and ":" in head:
        base, job_id = head, f"repeat:{scheduler}:{job_id}"
    prefix = base.removesuffix(COMPENSATION_SUFFIX).rpartition(":")[0]
    return prefix, base[len(prefix) + 1 :], job_id


def hash_tag(key: str) -> str | None:
    """The part of ``key`` in braces, which alone decides its slot; None when there is none."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if 0 <= start < end - 1 else None


def slot(key: str) -> int:
    """The cluster slot of ``key``: of its hash tag if it has one."""
    return crc_hqx((hash_tag(key) or key).encode("utf-8", "surrogateescape"), 0) % 16384


def is_away(queue: Keys, other: Keys) -> bool:
    """Would a cluster keep the two queues in different slots?

    Without hash tags they are on no cluster.
    """
    tags = hash_tag(queue.base), hash_tag(other.base)
    return None not in tags and slot(queue.base) != slot(other.base)


def check_slot_of_each(*queues: Keys) -> None:
    """Refuse a queue whose keys a cluster would spread over several nodes."""
    for queue in queues:
        if slot(queue.wait) != slot(queue.active):
            raise CrossSlotError(
                f"the keys of queue {queue.name!r} are in different slots of the cluster; put a "
                f"hash tag into the prefix, prefix='{{{queue.prefix}}}', or into the name, "
                f"'{{{queue.name}}}'"
            )
