"""``make test-django``: Django's own tests of backends, and ours, on the newest releases.

Ours on Django 5.2 are a part of ``make test``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.django_suite.environments import OLDEST, ROOT, Environment, find_python, versions
from tests.django_suite.excused import EXCUSED, complaints

OURS = ["tests/contrib/test_django.py", "tests/contrib/test_django_attacks.py"]
PATIENCE_S = 600


def main() -> int:
    """0 if everything holds, or if there is no Python for it, which is said."""
    needed = ".".join(map(str, OLDEST))
    python = find_python()
    if python is None:
        print(f"NOT RUN: Django 6 needs Python {needed} or newer with venv, and none was found.")
        print("  On Debian or Ubuntu: apt install python3.13-venv; with pyenv: pyenv install 3.13")
        print("  If it has another name: make test-django PYTHON=/path/to/python")
        return 0
    made = [Environment(version) for version in versions()]
    for one in made:
        one.make(python)
    with ThreadPoolExecutor(2) as pool:
        theirs = [pool.submit(run_theirs, one, moment) for one in made for moment in EXCUSED]
        ours = [pool.submit(run_ours, one) for one in made]
        good = [run.result() for run in (*theirs, *ours)]
    return 0 if all(good) else 1


def run_theirs(environment: Environment, moment: str) -> bool:
    """Django's own tests, with ENQUEUE as given."""
    title = f"Django {environment.version}, its own tests, ENQUEUE={moment!r}"
    program = ["-m", "tests.django_suite.standing_in", str(environment.sources), moment]
    ended = _run(environment, *program)
    if ended.returncode:
        return _tell(title, "the run ended early", [ended.stderr])
    told = json.loads(ended.stdout.splitlines()[-1])
    excused = len(EXCUSED[moment])
    return _tell(title, f"{len(told)} tests, {excused} excused", complaints(moment, told))


def run_ours(environment: Environment) -> bool:
    """Our tests of the backend, on every kind of database."""
    title = f"Django {environment.version}, our tests"
    ended = _run(environment, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *OURS)
    last = ended.stdout.strip().splitlines()[-1:] or ["no word"]
    lines = [ended.stdout, ended.stderr] if ended.returncode else _not_run(ended.stdout)
    return _tell(title, last[0].strip("= "), lines, is_good=ended.returncode == 0)


def _run(environment: Environment, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(environment.python), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _not_run(output: str) -> list[str]:
    """What pytest left out, and why."""
    _, found, rest = output.partition(" NOT RUN ")
    return [f"NOT RUN:{line}" for line in rest.splitlines()[1:-1]] if found else []


def _tell(title: str, words: str, lines: list[str], *, is_good: bool | None = None) -> bool:
    good = not lines if is_good is None else is_good
    print("\n".join([f"{'ok  ' if good else 'FELL'}  {title}: {words}", *lines]), flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
