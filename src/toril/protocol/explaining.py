"""Why is a job not running? The facts from one script, and a sentence for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from toril.protocol import codec
from toril.protocol.command import Command, Resend, script
from toril.protocol.keys import Keys, check_known_id
from toril.protocol.reading import Coming

Facts = Mapping[str, str]
"""What the script tells; the first of equal names counts."""


def facts_about(keys: Keys, job_id: str) -> Command[Facts]:
    """Everything that decides why a job is not running; empty when there is no such job."""
    check_known_id(job_id)

    def parse(reply: list[bytes]) -> Facts:
        names = [codec.text(item) for item in reply[::2]]
        values = [codec.text(item) for item in reply[1::2]]
        return dict(zip(reversed(names), reversed(values), strict=True))

    return script(
        "explain", keys, {"id": job_id}, parse, extra={"job": keys.job(job_id)}, resend=Resend.SAME
    )


def coming(found: Coming | None, keys: Keys) -> Facts:
    """What is known about a job that is not there yet."""
    if found is None:
        return {}
    facts = {"state": "in_transit", "target": keys.base, "source": found.owner.name}
    return facts if found.refused is None else {**facts, "refused": found.refused}


def sentence(
    job_id: str, queue: str, lane: str | None, facts: Facts, workers: Collection[str]
) -> str:
    """Why the job is not running, in one sentence; ``workers`` are the names of those connected."""
    return f"job {job_id!r} {_why(queue, lane, facts, workers)}"


def _why(queue: str, lane: str | None, facts: Facts, workers: Collection[str]) -> str:
    match facts.get("state"):
        case None:
            return f"does not exist in queue {queue!r}"
        case "in_transit" if "refused" in facts:
            return (
                f"was to go to {facts.get('target')!r}, which does not take it: {facts['refused']};"
                f" correct that and run toril doctor --fix"
            )
        case "in_transit":
            return (
                f"is on its way to {facts.get('target')!r} in another slot of the cluster; a worker"
                f" of queue {facts.get('source', queue)!r} delivers it when the node there answers"
            )
        case "completed":
            return "has completed"
        case "failed":
            return f"has failed: {facts.get('reason', 'for no known reason')}"
        case "active":
            return _running(facts, workers)
        case "stalled":
            return "was run by a worker that fell silent; the next sweep brings it back"
        case "waiting_children" if "failed_child" in facts:
            return _held_by_a_failure(facts)
        case "waiting_children":
            if facts["children"] == "1":
                return f"waits for its child {facts.get('child')!r}"
            return f"waits for {facts['children']} children, among them {facts.get('child')!r}"
        case "delayed":
            return _delayed(lane, facts)
        case "unknown":
            return (
                "is in no list, so nobody will run it: another program dropped it, as BullMQ 5 "
                "does when it resumes a queue that others filled; add it again and remove this one"
            )
    if "doom" in facts:
        return f"fails when a worker takes it, because {facts['doom']}"
    return _in_lane(lane, facts) or _at_the_gate(queue, facts, workers)


def _held_by_a_failure(facts: Facts) -> str:
    others = int(facts["children"]) - 1
    among = f" (and for {others} more)" if others else ""
    return (
        f"waits for its child {facts['failed_child']!r}, which has failed for good{among}; retry or"
        f" remove the child, or give such children fail_parent_on_failure or another policy"
    )


def _running(facts: Facts, workers: Collection[str]) -> str:
    """By whom, and whether that worker is still there: a lock outlives its holder."""
    worker = facts.get("worker")
    by = f" by worker {worker!r}" if worker else ""
    told = f"is being run{by} {_since(facts)}".rstrip()
    left = f"{int(facts['lock_ms']) / 1000:.0f} s" if "lock_ms" in facts else None
    heard = f"last heard of {facts['silent_s']} s ago" if "silent_s" in facts else None
    if not workers or (worker and worker not in workers):
        who = "this worker is not connected any more" if worker else "no worker is connected"
        was = f", it was {heard}" if heard else ""
        ends = f"; when its lock ends, in {left}, a worker brings the job back" if left else ""
        return f"{told}; {who}{was}{ends}"
    if heard and left:
        return f"{told}; its worker was {heard}, and unless it renews its lock that ends in {left}"
    return told


def _delayed(lane: str | None, facts: Facts) -> str:
    until = f"is delayed until {_moment(facts['due'])} ({_wait_ms(facts)} ms from now)"
    return until if lane is None else f"of lane {lane!r} {until}"


def _in_lane(lane: str | None, facts: Facts) -> str | None:
    """What in its lane holds it up, if anything does."""
    if lane is None:
        return None
    where = f"waits in lane {lane!r}"
    if "lane_halted" in facts:
        return f"{where}, which the failure of job {facts['lane_halted']!r} halted; resume_lane"
    if "lane_paused" in facts:
        return f"{where}, which is paused; resume_lane"
    if "holder" in facts:
        return f"{where}, which is held by {_holder(facts)}"
    if "limited_until" in facts:
        return f"{where}, whose rate limit is reached until {_moment(facts['limited_until'])}"
    if int(facts.get("place", 0)) > 0:
        return f"{where} behind {_jobs(facts['place'])}"
    return None


def _holder(facts: Facts) -> str:
    one = f"job {facts['holder']!r}"
    if facts["holders"] != "1":
        return (
            f"{facts['holders']} jobs, as many as it may; among them {one} {_since(facts)}".rstrip()
        )
    if "tried_at" in facts:
        return f"{one} until its next attempt at {_moment(facts['tried_at'])}"
    return f"{one} {_since(facts)}".rstrip()


def _at_the_gate(queue: str, facts: Facts, workers: Collection[str]) -> str:
    """What holds the whole queue up, or that its turn will come."""
    if "paused" in facts:
        return f"waits because queue {queue!r} is paused"
    if "stray" in facts:
        return (
            f"is in the list of paused jobs of queue {queue!r}, which is not paused; the next "
            f"sweep of a worker brings it back, and so does queue.resume()"
        )
    most = codec.number(facts.get("concurrency", "0").encode())
    if most and int(facts["active"]) >= most:
        return f"waits because queue {queue!r} runs {_jobs(facts['active'])}, as many as it may"
    if "limited_ms" in facts:
        return f"waits for the rate limit of queue {queue!r}, {facts['limited_ms']} ms at most"
    if not workers:
        return f"is ready, and no worker of queue {queue!r} is connected"
    if facts.get("lane") or not int(facts.get("before", 0)):
        return "is ready and will be taken in its turn"
    others = f"{_jobs(facts['before'])} {'waits' if facts['before'] == '1' else 'wait'}"
    return f"is ready; about {others} in the same place"


def _jobs(count: str) -> str:
    return "1 job" if count == "1" else f"{count} jobs"


def _since(facts: Facts) -> str:
    since = codec.number((facts.get("since") or "").encode() or None)
    return f"since {_moment(str(since))}" if since else ""


def _wait_ms(facts: Facts) -> int:
    due = codec.number(facts["due"].encode())
    return max(0, (codec.MOST if due is None else due) - int(facts["now"]))


def _moment(ms: str) -> str:
    try:
        return datetime.fromtimestamp(float(ms) / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # of a year that no calendar has
