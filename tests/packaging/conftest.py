"""The wheel and the sdist, built once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import not_run
from tests.proving import PROVES_ALL

ROOT = Path(__file__).parents[2]

# They install packages from an index: `make wheel` and `make prove` run them.
collect_ignore = [] if PROVES_ALL else ["test_extras.py"]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist of this working tree."""
    try:
        import hatchling  # noqa: F401
    except ImportError:
        not_run("hatchling is not installed, so no wheel can be built: run make setup")
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return directory


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (path,) = dist.glob("*.tar.gz")
    return path
