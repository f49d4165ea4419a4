"""Fixtures for the tests of the command line: the real program, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forks import Forks
from toril.sync import Queue

SRC = Path(__file__).parent.parent.parent / "src"


class Done:
    """What a command printed, and how it ended."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


Toril = Callable[..., Done]


async def start_asking(env: dict[str, str], *line: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start ``toril`` with this line; it waits for an answer to the question that is returned."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toril", *line),
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    question = await asyncio.wait_for(process.stderr.readuntil(b"[y/N]"), 60)
    return process, question.decode()


@pytest.fixture
def cli_env(url: str, prefix: str) -> dict[str, str]:
    """An environment in which ``toril`` finds the test's server and prefix by itself."""
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ,
        "TORIL_URL": url,
        "TORIL_PREFIX": prefix,
        "PYTHONPATH": path,
        "NO_COLOR": "1",
    }


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """The process from which those of `toril` are forked."""
    with Forks() as forks:
        yield forks


@pytest.fixture
def toril(forks: Forks, cli_env: dict[str, str], tmp_path: Path) -> Toril:
    """Runs ``toril`` with arguments; ``typed`` is what a person types, nothing by default."""

    def run(*arguments: str, typed: str = "", env: dict[str, str] | None = None) -> Done:
        whole = {**cli_env, **(env or {})}
        return Done(forks.run(list(arguments), typed=typed, env=whole, directory=tmp_path))

    return run


@pytest.fixture
def queue(url: str, prefix: str, queue_name: str) -> Iterator[Queue]:
    """A queue as blocking code sees it."""
    with Queue(queue_name, connection=url, prefix=prefix) as queue:
        yield queue
