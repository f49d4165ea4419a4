"""The page that names the tests of sagas: each of them exists, and so does each world."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.model.worlds import CORNERS, WORLDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "sagas-walk.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_is_named_exists(file: str, name: str):
    text = (ROOT / file).read_text()

    assert re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE)


def test_the_worlds_that_are_named_exist():
    named = {
        world
        for cell in re.findall(
            r"(?:worlds? (?=\")|^\| [^|`]+ \| (?=\"))([^|`]+)", PAGE, re.MULTILINE
        )
        for world in re.findall(r'"([^"]+)"', cell)
    }

    assert len(named) > 10
    assert named - {*WORLDS, *CORNERS} == set()


def test_every_promise_has_a_test_or_a_world():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
    promises = [row for row in rows if row.split("|")[2].strip() not in ("shown by", "worlds")]

    assert len(promises) > 50
    assert [row for row in promises if "::test_" not in row and '"' not in row] == []
