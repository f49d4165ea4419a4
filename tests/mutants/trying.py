"""Runs the quick tests of a module against a copy of the package with a bug in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.mutants.planting import SOURCE, TESTS, Mutant

ROOT = Path(__file__).parents[2]
LONGEST_S = 180
"""A bug that makes the tests hang is noticed too."""


class Tree:
    """A copy of the package, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(SOURCE, directory / "toril", ignore=shutil.ignore_patterns("__pycache__"))

    def try_out(self, mutant: Mutant) -> Literal["caught", "survived"]:
        """Do the tests of its module fail with this bug?"""
        path = self.directory / "toril" / f"{mutant.module}.py"
        sound = path.read_text()
        path.write_text(mutant.planted())
        try:
            return "survived" if self.passes(TESTS[mutant.module]) else "caught"
        finally:
            path.write_text(sound)

    def passes(self, tests: tuple[str, ...]) -> bool:
        """Run these tests on the copy; False as soon as one fails, or when they take too long."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        # Two bugs of one size, planted within a second, would share the code kept for the first.
        env |= {"PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"PYTHONPATH": str(self.directory), "TORIL_PROVE": "0"}
        try:
            done = subprocess.run(
                [*command, "--timeout", "30", *tests],
                cwd=ROOT,
                env=env,
                timeout=LONGEST_S,
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0
