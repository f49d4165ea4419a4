"""T2: a lock is held for as long as its holder asked for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.actors import LOCK_MS
from tests.model.machine import Result
from tests.model.steps import Step
from tests.model.view import PREFIX, View

LEAST_MS = LOCK_MS * 0.99
"""The server's time goes on while it answers."""


def lock_problems(after: View, step: Step, result: Result) -> Iterator[str]:
    for key in _held(step, result):
        if result.renewed.get(key, 0) < LEAST_MS:
            yield f"T2: {step.name}: {key} is held for {result.renewed.get(key, 'no longer')}"


def _held(step: Step, result: Result) -> Iterator[str]:
    """The locks that this step was to take or to keep."""
    if step.request.script == "renew" and not result.reply[0]:
        yield f"{step.request.keys[0]}:{step.held}:lock"
    if step.worker is None or step.is_repeated or isinstance(result.reply, int):
        return
    for words in result.reply[1]:
        yield f"{PREFIX}:{step.worker.queue}:{words[-1].decode()}:lock"
