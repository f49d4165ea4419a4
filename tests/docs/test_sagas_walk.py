"""The page that names the tests of sagas: every world exists, and every promise has one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.model.worlds import CORNERS, WORLDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "sagas-walk.md").read_text()


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
