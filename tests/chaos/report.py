"""What came of a storm: the checks over the ledger and the keyspace, and a table of it."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.history import disorders
from tests.chaos.ledger import Run, read_all
from tests.chaos.program import LETTERS, LOCK_MS, QUEUE, SWEEP_MS
from tests.chaos.storm import LINES, PREFIX, Fault, Storm
from tests.keyspace import audit

WINDOW_S = (LOCK_MS + 4 * SWEEP_MS) / 1000 + 5.0
HAS_TO_HAPPEN = (
    "kill",
    "stop",
    "restart",
    "forget",
    "disconnect",
    "cut",
    "lose",
    "silence",
    "squeeze",
    "freeze",
    *LINES,
    "runs longer than their lock",
    "results",
    "extra runs",
    "groups",
    "groups undone",
    "groups with stages",
    "lane runs",
    "dead letters",
    "adds hit by cut",
    "adds hit by lose",
)


async def problems_of(storm: Storm, client: Any) -> list[str]:
    """Everything that must not be, as sentences."""
    by_label = _runs_of(storm)
    problems = [
        *_lost(storm, by_label),
        *_wrongs(storm, by_label),
        *(disorders(storm.history) if not storm.seen["events missed"] else ()),
        *[problem async for problem in _results(storm, client)],
        *[problem async for problem in _letters(storm, client)],
        *[problem async for problem in _groups(storm, client, by_label)],
        *(await audit(client, PREFIX)),
    ]
    problems += [
        f"{what!r} never happened: the storm has proved nothing about it"
        for what in HAS_TO_HAPPEN
        if not storm.seen[what]
    ]
    return problems


def problems_so_far(directory: Path) -> list[str]:
    """What the ledger and the notes of an interrupted storm say: who ran once too often, at the
    same time as another, or out of order. What had not run yet cannot be told from what is lost.
    """
    storm = Storm(jobs=0, kills=0, directory=directory)
    storm.read_notes()
    return [*_wrongs(storm, _runs_of(storm))]


def _runs_of(storm: Storm) -> dict[str, list[Run]]:
    _note_starved(storm)
    by_label: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(read_all(storm.directory), key=lambda run: run.started):
        by_label[run.label].append(run)
        storm.seen["runs"] += 1
    return by_label


def _wrongs(storm: Storm, by_label: dict[str, list[Run]]) -> Iterator[str]:
    yield from _extra(storm, by_label)
    yield from _overlaps(storm, by_label)
    yield from _lanes(storm, by_label)


def _may_be_two(storm: Storm, label: str, runs: list[Run]) -> bool:
    """May two jobs have this label? Its add was repeated without an id, or with one that was free
    again, because the first job had failed for good."""
    has_failed = runs[0].kind == "fails"
    return label in storm.doubtful or (has_failed and label in storm.tried_again)


def _note_starved(storm: Storm) -> None:
    """A process that a busy machine gave no time was as good as stopped."""
    for path in storm.directory.glob("*.starved"):
        for row in path.read_text().splitlines():
            began, _, end = row.partition(" ")
            if end:
                storm.faults.append(Fault("starved", float(began), float(end), int(path.stem)))
                storm.seen["processes without time"] += 1


def _lost(storm: Storm, by_label: dict[str, list[Run]]) -> Iterator[str]:
    for label, kind in storm.added.items():
        finished = [run for run in by_label.get(label, ()) if run.ended is not None]
        if not finished:
            yield f"lost: {label} ({kind}) was added and never ran to its end"


def _extra(storm: Storm, by_label: dict[str, list[Run]]) -> Iterator[str]:
    """Every run beyond the first, or the second of one that fails once, has its fault.

    Which of the runs of one that fails once was the planned one cannot be seen: a process may be
    killed after its handler ended and before it could tell.
    """
    for label, unsorted in by_label.items():
        # By number, not by time: whoever was stopped may begin after those who took over.
        runs = sorted(unsorted, key=lambda run: run.fence)
        if _may_be_two(storm, label, runs):
            continue
        planned = 2 if runs[0].kind == "flaky" else 1
        storm.seen["extra runs"] += max(0, len(runs) - planned)
        unexplained = [
            (earlier, later)
            for earlier, later in itertools.pairwise(runs)
            if not _explains(storm, earlier, later)
        ]
        for earlier, later in unexplained[planned - 1 :]:
            yield f"unexplained: {label} ran at {earlier} and again at {later}"


def _explains(storm: Storm, earlier: Run, later: Run) -> bool:
    began, end = min(earlier.started, later.started), max(earlier.started, later.started)
    for fault in storm.faults:
        if fault.until < began - 0.5 or fault.at > end:
            continue
        if fault.kind in ("kill", "stop", "starved") and fault.pid == earlier.pid:
            return True
        # Nobody could renew a lock while the server was away or the line was silent.
        if fault.kind in ("restart", "silence", "stall", "freeze") and end - fault.until < WINDOW_S:
            return True
    return False


def _overlaps(storm: Storm, by_label: dict[str, list[Run]]) -> Iterator[str]:
    """Nobody begins a job while another runs it, in a lane or not, unless the first one was cut off
    for longer than its lock."""
    for label, unsorted in by_label.items():
        runs = sorted(unsorted, key=lambda run: run.fence)
        if _may_be_two(storm, label, runs):
            continue
        storm.seen["runs longer than their lock"] += sum(
            run.ended is not None and run.ended - run.started > LOCK_MS / 1000 for run in runs
        )
        for earlier, later in itertools.pairwise(runs):
            if earlier.ended is None or later.started >= earlier.ended:
                continue
            storm.seen["overlaps"] += 1
            if not _explains(storm, earlier, later):
                yield f"overlap: {label} ran at {earlier} and meanwhile at {later}"


async def _results(storm: Storm, client: Any) -> Any:
    """What is kept of a completed job is what its handler returned."""
    base = f"{PREFIX}:{QUEUE}"
    ids = await client.zrange(f"{base}:completed", 0, -1)
    storm.seen["results"] = len(ids)
    for start in range(0, len(ids), 1000):
        part = ids[start : start + 1000]
        async with client.pipeline(transaction=False) as ask:
            for job_id in part:
                ask.hmget(f"{base}:{job_id}", "data", "returnvalue", "failedReason", "name")
            rows = await ask.execute()
        for job_id, (data, returned, reason, name) in zip(part, rows, strict=True):
            label = json.loads(data)["n"]
            if returned is None or json.loads(returned) != label or (reason and name != "flaky"):
                yield f"{job_id} is completed and kept {returned!r}, {reason!r} for {label!r}"


def _lanes(storm: Storm, by_label: dict[str, list[Run]]) -> Iterator[str]:
    """By their fencing numbers the runs of a lane are in its order, retries in between included."""
    for lane, every in storm.lane_order.items():
        labels = [label for label in every if label not in storm.doubtful]
        place = {label: index for index, label in enumerate(labels)}
        runs = sorted(
            (run for label in labels for run in by_label.get(label, ())), key=lambda run: run.fence
        )
        storm.seen["lane runs"] += len(runs)
        fences = Counter(run.fence for run in runs)
        for fence, times in fences.items():
            if times > 1:
                yield f"lane {lane}: the fencing number {fence} was given {times} times"
        for earlier, later in itertools.pairwise(runs):
            if place[earlier.label] > place[later.label]:
                yield f"lane {lane}: {later.label} ran after {earlier.label} by its number"


async def _letters(storm: Storm, client: Any) -> Any:
    """Dead letters are conserved: each job that failed for good is one, once."""
    base = f"{PREFIX}:{LETTERS}"
    ids = await client.lrange(f"{base}:wait", 0, -1)
    sources = Counter()
    for letter in ids:
        data = json.loads(await client.hget(f"{base}:{letter}", "data"))
        sources[data["n"]] += 1
    storm.seen["dead letters"] = len(ids)
    wanted = {label for label, kind in storm.added.items() if kind == "fails"}
    for label in wanted - sources.keys():
        yield f"{label} failed for good and is no dead letter"
    for label, times in sources.items():
        if times > 1 and label not in storm.tried_again | storm.doubtful:
            yield f"{label} is {times} dead letters"


async def _groups(storm: Storm, client: Any, by_label: dict[str, list[Run]]) -> Any:
    """What was done in a group that failed is undone, and that is what the ledger says was done:
    a handler whose process was killed before it could tell is undone as well."""
    base = f"{PREFIX}:{QUEUE}:groups"
    for group_id, expected in storm.groups.items():
        record = await client.hgetall(f"{base}:{group_id}")
        members = await client.hgetall(f"{base}:{group_id}:jobs")
        ends = await client.hgetall(f"{base}:{group_id}:compensations")
        state = record.get("state")
        if state != ("FAILED" if expected == "fails" else "COMPLETED"):
            yield f"group {group_id} is {state}: {members} {ends}"
        if state == "FAILED":
            storm.seen["groups undone"] += 1
            undone = {int(key.rpartition("-c")[2]) for key in ends}
            done, begun = set(), set()
            jobs = {key: status for key, status in members.items() if "-s" not in key}
            for key, status in jobs.items():
                label = key.rpartition(":")[2]
                number = int(label.rpartition("-")[2])
                runs = [run for run in by_label.get(label, ()) if run.kind == "plain"]
                if status == "completed" or any(run.ended is not None for run in runs):
                    done.add(number)
                if status == "completed" or runs:
                    begun.add(number)
            storm.seen["undone without a word"] += len(undone) - sum(
                status == "completed" for status in jobs.values()
            )
            if "x.staged" in record and _first(by_label, jobs, 0) < _last(by_label, jobs, 1):
                yield f"group {group_id}: its first stage was undone before the second"
            if not done <= undone or set(ends.values()) - {"completed"}:
                yield f"group {group_id}: {done} were done and were undone so: {ends}"
            # What was handed out and never arrived may be undone too; nobody can tell it apart.
            storm.seen["undone without a run"] += len(undone - begun)
        elif ends:
            yield f"group {group_id} is {state} and was undone: {ends}"


def _undoings(by_label: dict[str, list[Run]], jobs: dict[str, str], number: int) -> list[Run]:
    labels = [key.rpartition(":")[2] for key in jobs if key.endswith(f"-{number}")]
    return [run for label in labels for run in by_label.get(f"undo-{label}", ())]


def _first(by_label: dict[str, list[Run]], jobs: dict[str, str], number: int) -> float:
    """When a member began to be undone."""
    return min((run.started for run in _undoings(by_label, jobs, number)), default=math.inf)


def _last(by_label: dict[str, list[Run]], jobs: dict[str, str], number: int) -> float:
    """When a member was first undone to the end; later runs are repetitions."""
    ends = [run.ended for run in _undoings(by_label, jobs, number) if run.ended is not None]
    return min(ends, default=0.0)


def table_of(storm: Storm) -> str:
    """What happened, for people."""
    rows = [
        ("jobs added", len(storm.added) + 3 * storm.seen["groups"]),
        *sorted(storm.seen.items()),
        ("seconds", round(storm.seconds)),
        ("seed", storm.seed),
    ]
    return "\n".join(f"| {name} | {value:,} |" for name, value in rows)


if __name__ == "__main__":
    found = problems_so_far(Path(sys.argv[1]))
    print("\n".join(found) or "nothing is wrong so far")
    sys.exit(bool(found))
