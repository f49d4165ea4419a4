"""The README: every snippet and every command in it runs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^make (\w+)", README, re.MULTILINE)
EXPECTED = ["99 € charged\n", "refunded: r-123\nFAILED sold out\n"]
AROUND_THE_SECOND = """
import asyncio
from toril import Compensation, FlowProducer, GroupJob, Queue, UnrecoverableError, Worker
URL = "embedded:"
charged = asyncio.Event()

async def charge(job):
    charged.set()
    return {"receipt": "r-123"}

async def reserve(job):
    await charged.wait()
    await asyncio.sleep(0.3)
    raise UnrecoverableError("sold out")

async def refund(job):
    print("refunded:", job.compensation.original_return_value["receipt"])

async def main():
    async with (
        Queue("payments", connection=URL) as payments,
        Worker("payments", charge, connection=URL),
        Worker("inventory", reserve, connection=URL),
        Worker("payments:compensation", refund, connection=URL),
        FlowProducer(connection=URL) as flow,
    ):
SNIPPET

asyncio.run(main())
"""


def test_every_snippet_has_an_expected_output():
    assert len(SNIPPETS) == len(EXPECTED)


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_a_snippet_of_the_readme_prints_what_it_should(number, tmp_path):
    program = tmp_path / "snippet.py"
    program.write_text(_whole(SNIPPETS[number]))

    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.stdout == EXPECTED[number], done.stderr


def _whole(snippet: str) -> str:
    """The second snippet speaks of queues and workers that are there already."""
    if snippet.startswith("import"):
        return snippet
    return AROUND_THE_SECOND.replace("SNIPPET", textwrap.indent(snippet, " " * 8))


@pytest.mark.parametrize("target", COMMANDS)
def test_a_command_of_the_readme_is_a_target_of_the_makefile(target):
    dry = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert dry.returncode == 0, dry.stderr


def test_the_readme_fits_on_a_screen_or_two():
    assert len(README.splitlines()) < 105


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
