"""A reader who copies follows the tutorial from its first page to the deployed service."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.compose import Compose
from tests.servers import free_port
from tests.sql.conftest import postgres

__all__ = ["postgres"]  # a fixture

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "learn" / f"{name}.md"
    for name in ("README", "retries", "dead-letters", "lanes", "sagas", "outbox", "deploy")
]
FENCE = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```', re.MULTILINE | re.DOTALL
)
PATIENCE_S = 60
LOOK_EVERY_S = 0.5
"""Each look is a program that starts, half a second of a whole core."""
LOOKING = ("toril", "cat", "curl", "docker compose -f deploy/compose.yaml exec worker toril")
"""What only looks may be asked again until it shows what the page shows."""
TOLD = {"python checkout.py --crash": (1,), "toril doctor": (1,)}
"""Commands that fail, and the page says so."""


class Block(NamedTuple):
    kind: str
    title: str | None
    body: str


def blocks(page: Path) -> list[Block]:
    return [Block(**match.groupdict()) for match in FENCE.finditer(page.read_text())]


def steps(body: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console with the lines that it is to print."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, *output = part.rstrip("\n").split("\n")
        yield command, output


def shows(output: str, expected: list[str]) -> bool:
    """Does the output have the expected lines, in their order? ``…`` stands for anything."""
    lines = iter(output.splitlines())
    patterns = [".*".join(map(re.escape, line.split("…"))).strip() for line in expected]
    patterns = [pattern.replace(r"\ .*", ".*").replace(r".*\ ", ".*") for pattern in patterns]
    return all(any(re.fullmatch(pattern, line.strip()) for line in lines) for pattern in patterns)


def slower(program: str) -> str:
    """The program with a larger warehouse: a busy disk may hold up three tries of a charge."""
    return program.replace("time.sleep(2)", "time.sleep(8)")


class Reader:
    """Copies files, types commands, and keeps a terminal for each titled console."""

    def __init__(self, desk: Path, port: int, compose: Compose) -> None:
        self.desk = desk
        self.port = port
        self.compose = compose
        home = Path(sys.executable).parent
        self.env = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "NO_COLOR": "1"}
        self.env |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        # The reader's checkout is this one, and what pip needs to build is there already.
        (desk.parent / "home").mkdir()
        (desk.parent / "home" / "toril").symlink_to(ROOT)
        self.env |= {"HOME": str(desk.parent / "home")}
        self.env |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
        self.terminals: dict[str, subprocess.Popen[bytes]] = {}

    def read(self, page: Path) -> None:
        for block in blocks(page):
            if block.kind == "python" and block.title:
                (self.desk / block.title).write_text(slower(block.body))
            elif block.kind == "console" and block.title:
                ((command, _),) = steps(block.body)
                self.open(block.title, command)
            elif block.kind == "console":
                for command, expected in steps(block.body):
                    self.type(command, expected, page)

    def open(self, title: str, command: str) -> None:
        self.close(title)
        with (self.desk / f"{title}.txt").open("ab") as log:
            self.terminals[title] = subprocess.Popen(
                command.replace("9100", str(self.port)).split(),
                cwd=self.desk,
                env=self.env,
                stdout=log,
                stderr=log,
            )

    def type(self, command: str, expected: list[str], page: Path) -> None:
        if command.startswith("pip install"):
            return
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value
            return
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = self.run(command)
            if done.returncode in (0, *TOLD.get(command, ())) and shows(
                done.stdout + done.stderr, expected
            ):
                return
            may_look_again = command.startswith(LOOKING) and time.monotonic() < deadline
            if not may_look_again or " replay " in command:
                break
            time.sleep(LOOK_EVERY_S)
        logs = "\n".join(
            log.read_text() for end in ("*er.txt", "*.log") for log in self.desk.glob(end)
        )
        pytest.fail(f"{page.name}: $ {command}\n{done.stdout}{done.stderr}\n--- logs\n{logs}")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        if command.startswith("docker compose "):
            return self.compose.run(command.split()[2:], self.env)
        return subprocess.run(
            self.compose.published(command.replace("9100", str(self.port))),
            shell=True,
            cwd=self.desk,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def close(self, title: str) -> None:
        """Ctrl-C; a worker ends by itself and says nothing is wrong."""
        process = self.terminals.pop(title, None)
        if process is not None:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in (0, 130), (self.desk / f"{title}.txt").read_text()

    def leave(self) -> None:
        self.compose.leave()
        for process in self.terminals.values():
            process.terminate()  # a parent that is killed leaves its processes behind
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


@pytest.fixture
def reader(tmp_path: Path, postgres: str) -> Iterator[Reader]:
    desk = tmp_path / "desk"
    desk.mkdir()
    reader = Reader(desk, free_port(), Compose(desk, postgres))
    yield reader
    reader.leave()


@pytest.mark.first
@pytest.mark.timeout(1800)
def test_the_tutorial_can_be_followed_by_copying(reader: Reader):
    for page in PAGES:
        reader.read(page)

    assert reader.compose.code_is_as_built(), "the code of an image cannot be written to"
    for title in list(reader.terminals):
        reader.close(title)


def test_the_pages_lead_from_one_to_the_next():
    for page, following in itertools.pairwise(PAGES):
        assert f"({following.name})" in page.read_text().rpartition("**Next:**")[2]
