"""Windows has no fcntl, no fork and no Unix sockets: what needs none of them works without."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = """
import asyncio, concurrent.futures, multiprocessing.spawn, os, signal, socket, subprocess, sys
import tempfile, ssl, selectors
import platformdirs  # has another module for Windows

for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for module, names in {
    os: "fork forkpty getuid geteuid getgid getegid killpg setsid register_at_fork",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGALRM SIGQUIT",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""

EVERYTHING = """
import importlib, pkgutil, toril
RUNS_ALONE = {"toril.client.embedded_keeper", "toril.__main__"}
for module in pkgutil.walk_packages(toril.__path__, "toril."):
    if module.name not in RUNS_ALONE:
        importlib.import_module(module.name)
[getattr(toril, name) for name in toril.__all__]
"""

WORK = """
import toril
from toril import Queue, Worker
from toril.errors import UnsupportedPlatformError
url, prefix = sys.argv[1:]

async def double(job):
    return job.data * 2

def triple(job):
    return job.data * 3

async def main():
    for handler, answer in ((double, 4), (triple, 6)):
        async with Queue("q", connection=url, prefix=prefix) as queue:
            worker = Worker("q", handler, connection=url, prefix=prefix)
            await worker.start()
            job = await queue.add("job", 2)
            assert await queue.wait_for(job.id, timeout=20_000) == answer
            await worker.close()

asyncio.run(main())

from toril.sync import Queue as BlockingQueue
with BlockingQueue("q", connection=url, prefix=prefix) as queue:
    assert queue.get_completed_count() == 2

for make in (
    lambda: Queue("q", connection="embedded:"),
    lambda: Worker("q", "json:dumps", executor="process", connection=url, prefix=prefix),
):
    try:
        make()
    except UnsupportedPlatformError as error:
        print(error)
    else:
        raise AssertionError(make)
"""

COMMAND = """
from toril.__main__ import main
main()
"""


def run(program: str, *arguments: str) -> str:
    done = start(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + program, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_everything_is_imported_without_what_windows_lacks():
    run(EVERYTHING)


async def test_queues_and_workers_run_and_the_rest_says_what_it_needs(url, prefix):
    embedded, processes = run(WORK, url, prefix).splitlines()

    assert "Linux and macOS only" in embedded
    assert 'executor="process"' in processes


@pytest.mark.parametrize("options", [["--processes", "2"], ["--reload"]])
def test_a_command_that_starts_others_says_in_a_line_that_it_cannot(options, url):
    done = start(COMMAND, "--url", url, "worker", "json:dumps", "--queue", "q", *options)

    assert done.returncode == 1
    assert "--processes and --reload" in done.stderr
    assert "start `toril worker` several times" in done.stderr
    assert "Traceback" not in done.stderr
