"""The public surface is what the documentation says, no more and no less."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toril
import toril.sync

PAGE = Path(__file__).parent.parent / "docs" / "public-names.md"


def documented() -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)


def test_what_is_exported_is_documented_and_the_other_way_round():
    written, exported = set(documented()), set(toril.__all__)

    assert not exported - written, "give each a row in docs/public-names.md"
    assert not written - exported, "export it from toril, or take its row away"


def test_each_name_is_there_once_and_in_order():
    assert len(set(toril.__all__)) == len(toril.__all__)
    assert toril.__all__ == sorted(toril.__all__, key=lambda name: (name.islower(), name))
    for name in toril.__all__:
        assert getattr(toril, name) is not None


def test_each_name_is_imported_from_where_type_checkers_see_it():
    (guarded,) = [
        node
        for node in ast.parse(Path(toril.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    seen = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert seen == toril._HOME_OF
    assert set(seen) == set(toril.__all__)


def test_names_come_when_they_are_asked_for():
    program = (
        "import sys, toril; assert 'redis' not in sys.modules; toril.Backoff.fixed(1);"
        "assert 'redis' not in sys.modules; toril.errors; toril.sync.Queue; toril.Queue;"
        "assert 'Worker' in dir(toril)"
    )

    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="module 'toril' has no attribute 'Quue'"):
        _ = toril.Quue  # type: ignore[attr-defined]


def test_the_blocking_client_has_names_of_the_async_one():
    assert set(toril.sync.__all__) <= set(toril.__all__)
