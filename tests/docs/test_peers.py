"""The programs of other queues: each page has one in both, and those for Node run here.

``make peers`` runs all of them exactly as they are printed, on port 6379.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import toril
from tests.helpers import not_run
from tests.servers import Server
from toril.cli.main import toril as cli
from toril.client.taken_job import TakenJob
from toril.options import OPTION_NAMES
from toril.outbox import Outbox, Relay
from toril.tasks.calls import Handle
from toril.tasks.task import BlockingTask, Task

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("peers", ROOT / "tools" / "peers.py")
assert SPEC is not None
assert SPEC.loader is not None
peers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(peers)
NAMES = ("arq", "bullmq", "celery", "dramatiq", "groupmq", "rq", "sidekiq", "taskiq")


def test_every_other_queue_has_a_page():
    assert sorted(page.stem for page in peers.PAGES.glob("*.md")) == sorted(NAMES)
    assert set(peers.PACKAGES) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_one_program_in_both_and_a_table(name: str):
    page = peers.PAGES / f"{name}.md"
    program = peers.Program(page, dict(os.environ))
    text = page.read_text()

    assert program.printed.strip()
    assert re.search(r"^With Toril.*:\n\n```python\n# shop\.py", text, re.MULTILINE)
    assert re.search(r"^## What is called what\n\n\| .+ \| Toril \|$", text, re.MULTILINE)


PUBLIC = [
    *(getattr(toril, name) for name in toril.__all__),
    *(BlockingTask, Handle, Outbox, Relay, TakenJob, Task),
]


def parameters(found: Any) -> set[str]:
    try:
        return set(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return set()


def members(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        if not name.startswith("_"):
            found = inspect.getattr_static(kind, name)
            yield name, getattr(found, "__func__", found)


def flags(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield name
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from flags(found)


CLASSES = [one for one in PUBLIC if inspect.isclass(one)]
CALLS = {*toril.__all__, *(name for one in CLASSES for name, _ in members(one))}
KEYWORDS = {
    *OPTION_NAMES,
    *(name for one in PUBLIC for name in parameters(one)),
    *(name for one in CLASSES for name in parameters(one.__init__)),
    *(name for one in CLASSES for _, found in members(one) for name in parameters(found)),
}
FLAGS = set(flags(cli))


def unknown(code: str) -> list[str]:
    """The calls, keywords, flags and commands in a piece of code that Toril does not have."""
    wrong = [name for name in re.findall(r"(\w+)\(", code) if name not in CALLS]
    wrong += [name for name in re.findall(r"\b(\w+)=", code) if name not in KEYWORDS]
    wrong += [name for name in re.findall(r"(?<![\w-])--[\w-]+", code) if name not in FLAGS]
    command = re.match(r"toril ([a-z-]+)", code)
    return wrong + ([command[1]] if command and command[1] not in FLAGS else [])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_table_names_exists_in_toril(name: str):
    _, table = (peers.PAGES / f"{name}.md").read_text().split("## What is called what")
    ours = re.findall(r"^\| .+ \| (.+) \|$", table, re.MULTILINE)

    codes = [code for cell in ours for code in re.findall(r"`([^`]+)`", cell)]
    assert len(codes) > 8
    assert {code: unknown(code) for code in codes if unknown(code)} == {}


def test_what_a_table_names_wrongly_is_found():
    assert unknown("queue.wait_forr(1)") == ["wait_forr"]
    assert unknown("add(atempts=3)") == ["atempts"]
    assert unknown("toril monitorr --intervall") == ["--intervall", "monitorr"]


@pytest.mark.parametrize("name", ["bullmq", "groupmq"])
def test_a_program_of_node_prints_what_its_page_says(name: str, tmp_path: Path):
    if not shutil.which("node") or not (peers.NODE_MODULES / name).exists():
        not_run("Node or its packages are not there; make setup installs them")
    server = Server(tcp=True).start()
    try:
        program = peers.Program(peers.PAGES / f"{name}.md", dict(os.environ))
        elsewhere = program.source.replace("port: 6379", f"port: {server.port}")
        program.source = elsewhere.replace("new Redis()", f"new Redis({server.port})")
        assert str(server.port) in program.source

        assert program.run(tmp_path) == ""
    finally:
        server.stop()
