"""Commands whose output nobody reads any more, as behind ``| head -1``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import Forked
from toril import NewJob
from toril.sync import Queue

Unread = Callable[..., int]


@pytest.fixture
def unread(cli_env: dict[str, str], tmp_path: Path) -> Unread:
    """Runs ``toril`` into a pipe that nobody reads; returns its exit code."""

    def unread(*arguments: str) -> int:
        theirs, ours = os.pipe()
        os.close(theirs)
        with (tmp_path / "err").open("w") as err:
            process = Forked(
                *("-m", "toril", *arguments), env=cli_env, stdout=ours, stderr=err.fileno()
            )
        os.close(ours)
        code = process.wait(60)
        assert "Traceback" not in (tmp_path / "err").read_text()
        return code

    return unread


def test_what_was_asked_for_is_done_although_nobody_reads(unread: Unread, queue: Queue):
    """`toril promote` stopped after the first job, without a word."""
    ids = [f"j-{number}" for number in range(6)]
    queue.add_bulk([NewJob("n", job_id=job_id, delay=3_600_000) for job_id in ids])

    assert unread("promote", *ids, "--queue", queue.name) == 0
    assert queue.get_waiting_count() == 6
    assert unread("promote", "nobody", "--queue", queue.name, "--json") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "q"),
        ("jobs", "q", "--json"),
        ("job", "j-1", "--queue", "q"),
        ("queues",),
        ("events", "q", "--since", "0"),
        ("events", "q", "--since", "0", "--json"),
    ],
)
def test_what_only_prints_ends_well(unread: Unread, queue: Queue, arguments: tuple[str, ...]):
    queue.add("n", job_id="j-1")

    assert unread(*arguments) == 0
