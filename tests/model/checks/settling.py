"""T3: only who holds the lock changes anything of a job; whoever is refused changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.actors import DONE, FAIL
from tests.model.steps import Step
from tests.model.view import View


def settling_problems(before: View, after: View, step: Step, reply: Any) -> Iterator[str]:
    call, worker = step.call, step.worker
    assert call is not None
    assert worker is not None
    if isinstance(reply, int) or step.is_repeated:
        if before.places != after.places:
            yield f"T3: {step.name} was a repetition and changed something"
        return
    was, now = before.queues[worker.queue], after.queues[worker.queue]
    for (held, how), code in zip(call.ended, reply[0], strict=True):
        holds = was.locks.get(held.job_id) == held.token
        is_done = code == 0 or isinstance(code, bytes)
        if is_done != holds and not (holds and (code in (-4, -9) or code > 0)):
            yield f"T3: {step.name}: {held.job_id} has the lock {holds} and the answer {code}"
        old, new = was.jobs.get(held.job_id, {}), now.jobs.get(held.job_id, {})
        if not is_done and new.get("returnvalue") != old.get("returnvalue"):
            yield f"T3: {step.name}: {held.job_id} was refused and changed"
        made = int(new.get("atm", 0)) - int(old.get("atm", 0))
        if is_done and how == FAIL and new:
            if made != 1:
                yield f"T2: {step.name}: {held.job_id} failed and {made} attempts were counted"
            if "failedReason" not in new or "stacktrace" not in new:
                yield f"T2: {step.name}: {held.job_id} failed and nobody knows why"
            elif not any(new["stacktrace"] in _text(word) for word in step.request.words):
                yield f"T2: {step.name}: {held.job_id} failed and has the traces of another attempt"
        is_completed = is_done and how == DONE and now.places.get(held.job_id) == "completed"
        if is_completed and new.get("returnvalue") != f'"result of {held.job_id}"':
            yield f"T2: {step.name}: {held.job_id} returned {new.get('returnvalue')}"
    for words in reply[1]:
        job_id = words[-1].decode()
        if now.places.get(job_id) != "active":
            yield f"T3: {step.name}: {job_id} was given out and is in {now.places.get(job_id)}"
        lock = now.locks.get(job_id)
        if lock != worker.token_of(call):
            yield f"T3: {step.name}: {job_id} was given out and is locked by {lock}"


def _text(word: bytes | str) -> str:
    return word if isinstance(word, str) else word.decode("utf-8", "surrogateescape")
