"""Lets ordinary tests look for a planted bug: those that run its line, the quickest first.

This is a plugin of pytest as well.  With ``TORIL_PLANT=<bug>`` the scripts have that bug; with
``TORIL_PLANT=none`` every line that a bug changes says that it was run, and ``TORIL_COVERED`` names
the file that is told by whom.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.forked import Forked
from tests.model.mutants import all_mutants, marked
from toril.protocol import scripts
from toril.protocol.scripts import Library

ROOT = Path(__file__).parents[2]
TESTS = (
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/features/test_group_*.py")),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/features/parcels/test_*.py")),
    "tests/features/test_limits.py",
)
MOST_TESTS, MOST_S = 25, 20.0
"""How many tests are tried for one bug, and how long they take without it."""
LONGEST_S = 240
ALREADY_THERE = ("xdist", "pytest_asyncio", "hypothesis", "redis.asyncio", "toril.doctor")
"""What every run imports, in the process that runs are forked from; the tests are read anew."""
CHANNEL = "toril-covered"
_COVER = f"""
local function COVER(number, word)
  if memory then redis.pcall("PUBLISH", "{CHANNEL}", number) end
  return word
end
"""

Covering = dict[str, list[tuple[float, str]]]
"""By the name of a mutant the tests that run its line, with the seconds that they take."""


def covering(directory: Path) -> Covering:
    """Run all of them once, and see which lines each one runs."""
    report = directory / "covered.json"
    report.write_text("[]")
    _run(TESTS, "none", report)
    found: Covering = {}
    for name, seconds, numbers in json.loads(report.read_text()):
        for number in numbers:
            found.setdefault(all_mutants()[number].name, []).append((seconds, name))
    return found


def fails(test: str, mutant: str) -> bool:
    """Does this test fail with this bug, or with none ("")?"""
    return _run((test,), mutant) is not None


def find_by_tests(mutant: str, found: Covering) -> str | None:
    """The test that fails with this bug, or nothing."""
    chosen, left = [], MOST_S
    for seconds, name in sorted(found.get(mutant, []))[:MOST_TESTS]:
        left -= seconds
        if left > 0:
            chosen.append(name)
    return _run(tuple(chosen), mutant) if chosen else None


def _run(tests: tuple[str, ...], plant: str, report: Path | None = None) -> str | None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60"]
    command += ["-p", "tests.model.ordinary", *(["-x"] if report is None else [])]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"TORIL_PLANT": plant, "TORIL_PROVE": "0", "TORIL_COVERED": str(report or "")}
    with tempfile.TemporaryFile("w+") as told:
        done = Forked(*command, *tests, env=env, stdout=told.fileno(), needs=ALREADY_THERE)
        try:
            done.wait(LONGEST_S if report is None else None)
        except subprocess.TimeoutExpired:
            done.terminate()  # it stops its servers
            return "they did not end"
        told.seek(0)
        text = told.read()
    assert done.returncode in (0, 1), f"the tests themselves did not run:\n{text}"
    failed = [
        line for line in text.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))
    ]
    return (failed or [None])[0]


# ---------------------------------------------------------------------------- inside the tests


def pytest_configure() -> None:
    plant = os.environ.get("TORIL_PLANT")
    if not plant:
        return
    library = _telling() if plant == "none" else _planted(plant)
    scripts.load = functools.cache(library.script)  # type: ignore[assignment]


def _planted(plant: str) -> Library:
    """The library with a mutant, by its name, or with a change by hand: [file, line, instead]."""
    if not plant.startswith("["):
        return next(mutant for mutant in all_mutants() if mutant.name == plant).library()
    file, line, instead = json.loads(plant)
    library = scripts.library()
    return library.with_texts({file: library.text(file).replace(line, instead)})


def _telling() -> Library:
    told = marked()
    return Library(told.rooms, told.calls, scripts._read("")["library"] + _COVER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    path = os.environ.get("TORIL_COVERED")
    urls = _servers(getattr(item, "funcargs", {}))
    if not path or not urls:
        return (yield)
    with redis.Redis.from_url(urls[0]) as client, client.pubsub() as listener:
        listener.subscribe(CHANNEL)
        listener.get_message(timeout=5)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - began
            _note(Path(path), item.nodeid, seconds, _heard(listener, urls))


def _servers(fixtures: dict[str, Any]) -> list[str]:
    """The server of a test, or all nodes of its cluster: they pass on what is published."""
    if "cluster" in fixtures:
        return [node.url for node in fixtures["cluster"].nodes]
    return [fixtures["url"]] if fixtures.get("url") else []


def _heard(listener: redis.client.PubSub, urls: list[str]) -> list[int]:
    """What was published until now; each server says when that was all."""
    for url in urls:
        with redis.Redis.from_url(url) as client:
            client.publish(CHANNEL, "end")
    numbers, ends = set(), 0
    while ends < len(urls) and (word := listener.get_message(timeout=5)):
        if word["data"] == b"end":
            ends += 1
        else:
            numbers.add(int(word["data"]))
    return sorted(numbers)


def _note(path: Path, name: str, seconds: float, numbers: list[int]) -> None:
    known = json.loads(path.read_text())
    path.write_text(json.dumps([*known, [name, seconds, numbers]]))
