"""What is asked of the server to read a queue, and how the answers are read, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from toril.errors import InvalidNameError, InvalidOptionError
from toril.protocol import events, reading
from toril.protocol.command import Command, Plan
from toril.protocol.keys import Keys

KEYS = Keys("bull", "q")


class FakeLists:
    """Answers the reading commands from Python lists, the oldest first."""

    def __init__(self, **containers: list[str]) -> None:
        self.containers = containers
        self.asked: list[list[tuple[Any, ...]]] = []

    def follow(self, plan: Plan[Any]) -> Any:
        try:
            step = next(plan)
            while True:
                commands = step if isinstance(step, list) else [step]
                self.asked.append([command.words for command in commands])
                results = [command.parse(self._answer(command)) for command in commands]
                step = plan.send(results if isinstance(step, list) else results[0])
        except StopIteration as end:
            return end.value

    def _answer(self, command: Command[Any]) -> Any:
        verb, key, *args = command.words
        if verb == "HGETALL":
            return [] if key.endswith(":ghost") else [b"name", b"x", b"data", b"{}"]
        found = self.containers.get(key.removeprefix("bull:q:"), [])
        if verb in ("LLEN", "ZCARD"):
            return len(found)
        # Lists are stored with the newest on the left.
        stored = found[::-1] if verb in ("LRANGE", "ZREVRANGE") else found
        first, last = (int(arg) if int(arg) >= 0 else len(stored) + int(arg) for arg in args)
        return [item.encode() for item in stored[max(first, 0) : last + 1]]


NUMBERS = [f"j{number}" for number in range(10)]


@pytest.mark.parametrize("container", ["active", "completed"])
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(
    ("start", "end"), [(0, -1), (0, 0), (2, 4), (-3, -1), (-100, 2), (5, 100), (10, 20), (4, 2)]
)
def test_a_range_is_that_of_a_list_in_python(container, newest_first, start, end):
    server = FakeLists(**{container: NUMBERS})

    found = server.follow(reading.ids(KEYS, (container,), start, end, newest_first=newest_first))

    in_order = NUMBERS[::-1] if newest_first else NUMBERS
    low = start if start >= 0 else max(len(in_order) + start, 0)
    high = end if end >= 0 else len(in_order) + end
    assert found == in_order[low : high + 1]


def test_paused_jobs_come_before_waiting_ones():
    server = FakeLists(paused=["a", "b"], wait=["c", "d"])

    def ids(start: int, end: int, newest_first: bool = False) -> Any:
        return server.follow(reading.ids(KEYS, ("waiting",), start, end, newest_first=newest_first))

    assert ids(0, -1) == ["a", "b", "c", "d"]
    assert ids(1, 2) == ["b", "c"]
    assert ids(0, 2, True) == ["d", "c", "b"]


def test_long_ranges_are_read_in_pages():
    many = [f"j{number}" for number in range(2 * reading.IDS_PER_READ + 1)]
    server = FakeLists(wait=many)

    assert server.follow(reading.ids(KEYS, ("waiting",), 0, -1, newest_first=False)) == many

    ranges = [words[2:] for step in server.asked for words in step if words[0] == "LRANGE"]
    assert [abs(int(a) - int(b)) + 1 for a, b in ranges] == [1000, 1000, 1]


def test_jobs_are_read_in_pages_and_ghosts_left_out():
    ids = [f"j{number}" for number in range(reading.JOBS_PER_READ)] + ["ghost", "last"]
    server = FakeLists(wait=ids)

    found = server.follow(reading.jobs(KEYS, ("waiting",), 0, -1, newest_first=False))

    assert [job.id for job in found] == [*ids[:-2], "last"]
    assert [len(step) for step in server.asked if step[0][0] == "HGETALL"] == [500, 2]


def test_counts_put_all_that_waits_together():
    command = reading.counts(KEYS, ("waiting", "failed"))

    assert command.parse([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == {"waiting": 12, "failed": 8}


def test_counts_per_priority_ask_for_its_scores():
    plan = reading.counts_per_priority(KEYS, (0, 3))
    step = next(plan)

    assert isinstance(step, list)
    assert step[2].words == ("ZCOUNT", "bull:q:prioritized", 3 << 32, (4 << 32) - 1)
    with pytest.raises(StopIteration) as end:
        plan.send([1, 2, 4])
    assert end.value.value == {0: 3, 3: 4}


@pytest.mark.parametrize("priority", [-1, 2**21, 1.5, True, "1"])
def test_a_priority_that_cannot_be_is_refused(priority):
    with pytest.raises(InvalidOptionError):
        next(reading.counts_per_priority(KEYS, (priority,)))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ([], None),
        ([b"active"], reading.Whereabouts("active")),
        ([b"completed", b"1"], reading.Whereabouts("completed", b"1")),
        ([b"failed", None], reading.Whereabouts("failed")),
    ],
)
def test_where_a_job_is(reply, expected):
    assert reading.locate(KEYS, "j1").parse(reply) == expected


def test_states_may_have_bullmqs_spelling_and_are_named_once():
    states = reading.check_states(["waiting-children", "failed", "waiting_children"])

    assert states == ("waiting_children", "failed")
    assert reading.check_states("active") == ("active",)
    assert reading.check_states(()) == reading.STATES


def test_workers_are_found_by_the_names_of_their_connections():
    base = reading.worker_names(KEYS)
    names = [base, f"{base}:w:first", f"{base}:qe", f"{base}x", "", "bull:other"]
    reply = "\n".join(f"id=1 addr=h:1 name={name} age=3 idle=2 cmd=x" for name in names)

    found = reading.workers(KEYS).parse(reply.encode())

    assert [worker.name for worker in found] == ["", "first"]
    assert (found[0].address, found[0].age_s, found[0].idle_s) == ("h:1", 3, 2)


@pytest.mark.parametrize("prefix", ["bull", "a:w:b", "ü"])
def test_the_workers_of_all_queues_are_found_by_one_command(prefix: str):
    queues = [Keys(prefix, name) for name in ("q", "größe", "q:compensation")]
    names = [reading.worker_name(keys, own) for keys in queues for own in (None, "w:w 1")]
    strange = reading.fit(f"{prefix}:")
    names += [f"{names[0]}:qe", f"{strange}!!", f"{strange}YTpi", f"{strange}/w==", strange]
    names += ["", "other:cQ==", f"x{names[0]}"]
    reply = "\n".join(f"id=1 addr=h:1 name={name} age=3 idle=2" for name in names)

    found = reading.workers_by_queue(prefix).parse(reply.encode())

    assert list(found) == [keys.name for keys in queues]
    assert [[one.name for one in some] for some in found.values()] == [["", "w:w 1"]] * 3
    assert reading.workers(queues[0]).parse(reply.encode()) == found["q"]


def test_a_key_of_the_queue_is_never_read_as_a_job():
    for ask in (reading.job, reading.locate, reading.log_count):
        with pytest.raises(InvalidNameError):
            ask(KEYS, "meta")


def entry(number: int, name: str) -> list[Any]:
    return [f"{number}-0".encode(), [b"event", name.encode(), b"jobId", b"j1"]]


def test_what_is_passed_over_still_moves_the_place():
    command = events.read(KEYS, "0-0", block_ms=1000, only=frozenset({"failed"}))
    page = [entry(1, "added"), entry(2, "failed"), entry(3, "added"), entry(4, "waiting")]

    found = command.parse([[b"bull:q:events", page]])

    assert [(event.id, event.name) for event in found] == [("2-0", "failed"), ("4-0", "waiting")]
    assert command.parse(None) == []


def test_the_end_of_a_job_is_looked_for_backwards_and_not_for_ever():
    plan = events.find_end(KEYS, "j1")
    page = [entry(number, "active") for number in range(events.EVENTS_PER_READ, 0, -1)]
    asked = [next(plan)]

    for _ in range(events.PAGES_SEARCHED - 1):
        asked.append(plan.send(asked[-1].parse(page)))
    with pytest.raises(StopIteration) as end:
        plan.send(asked[-1].parse(page))

    assert end.value.value is None
    assert [command.words[2] for command in asked[:2]] == ["+", "(1-0"]


def test_the_newest_end_counts():
    plan = events.find_end(KEYS, "j1")

    with pytest.raises(StopIteration) as end:
        plan.send(next(plan).parse([entry(9, "completed"), entry(8, "failed")]))

    assert end.value.value.name == "completed"
