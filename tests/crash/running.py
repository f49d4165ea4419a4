"""Runs scenarios undisturbed, disturbed at one operation, or to the death of their process."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import secrets
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.crash.saboteur import DEATHS, EXIT_CODE, HARMLESS, Saboteur, sabotage
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.world import World, open_world
from toril.errors import RefusedError

RUN_TIMEOUT_S = 240.0

_UNHEARD = 255  # the fork server did not hear in time how the process ended
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.crash.running"])


@dataclass(frozen=True)
class Reference:
    """The undisturbed run: what came of it, what ran, and how many operations there were."""

    outcome: dict[str, Any]
    runs: Counter[str]
    untouched: dict[str, Any]
    operations: list[str]


@dataclass(frozen=True)
class Point:
    """One operation of one scenario, and what happens to it."""

    scenario: str
    fault: str
    at: int

    def __str__(self) -> str:
        return f"{self.scenario}: {self.fault} at operation {self.at}"


@dataclass
class Report:
    """What was broken, and what went wrong because of it."""

    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: int = 0
    failures: list[str] = field(default_factory=list)


async def reference_of(scenario: Scenario, url: str) -> Reference:
    """Run ``scenario`` without faults, and not at all.

    Twice: the first time the server is shown the scripts, which are operations of their own.
    """
    await _undisturbed(scenario, url)
    outcome, runs, operations = await _undisturbed(scenario, url)
    if not scenario.either:
        return Reference(outcome, runs, {}, operations)
    async with _world(scenario, url, url) as world:
        await _begin(scenario, world)
        await _finish(scenario, world)
        untouched = await world.outcome()
    return Reference(outcome, runs, untouched, operations)


async def _undisturbed(
    scenario: Scenario, url: str
) -> tuple[dict[str, Any], Counter[str], list[str]]:
    saboteur = Saboteur()
    with sabotage(url, saboteur) as line:
        async with _world(scenario, url, line) as world:
            await _begin(scenario, world)
            await scenario.act(world)
            operations = list(saboteur.operations)
            await _finish(scenario, world)
            outcome, runs = await world.outcome(), await world.runs()
            problems = await world.problems()
    assert not problems, problems
    return outcome, runs, operations


def points_of(scenario: Scenario, reference: Reference, faults: Iterable[str]) -> list[Point]:
    """Every operation with every fault."""
    places = range(len(reference.operations))
    return [Point(scenario.name, fault, at) for fault, at in itertools.product(faults, places)]


async def sweep(
    points: list[Point],
    references: dict[str, Reference],
    url: str,
    *,
    at_once: int = 8,
) -> Report:
    """Run all points, several at a time."""
    report = Report()
    room = asyncio.Semaphore(at_once)

    async def visit(point: Point) -> None:
        async with room:
            try:
                async with asyncio.timeout(RUN_TIMEOUT_S):
                    await _visit(point, references[point.scenario], url, report)
            except Exception as error:
                report.failures.append(f"{point}: {type(error).__name__}: {error}")

    await asyncio.gather(*(visit(point) for point in points))
    return report


async def _visit(point: Point, reference: Reference, url: str, report: Report) -> None:
    scenario = SCENARIOS[point.scenario]
    saboteur = Saboteur(point.fault, point.at)
    with sabotage(url, saboteur) as line:
        async with _world(scenario, url, line) as world:
            saboteur.expire_locks = world.expire_locks
            await _begin(scenario, world)
            is_open = False
            if point.fault in DEATHS:
                is_open = await _die(point, world)
                saboteur.hit = "death" if is_open else None
            else:
                is_open = await _act(scenario, world, point, saboteur)
            if saboteur.hit is None:
                report.missed += 1
            else:
                report.hits[point.fault, saboteur.hit] += 1
            if is_open:
                world.expire_locks()
            if is_open and not scenario.either:
                world.line = url
                with suppress(RefusedError):
                    await scenario.act(world)
            await _finish(scenario, world)
            await _compare(point, scenario, reference, world, is_open=is_open)


async def _act(scenario: Scenario, world: World, point: Point, saboteur: Saboteur) -> bool:
    """Whether the caller does not know the result."""
    saboteur.task = asyncio.ensure_future(scenario.act(world))
    await asyncio.wait([saboteur.task])
    if saboteur.task.cancelled():
        return True
    error = saboteur.task.exception()
    if error is None:
        return False
    raise error


async def _die(point: Point, world: World) -> bool:
    """Let a process do it and die at its operation; whether it came so far."""
    arguments = (point, world.url, world.prefix, world.memory)
    process = _forks.Process(target=_live_and_die, args=arguments, daemon=True)
    await asyncio.to_thread(process.start)
    await asyncio.to_thread(process.join, RUN_TIMEOUT_S / 2)
    if process.exitcode not in (0, EXIT_CODE, _UNHEARD):
        raise AssertionError(f"the process ended with {process.exitcode}")
    return process.exitcode != 0


def _live_and_die(point: Point, url: str, prefix: str, memory: dict[str, Any]) -> None:
    async def live() -> None:
        scenario = SCENARIOS[point.scenario]
        with sabotage(url, Saboteur(point.fault, point.at)) as line:
            world = World(url, line, prefix, queues=scenario.queues)
            world.memory = memory
            await scenario.act(world)
            await world.leave()

    asyncio.run(live())


async def _compare(
    point: Point, scenario: Scenario, reference: Reference, world: World, *, is_open: bool
) -> None:
    outcome, runs = await world.outcome(), await world.runs()
    is_alike = scenario.is_alike if point.fault not in HARMLESS else None
    is_same = outcome == reference.outcome or (is_alike and is_alike(outcome, reference.outcome))
    is_untouched = is_open and scenario.either and outcome == reference.untouched
    assert is_same or is_untouched, f"the outcome is\n{outcome}\ninstead of\n{reference.outcome}"
    if outcome == reference.outcome:
        extra = sum((runs - reference.runs).values())
        assert not reference.runs - runs, f"ran {runs} instead of {reference.runs}"
        most = 0 if point.fault in HARMLESS else scenario.most_extra
        assert extra <= most, f"{extra} extra runs: {runs} instead of {reference.runs}"
    problems = await world.problems()
    assert not problems, f"the audit says {problems}"


async def _begin(scenario: Scenario, world: World) -> None:
    if scenario.given is not None:
        await scenario.given(world)


async def _finish(scenario: Scenario, world: World) -> None:
    if scenario.runs:
        await world.recover()


def _world(scenario: Scenario, url: str, line: str) -> Any:
    prefix = f"c{secrets.token_hex(5)}"
    return open_world(url, line, prefix, queues=scenario.queues)
