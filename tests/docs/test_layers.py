"""The pages that name the layers name those that the linter knows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/internals/architecture.md"])
def test_the_layers_are_those_that_the_linter_knows(page: str):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    known = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    (drawn,) = [
        block
        for block in re.findall(
            r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
        )
        if block.startswith("cli ")
    ]
    named = [re.findall(r"\w+", line[:40]) for line in drawn.splitlines()]

    assert named == known
    for name in (name for layer in known for name in layer):
        place = ROOT / "src" / "toril" / name
        assert place.is_dir() or place.with_suffix(".py").exists(), name
