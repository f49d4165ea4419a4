"""``make peers``: run the other half of every program in docs/coming-from, as it is printed.

Toril's halves run in ``make test``. The programs of the others expect their server at localhost's
port 6379, so one is started there; the port must be free. Python peers are installed into
``.peers/coming-from``, one environment each; the Node packages are those of the tests. Sidekiq
needs Ruby and its gem (Debian: ``apt install ruby-sidekiq``). What cannot be run is named.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "coming-from"
HOME = ROOT / ".peers" / "coming-from"
NODE_MODULES = ROOT / "tests" / "interop" / "node" / "node_modules"
PACKAGES = {
    "arq": "arq==0.28.0",
    "celery": "celery[redis]==5.7.0",
    "dramatiq": "dramatiq[redis]==2.2.1",
    "rq": "rq==2.12.0",
    "taskiq": "taskiq==0.13.0 taskiq-redis==1.2.4",
}
PATIENCE_S = 120
RUN = {"py": "python", "js": "node", "rb": "ruby"}


class Program:
    """The first block of a page: its file, the commands of its first comment, what it prints."""

    def __init__(self, page: Path, variables: dict[str, str]) -> None:
        self.variables = variables
        text = page.read_text()
        block = re.search(r"^With ([^\n]+):\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        printed = re.search(r"^It prints:\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert block is not None, page
        assert printed is not None, page
        self.title, self.source = block.groups()
        self.printed = printed[1]
        head = re.match(r"(?:#|//) (\w+\.(\w+))(?:; (.*))?\n", self.source)
        assert head is not None, page
        self.file, kind, commands = head.groups()
        self.start = [RUN[kind], self.file]
        self.workers = [line.split() for line in commands.split(" & ")] if commands else []

    def missing(self) -> str:
        """Which command is not there, if one is not."""
        path = self.variables["PATH"]
        words = [self.start[0], *(worker[0] for worker in self.workers)]
        return next((word for word in words if not shutil.which(word, path=path)), "")

    def run(self, folder: Path) -> str:
        """What is wrong, or nothing."""
        (folder / self.file).write_text(self.source)
        (folder / "package.json").write_text('{"type": "module"}\n')
        (folder / "node_modules").symlink_to(NODE_MODULES)
        said = folder / "workers.log"
        with said.open("w") as log:
            running = [
                subprocess.Popen(
                    words,
                    cwd=folder,
                    env=self.variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for words in self.workers
            ]
            try:
                return self._compare(folder, said)
            except subprocess.TimeoutExpired as error:
                return f"no end after {PATIENCE_S} s: {error.stderr!r}\n{said.read_text()}"
            finally:
                for one in running:
                    os.killpg(one.pid, signal.SIGKILL)
                    one.wait()

    def _compare(self, folder: Path, said: Path) -> str:
        done = subprocess.run(
            self.start,
            check=False,
            cwd=folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode:
            return f"exit {done.returncode}\n{done.stderr}\n{said.read_text()}"
        if done.stdout == self.printed:
            return ""
        # Sidekiq has no results: its worker prints.
        ends = time.monotonic() + PATIENCE_S
        while not done.stdout and time.monotonic() < ends:
            if self.printed in said.read_text():
                return ""
            time.sleep(0.2)
        return f"printed {done.stdout!r}, expected {self.printed!r}\n{said.read_text()}"


def environment(name: str) -> dict[str, str]:
    """The variables that programs of this peer run with; Python ones have an environment each."""
    path = os.environ["PATH"]
    if name in PACKAGES:
        home = HOME / name
        stamp = home / "installed"
        if not stamp.exists() or stamp.read_text() != PACKAGES[name]:
            venv.create(home, with_pip=True, clear=home.exists())
            pip = [home / "bin" / "pip", "install", "-qq", *PACKAGES[name].split()]
            subprocess.run(pip, check=True)
            stamp.write_text(PACKAGES[name])
        path = f"{home / 'bin'}:{path}"
    return {**os.environ, "PATH": path}


def start_server() -> subprocess.Popen[bytes]:
    """A server where every program looks for one."""
    from toril.client.embedded import server_binary

    words = [str(server_binary()), "--port", "6379", "--bind", "127.0.0.1", "::1", "--save", ""]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends and server.poll() is None:
        try:
            socket.create_connection(("localhost", 6379), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return server
    raise SystemExit("make peers needs port 6379 of localhost, and no server could start there")


def main() -> int:
    """0 if every program that could be run printed what its page says."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 6379)) == 0:
            raise SystemExit("make peers needs port 6379 of localhost; a server is there already")
    server = start_server()
    wrong = 0
    try:
        for page in sorted(PAGES.glob("*.md")):
            if sys.argv[1:] and page.stem not in sys.argv[1:]:
                continue
            program = Program(page, environment(page.stem))
            if program.missing():
                print(f"NOT RUN  {program.title}: {program.missing()} is not installed")
                continue
            with tempfile.TemporaryDirectory() as folder:
                problem = program.run(Path(folder))
            print(f"{'WRONG' if problem else 'as said'}  {program.title}: {problem}".rstrip(": "))
            wrong += bool(problem)
    finally:
        server.terminate()
        server.wait()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
