"""The README: every snippet and every command in it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^make (\w+)", README, re.MULTILINE)
EXPECTED = ["charged: r-123\n", "refunded: r-123\ngroup: FAILED\n"]


def test_every_snippet_has_an_expected_output():
    assert len(SNIPPETS) == len(EXPECTED)


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_a_snippet_of_the_readme_prints_what_it_should(number, tmp_path):
    program = tmp_path / "snippet.py"
    program.write_text(SNIPPETS[number])

    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.stdout == EXPECTED[number], done.stderr


@pytest.mark.parametrize("target", COMMANDS)
def test_a_command_of_the_readme_is_a_target_of_the_makefile(target):
    dry = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert dry.returncode == 0, dry.stderr


def test_the_readme_fits_on_a_screen_or_two():
    assert len(README.splitlines()) < 130
