"""The README: every snippet and every command in it runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"`make (\w+)`", README)


def test_the_first_program_prints_what_its_comment_says(tmp_path):
    """As a reader does it: the file, the worker in one terminal, the program in another."""
    (snippet,) = SNIPPETS
    worker, program = re.findall(r"^(\S.*?) +# in .*?: (.*)$", README, re.MULTILINE)
    (tmp_path / "shop.py").write_text(snippet)
    python = Path(sys.executable)
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}

    running = subprocess.Popen(worker[0].split(), cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run(
            program[0].split(), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(30)

    assert done.stdout == f"{program[1]}\n", done.stderr


@pytest.mark.parametrize("target", COMMANDS)
def test_a_command_of_the_readme_is_a_target_of_the_makefile(target):
    dry = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert dry.returncode == 0, dry.stderr


def test_the_readme_fits_on_a_screen_or_two():
    assert len(README.splitlines()) < 95


def test_its_numbers_are_those_of_the_results():
    """Nothing faster is told in front than was measured."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "readme_numbers.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stdout


def test_every_page_of_the_documentation_is_in_its_index():
    """Whoever begins at docs/README.md finds all of it."""
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text()
    linked = {(docs / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index)}
    pages = {page.resolve() for page in docs.rglob("*.md")} - {(docs / "README.md").resolve()}
    inner = {page for page in pages if page.parent.name in ("decisions", "doctor")}

    assert pages - inner - linked == set()
    assert (docs / "decisions" / "README.md").resolve() in linked
    assert (docs / "reference" / "doctor" / "README.md").resolve() in linked
