"""The universes that are explored: small, and each around one promise."""

from __future__ import annotations

from typing import Any

from tests.model.actors import PREFIX, Worker, keys_of
from tests.model.interleaving import Client, Universe
from tests.model.view import View
from toril import Backoff, Deduplication, FlowJob, GroupJob, NewJob
from toril.options import Schedule
from toril.protocol import (
    adding,
    dead_letters,
    flows,
    groups,
    moving,
    pausing,
    removing,
    scheduling,
)
from toril.protocol.new_group import Compensation, new_group


def add(job_id: str, name: str = "job", queue: str = "q", **options: Any) -> Any:
    job = NewJob(name, {"n": job_id}, job_id=job_id, timestamp=1_800_000_000_000, **options)
    return adding.add(keys_of(queue), [adding.prepare(job, job_id)])


def first(plan: Any) -> Any:
    """The first command of a plan: enough for what is small."""
    return next(plan)


def _remove(job_id: str) -> Client:
    return Client(
        f"remove {job_id}",
        lambda view: first(removing.remove(keys_of("q"), job_id)),
        may_remove=True,
    )


BUDGET = (("lost", 1), ("ghost", 1), ("death", 1), ("expiry", 1))


ONE = Universe(
    "one job and many faults",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (add("x", "retries", attempts=2, backoff=Backoff.fixed(1000)),),
    (_remove("x"),),
    failing=("retries",),
    budget=(
        ("lost", 1),
        ("ghost", 1),
        ("death", 1),
        ("expiry", 2),
        ("give back", 1),
        ("renewal", 1),
    ),
)

IDLE = Universe(
    "idle workers are woken",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (),
    (
        Client("add x", lambda view: add("x", "retries", attempts=2)),
        Client("add y", lambda view: add("y", delay=1000)),
        Client("add z", lambda view: add("z", lane="l")),
    ),
    failing=("retries",),
    budget=(("lost", 0), ("death", 0), ("expiry", 1), ("give back", 1)),
)

LETTER = Universe(
    "one letter",
    ("q", "q-dlq"),
    (Worker("a", "q", "q-dlq"),),
    (add("x", "fails"),),
    (
        Client("replay", lambda view: _replay(view), may_remove=True, is_silent=True),
        Client("drain the letters", lambda view: _purge(view), may_remove=True, is_silent=True),
    ),
    failing=("fails",),
    budget=(("lost", 2), ("ghost", 1), ("death", 1), ("expiry", 1)),
    may_remove=True,
)

WORKERS = Universe(
    "two workers",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (
        add("x", "retries", attempts=2),
        add("y", "retries", attempts=2, backoff=Backoff.fixed(1000)),
        add("z", priority=2),
        add("v", priority=1),
        add("u"),
    ),
    (_remove("y"),),
    failing=("retries",),
    budget=(*BUDGET, ("give back", 1)),
)

PAUSE = Universe(
    "pause, promote and retry",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (add("x", "fails"), add("y", delay=1000), add("w")),
    (
        Client("pause", lambda view: first(pausing.pause(keys_of("q"))), is_silent=True),
        Client("resume", lambda view: first(pausing.resume(keys_of("q"))), is_silent=True),
        Client("promote y", lambda view: moving.promote(keys_of("q"), "y", call="promote y")),
        Client(
            "retry x",
            lambda view: first(_as_plan(moving.retry(keys_of("q"), "x", call="retry x"))),
        ),
        Client(
            "change y",
            lambda view: moving.change_priority(keys_of("q"), "y", 1, call="change y"),
            is_silent=True,
        ),
    ),
    failing=("fails",),
    budget=(("lost", 1), ("death", 1), ("expiry", 1), ("renewal", 1)),
)


def _as_plan(command: Any) -> Any:
    yield command


def _letter(view: View) -> str | None:
    letters = view.queues["q-dlq"].order.get("wait")
    return letters[0] if letters else None


def _replay(view: View) -> Any:
    letter = _letter(view)
    if letter is None:
        return None
    return dead_letters.replay(keys_of("q-dlq"), letter, "again", "q")


def _purge(view: View) -> Any:
    return first(removing.drain(keys_of("q-dlq")))


DEAD_LETTERS = Universe(
    "dead letters",
    ("q", "q-dlq"),
    (Worker("a", "q", "q-dlq"), Worker("b", "q", "q-dlq")),
    (add("x", "fails"), add("y", "fails", attempts=2)),
    (
        Client("replay", _replay, may_remove=True, is_silent=True),
        Client("drain the letters", _purge, may_remove=True, is_silent=True),
    ),
    failing=("fails",),
    budget=BUDGET,
    may_remove=True,
)


def _deduplicated(job_id: str, **options: Any) -> Client:
    return Client(
        f"add {job_id}",
        lambda view: add(job_id, deduplication=Deduplication("d", **options)),
    )


DEDUPLICATION = Universe(
    "deduplication",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (add("x", "fails", deduplication=Deduplication("d")),),
    (_deduplicated("y"), _deduplicated("z"), _remove("x")),
    failing=("fails",),
    budget=BUDGET,
)

KEEP_LAST = Universe(
    "keep the last one",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (add("x", "fails", attempts=2, deduplication=Deduplication("d", keep_last_if_active=True)),),
    (_deduplicated("y", keep_last_if_active=True), _deduplicated("z", keep_last_if_active=True)),
    failing=("fails",),
    budget=BUDGET,
)


def _schedule() -> tuple[Any, ...]:
    plan = scheduling.upsert(
        keys_of("q"), "tick", Schedule(every=1000), NewJob("tick", {"n": "tick"})
    )
    next(plan)
    return (plan.send(1_800_000_000_000),)


SCHEDULER = Universe(
    "a scheduler and two workers",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    _schedule(),
    (),
    budget=BUDGET,
    ticks=3,
)

LANE = Universe(
    "a lane of three",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (
        add("x", "retries", lane="l", attempts=2),
        add("y", "retries", lane="l", attempts=2, backoff=Backoff.fixed(1000)),
        add("z", lane="l"),
        add("o", lane="other"),
    ),
    (_remove("y"),),
    failing=("retries",),
    budget=BUDGET,
)


def _group(late: bool = True) -> Any:
    group = new_group(
        "order",
        [GroupJob(name, {"n": name}, queue_name="q") for name in ("one", "two", "three")],
        {
            name: Compensation(f"undo-{name}", {}, attempts=1, backoff=None)
            for name in ("one", "two", "three")
        },
        queue_name=None,
        compensation_queue="{queue}:compensation",
        order="parallel",
        late=late,
        keep=None,
        timeout=None,
    )
    return groups.create(PREFIX, group, "g", ["j1", "j2", "j3"])


GROUP = Universe(
    "a group of three",
    ("q", "q:compensation"),
    (Worker("a", "q"), Worker("b", "q"), Worker("c", "q:compensation")),
    (_group(),),
    (
        Client(
            "cancel the group",
            lambda view: groups.cancel(keys_of("q"), "g", request="r"),
            may_remove=True,
            is_silent=True,
        ),
    ),
    failing=("two", "undo-one"),
    budget=(("lost", 1), ("death", 1), ("expiry", 1)),
    may_remove=True,
)


def _flow() -> Any:
    counter = iter(f"f{n}" for n in range(9))
    root = FlowJob(
        "parent",
        {"n": "p"},
        queue_name="q",
        job_id="p",
        children=[
            FlowJob("fails", {"n": "c1"}, queue_name="q", job_id="c1", fail_parent_on_failure=True),
            FlowJob("job", {"n": "c2"}, queue_name="q", job_id="c2"),
        ],
    )
    return flows.add(flows.prepare([root], PREFIX, lambda: next(counter)))


FLOW = Universe(
    "a parent and two children",
    ("q",),
    (Worker("a", "q"), Worker("b", "q")),
    (_flow(),),
    (_remove("c2"),),
    failing=("fails",),
    budget=BUDGET,
)

UNIVERSES = {
    universe.name: universe
    for universe in (
        ONE,
        IDLE,
        LETTER,
        WORKERS,
        PAUSE,
        DEAD_LETTERS,
        DEDUPLICATION,
        KEEP_LAST,
        SCHEDULER,
        LANE,
        GROUP,
        FLOW,
    )
}
