"""The shape of the code on both sides: one library, one way in, one way out, arrows one way."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from toril.protocol import scripts

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "toril"
LIBRARY = scripts.library()
FILES = {**{f"rooms/{name}": text for name, text in LIBRARY.rooms.items()}, **LIBRARY.calls}
FUNCTION = re.compile(r"^(?:local )?function ([\w.]+)(?:.|\n)*?^end$", re.MULTILINE)
WALK = (ROOT / "docs" / "internals" / "walk.md").read_text()
PAGES = {page.name: page.read_text() for page in (ROOT / "docs" / "internals").glob("*.md")}
PARTS = {
    *("advancer", "courier", "crew", "emitter", "fate", "flight", "group_keeper", "lease"),
    *("locks", "outage", "outbox", "pulse", "pump", "sweeper", "watch"),
}


def functions_with(pattern: str) -> set[str]:
    """The functions of the Lua, with their files, in which something stands."""
    return {
        f"{file} {function[1]}"
        for file, text in FILES.items()
        for function in FUNCTION.finditer(text)
        if re.search(pattern, function[0])
    }


def test_the_library_is_the_files_one_behind_the_other():
    """What runs is what one reads: nothing is included, left out or rewritten but comments."""
    source = "\n".join(line for line in LIBRARY.source.splitlines() if line)
    for file, text in FILES.items():
        body = re.sub(r"--\[\[.*?\]\]\n", "", text, count=1, flags=re.DOTALL)
        lines = [line for line in body.splitlines() if line.strip()]
        code = "\n".join(line for line in lines if not line.lstrip().startswith("--"))
        assert code in source, file
    assert not re.search(r"@include|@lazily|includes/", "".join(FILES.values()))


def test_both_ways_of_calling_run_in_continuous_integration():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    makefile = (ROOT / "Makefile").read_text()

    assert "make test || look_again" in lines
    assert "make test-scripts" in lines
    assert "TORIL_AS_SCRIPTS=1" in makefile
    chosen = re.search(r"^AS_SCRIPTS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert chosen is not None
    named = chosen[1].replace("\\\n", " ").split()
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_one_function_writes_the_hash_of_a_new_job():
    """Other hashes with a name: the record of a schedule, and a job that is kept for later."""
    writers = functions_with(r'"HSET", [\w.]+, "name"')

    assert writers == {
        "rooms/jobs jobs.write",
        "rooms/schedules schedules.write",
        "rooms/deduplication keepForLater",
    }
    assert functions_with(r"(?<!function )\bjobs\.write\(") == {
        "rooms/jobs jobs.insert",
        "rooms/burials writeLetter",
        "rooms/burials burials.buryPlainly",
    }


def test_a_job_ends_in_one_function_or_its_shortcut():
    """That it failed or completed is announced there; a job that nobody can end is abandoned."""
    assert functions_with(
        r'"event", "(?:failed|completed)"|emit\w*\([^)]*"(?:failed|completed)"'
    ) == {
        "rooms/jobs announceEnd",
        "rooms/burials burials.buryPlainly",
        "rooms/damage damage.abandon",
    }


def test_no_function_is_excused_from_the_limit():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import check_functions
    finally:
        sys.path.pop(0)

    assert set() == check_functions.STILL_LONG
    assert check_functions.LONGEST == 60


def test_the_parts_of_a_worker_know_each_other_one_way():
    """Each is given what it uses when it is made; `wiring` alone knows all of them."""
    knows = {part: _imported(SOURCE / "worker" / f"{part}.py") & PARTS for part in PARTS}
    knows = {part: others for part, others in knows.items() if others or part in knows}
    order: list[str] = []
    while len(order) < len(knows):
        free = [part for part in sorted(knows) if part not in order and knows[part] <= {*order}]
        assert free, {part: others for part, others in knows.items() if part not in order}
        order += free

    assert order.index("crew") < order.index("pump") < order.index("watch")
    assert not any("wiring" in _imported(SOURCE / "worker" / f"{part}.py") for part in PARTS)


def _imported(path: Path) -> set[str]:
    """The modules of the worker that a module imports when it runs."""
    if not path.exists():
        return set()
    return {
        node.module.removeprefix("toril.worker.")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toril.worker.")
    }


def test_the_walk_names_every_room():
    figure = WALK[WALK.index("rooms/   ") : WALK.index("- A room is a table")]

    assert {room for room in LIBRARY.rooms if not re.search(rf"\b{room}\b", figure)} == set()
    drawn = set(re.findall(r"\b\w+(?= ─|,)|(?<=─ )\w+|(?<=, )\w+", figure))
    assert drawn - set(LIBRARY.rooms) == set()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages_name_functions_and_calls_that_exist(page: str):
    text = PAGES[page]
    named = {(room, name) for room, name in re.findall(r"`(\w+)\.(\w+)[`(]", text)}
    missing = [
        f"{room}.{name}"
        for room, name in named
        if room in LIBRARY.rooms and not re.search(rf"\b{room}\.{name}\b", LIBRARY.rooms[room])
    ]
    missing += [call for call in re.findall(r"calls/(\w+)", text) if call not in LIBRARY.calls]

    assert [name for name in missing if not name.endswith((".lua", ".py"))] == []


def test_no_option_is_changed_when_it_is_made():
    """One value is copied: the members that another waits for, which may be any iterable."""
    found = [
        (path.relative_to(SOURCE).as_posix(), line.strip())
        for path in sorted(SOURCE.rglob("*.py"))
        for line in path.read_text().splitlines()
        if "force_setattr(" in line
    ]

    assert found == [
        ("protocol/new_group.py", 'msgspec.structs.force_setattr(member, "after", keys)')
    ]


def test_counts_are_one_list():
    for call in ("count", "glance"):
        assert "places.counts(" in LIBRARY.calls[call]
        assert not re.search(r'"(?:LLEN|ZCARD)", (?:wait|active|completed)\b', LIBRARY.calls[call])


def test_every_marker_is_used():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    names = [re.split(r"[(:]", marker)[0] for marker in settings["markers"]]
    tests = "".join(
        path.read_text()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "node_modules" not in path.parts
    )

    assert names
    assert [name for name in names if f"pytest.mark.{name}" not in tests] == []
