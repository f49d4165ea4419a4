"""One measurement, in its own process and on its own empty server; and many of them in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import installing

import servers

CONCURRENCY = 100
TORIL = "toril"
TORIL_UVLOOP = "toril-uvloop"
SMALL_DRAINS = ("drain_1", "drain_10", "drain_5ms")
FEATURES = ("lanes", "many_lanes", "groups", "dead_letters", "floor", "task_enqueue", "task_drain")
IN_TURNS = (*SMALL_DRAINS, *FEATURES)
SWEEPS = (
    "drain_all",
    "obliterate",
    "clean",
    "purge",
    "purge_half",
    "purge_few",
    "replay",
    "replay_half",
    "replay_few",
)
GROWTHS = ("growth", "growth_lanes", "growth_dead_letters")
ONCE = ("memory", "idle", *GROWTHS, *SWEEPS)
BASIC = ("add", "add_bulk", "add_concurrent", "drain", "latency")
MEASURES = (*BASIC, *IN_TURNS, *ONCE)


@dataclass(frozen=True)
class Subject:
    """A queue under measurement: its programs, and what they can measure."""

    name: str
    label: str
    version: str
    programs: dict[str, list[str]]
    environment: dict[str, str]
    is_node: bool = False
    note: str = ""

    @property
    def is_toril(self) -> bool:
        return self.name in (TORIL, TORIL_UVLOOP)


@dataclass(frozen=True)
class Sizes:
    """How many jobs each measure gets."""

    jobs: int
    samples: int
    many: int
    memory: int

    def of(self, measure: str) -> int:
        if measure == "latency":
            return self.samples
        if measure == "memory":
            return self.memory
        if measure == "growth_lanes":
            return self.many // 10
        if measure in GROWTHS or measure in SWEEPS:
            return self.many
        return max(self.jobs // 4, 1) if measure in ("add", "drain_1") else self.jobs


@dataclass
class Results:
    """Every figure of a run on one server, and the reason for each that is missing."""

    server: str
    sizes: Sizes
    figures: dict[tuple[str, str], list[dict[str, float]]] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    def median(self, subject: str, measure: str, figure: str = "rate") -> float | None:
        seen = self.all(subject, measure, figure)
        return statistics.median(seen) if seen else None

    def all(self, subject: str, measure: str, figure: str = "rate") -> list[float]:
        return [each[figure] for each in self.figures.get((subject, measure), []) if figure in each]


def toril_subjects() -> list[Subject]:
    """Toril on asyncio's own loop and, if uvloop is installed, its basic measures on that too."""
    import importlib.metadata as metadata

    programs = {measure: ["toril_basic.py", measure] for measure in BASIC}
    features = {
        name: ["toril_features.py", name]
        for name in ("lanes", "many_lanes", "groups", "dead_letters")
    }
    drains = {name: ["toril_drains.py", name] for name in SMALL_DRAINS}
    costs = {name: ["toril_server.py", name] for name in ("memory", "idle")}
    sweeps = {name: ["toril_sweeping.py", name] for name in SWEEPS}
    growths = {name: ["toril_growth.py", name] for name in GROWTHS}
    floor = {"floor": ["toril_floor.py", "floor"]}
    tasks = {name: ["toril_tasks.py", name] for name in ("task_enqueue", "task_drain")}
    try:
        version = metadata.version("toril")
    except metadata.PackageNotFoundError:
        version = "from source"
    plain = _toril(
        TORIL,
        "Toril",
        version,
        {**programs, **drains, **features, **floor, **tasks, **costs, **growths, **sweeps},
    )
    try:
        uvloop = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        return [plain]
    on_uvloop = {name: [*program, "--loop", "uvloop"] for name, program in programs.items()}
    return [plain, _toril(TORIL_UVLOOP, "Toril on uvloop", f"uvloop {uvloop}", on_uvloop)]


def peer_subject(peer: installing.Peer) -> Subject:
    """An installed peer; raises ``NotInstallableError`` if it cannot be installed."""
    version = installing.install(peer)
    programs = {measure: [*installing.command(peer), measure] for measure in peer.measures}
    environment = installing.environment(peer)
    return Subject(peer.name, peer.label, version, programs, environment, peer.is_node, peer.note)


def measure_all(
    server: servers.Server,
    subjects: list[Subject],
    measures: Iterable[str],
    sizes: Sizes,
    rounds: int,
) -> Results:
    """All measures of all subjects: the comparable ones in alternating rounds, the rest once."""
    with servers.fresh(server) as url:
        results = Results(servers.version(url), sizes)
    wanted = list(measures)
    for turn, subject, measure in _turns(subjects, wanted, rounds):
        key = (subject.name, measure)
        if key in results.reasons:
            continue
        print(f"{turn}: {subject.label}, {measure}", file=sys.stderr, flush=True)
        try:
            figures = _measure(server, subject, measure, sizes.of(measure))
        except MeasurementFailedError as reason:
            print(f"  {reason}", file=sys.stderr, flush=True)
            results.reasons[key] = str(reason)
        else:
            results.figures.setdefault(key, []).append(figures)
    return results


class MeasurementFailedError(Exception):
    """A program printed no figures; the message is the last thing it said."""


def _turns(
    subjects: list[Subject], measures: list[str], rounds: int
) -> Iterator[tuple[str, Subject, str]]:
    for number in range(rounds):
        order = subjects if number % 2 == 0 else subjects[::-1]
        for measure in (each for each in measures if each not in ONCE):
            for subject in order:
                if measure in subject.programs:
                    yield f"round {number + 1} of {rounds}", subject, measure
    for measure in (each for each in measures if each in ONCE):
        for subject in subjects:
            if measure in subject.programs:
                yield "once", subject, measure


def _measure(server: servers.Server, subject: Subject, measure: str, jobs: int) -> dict[str, float]:
    with ExitStack() as running:
        url = running.enter_context(servers.fresh(server))
        arguments = ["--url", url, "--jobs", str(jobs), "--concurrency", str(CONCURRENCY)]
        if measure in GROWTHS and server.url is None:
            arguments += ["--other-url", running.enter_context(servers.fresh(server))]
        return _run([*subject.programs[measure], *arguments], subject.environment, measure)


def _run(command: list[str], environment: dict[str, str], measure: str) -> dict[str, float]:
    limit = 1800 if measure in ONCE else 180
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailedError(f"no figures within {limit} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise MeasurementFailedError(said[-1][:200])
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def _toril(name: str, label: str, version: str, programs: dict[str, list[str]]) -> Subject:
    here = installing.BENCHMARKS
    started = {
        measure: [sys.executable, str(here / program), *rest]
        for measure, (program, *rest) in programs.items()
    }
    source = os.pathsep.join((str(installing.ROOT / "src"), str(here)))
    return Subject(name, label, version, started, {"PYTHONPATH": source})
