"""Each extra alone in an empty environment, from the built wheel, with the newest versions."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.helpers import not_run
from tests.packaging.test_wheel import EXTRAS

CORE = """
import toril, toril.sync, toril.testing, toril.steps, toril.doctor, toril.idempotency
[getattr(toril, name) for name in toril.__all__]
[getattr(toril.testing, name) for name in toril.testing.__all__]

import sqlite3
from toril.outbox import Outbox, table_sql
connection = sqlite3.connect(":memory:")
for statement in table_sql("sqlite"):
    connection.execute(statement)
Outbox().add(connection, "payments", "charge")
"""
PROGRAMS = {
    "cli": """
import subprocess, sys, toril.cli.main, toril.cli.monitor.app
subprocess.run([sys.executable, "-m", "toril", "--help"], check=True, stdout=subprocess.DEVNULL)
""",
    "dashboard": """
import importlib.util
if importlib.util.find_spec("toril.dashboard"):
    import toril.dashboard
""",
    "django": """
import importlib, toril.contrib.django.backend
importlib.import_module("toril.contrib.django.migrations.0001_outbox")
importlib.import_module("toril.contrib.django.management.commands.toril_relay")
""",
    "embedded": """
import tempfile
from toril.client import embedded
with tempfile.TemporaryDirectory() as directory, embedded.start(directory) as server:
    from toril.sync import Queue
    with Queue("q", connection=server.url) as queue:
        queue.add("job")
""",
    "opentelemetry": "import toril.contrib.opentelemetry",
    "outbox": """
import toril.outbox, toril.idempotency.sql_store
[getattr(toril.outbox, name) for name in toril.outbox.__all__]
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn
import asyncio
asyncio.run(greenlet_spawn(int))
""",
    "prometheus": "import toril.contrib.prometheus",
    "uvloop": "import uvloop",
}


def install(python: Path, *what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *what],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Leaves the tests out where no package index answers."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "cronsim"],
        cwd=tmp_path_factory.mktemp("index"),
        capture_output=True,
        timeout=300,
        check=False,
    )
    if asked.returncode != 0:
        not_run("no package index answers, so the extras cannot be installed")


@pytest.fixture
def python(index: None, tmp_path: Path) -> Path:
    """The interpreter of an empty environment."""
    venv.create(tmp_path / "venv", with_pip=False)
    folder = "Scripts" if sys.platform == "win32" else "bin"
    return tmp_path / "venv" / folder / "python"


def run(python: Path, program: str) -> None:
    done = subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_extras_the_core_is_whole(wheel, python):
    install(python, str(wheel))
    run(python, CORE)


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_alone_is_enough_for_its_modules(extra, wheel, python):
    install(python, f"{wheel}[{extra}]")
    run(python, CORE + PROGRAMS[extra])


def test_all_of_them_go_together(wheel, python):
    install(python, f"{wheel}[all]")
    run(python, CORE + "\n".join(PROGRAMS[name] for name in sorted(EXTRAS)))


def test_the_index_would_take_what_is_uploaded(dist, python):
    install(python, "twine")
    files = [str(path) for path in dist.iterdir()]
    done = subprocess.run(
        [str(python), "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
