"""What the end of a run says of tests that were not run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

SKIPPING = """
import pytest
from tests.helpers import not_run


@pytest.mark.parametrize("number", range(30))
def test_that_cannot_run(number):
    not_run("there is no flux capacitor")


def test_that_is_left_out():
    pytest.skip("not on a Sunday")


def test_that_runs():
    pass
"""


def test_each_reason_takes_one_line(tmp_path: Path):
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml"]

    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), str(tmp_path)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    told = re.split(r"=+ NOT RUN =+", done.stdout)[1].strip().split("\n")[:2]
    assert [line.split(maxsplit=1) for line in told] == [
        ["1", "not on a Sunday"],
        ["30", "there is no flux capacitor"],
    ]
    assert done.stdout.count("flux capacitor") == 1
    assert "SKIPPED" not in done.stdout
