"""A queue that does not exist: what acts on it refuses, says what is near, and writes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Toril
from tests.cli.test_help import LEAVES
from toril.sync import Queue as BlockingQueue

ARGUMENTS: dict[str, list[str]] = {
    "retry": ["--all", "-q", "paymens"],
    "promote": ["--all", "-q", "paymens"],
    "cancel": ["some-job", "-q", "paymens"],
    "remove": ["some-job", "-q", "paymens", "--yes"],
    "pause": ["paymens"],
    "resume": ["paymens"],
    "drain": ["paymens", "--yes"],
    "clean": ["paymens", "--yes"],
    "obliterate": ["paymens", "--yes", "--force"],
    "dlq replay": ["paymens", "--all", "--yes"],
    "dlq purge": ["paymens", "--all", "--yes"],
    "groups cancel": ["paymens", "some-group", "--yes"],
    "groups complete-member": ["paymens", "some-group", "x"],
    "groups fail-member": ["paymens", "some-group", "x", "--reason", "no", "--yes"],
    "groups retry": ["paymens", "some-group"],
    "groups retry-compensation": ["paymens", "some-group"],
    "groups resolve": ["paymens", "some-group", "--note", "x", "--yes"],
    "lanes pause": ["paymens", "lane"],
    "lanes resume": ["paymens", "lane"],
    "lanes drain": ["paymens", "lane", "--yes"],
    "schedulers change": ["paymens", "some-scheduler", "--every", "1h"],
    "schedulers pause": ["paymens", "some-scheduler"],
    "schedulers resume": ["paymens", "some-scheduler"],
    "schedulers run": ["paymens", "some-scheduler"],
    "schedulers remove": ["paymens", "some-scheduler", "--yes"],
    "partitions grow": ["paymens", "4", "--yes"],
}
LOOKING = {
    "queues": ["paymens"],
    "jobs": ["paymens"],
    "job": ["some-job", "-q", "paymens"],
    "events": None,  # it waits for events of queues to come
    "monitor": ["-q", "paymens", "--json"],
    "doctor": ["-q", "paymens"],
    "dlq list": ["paymens"],
    "dlq show": ["paymens", "some-job"],
    "dlq summary": ["paymens"],
    "groups list": ["paymens"],
    "groups show": ["paymens", "some-group"],
    "lanes list": ["paymens"],
    "lanes show": ["paymens", "lane"],
    "lanes jobs": ["paymens", "lane"],
    "schedulers list": ["paymens"],
    "partitions list": ["paymens"],
}
MAKING = {"add", "schedulers set", "worker"}


def takes_a_queue(command: Any) -> bool:
    return any(
        one.name in ("queue_name", "queue_names", "queue", "queues") for one in command.params
    )


def test_every_command_with_a_queue_is_known_here():
    with_queue = {path for path, command in LEAVES if takes_a_queue(command)}

    assert with_queue == set(ARGUMENTS) | set(LOOKING) | MAKING


@pytest.fixture
def queue_name() -> str:
    return "payments"


@pytest.fixture
def queue(queue: BlockingQueue) -> BlockingQueue:
    queue.add("charge")
    return queue


async def test_what_acts_refuses_and_writes_nothing(toril: Toril, queue, client, prefix: str):
    before = sorted([key async for key in client.scan_iter(f"{prefix}:*")])

    for path, arguments in ARGUMENTS.items():
        done = toril(*path.split(), *arguments)
        assert done.code == 1, (path, done)
        assert "'paymens'" in done.err, (path, done)
        assert "did you mean 'payments'?" in done.err, (path, done)
        assert len(done.err.splitlines()) == 1, (path, done)
    for path, arguments in LOOKING.items():
        if arguments is not None:
            looked = toril(*path.split(), *arguments)
            assert "Traceback" not in looked.err
            assert "there is no queue" not in looked.err or path == "doctor", (path, looked)

    assert sorted([key async for key in client.scan_iter(f"{prefix}:*")]) == before


def test_a_queue_or_a_lane_is_paused_before_its_first_job_on_request(toril: Toril, url, prefix):
    assert toril("pause", "new").code == 1
    assert toril("pause", "new", "--create").code == 0
    assert toril("lanes", "pause", "newer", "lane", "--create").code == 0

    with BlockingQueue("new", connection=url, prefix=prefix) as queue:
        assert queue.is_paused()
    assert toril("resume", "new").code == 0, "it exists now"


def test_no_queue_is_near(toril: Toril, prefix: str):
    done = toril("resume", "anything")

    assert done.code == 1
    assert f"there is no queue 'anything' under the prefix {prefix!r}" in done.err
    assert "did you mean" not in done.err
