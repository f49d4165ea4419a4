"""What stands still or is not where one looks: the doctor says so, and nothing can stop it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doctor.test_doctor import codes, pretend_to_work
from tests.helpers import wait_until
from toril import (
    Compensation,
    FlowProducer,
    GroupJob,
    GroupSignal,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.doctor import Severity, examine

HOUR_MS = 3_600_000


def told(report, code):
    (finding,) = [one for one in report.findings if one.code == code]
    return finding


@pytest.mark.no_audit("a job is damaged by hand")
async def test_jobs_that_are_no_json_do_not_stop_the_doctor(queue, url, prefix, client):
    for number, state in enumerate((b"not json", b"\xff\xfe", b"", b"[" * 5000)):
        job = await queue.add("charge", {})
        key = f"{prefix}:payments:{job.id}"
        await client.hset(key, mapping={"data": state, "opts": b"{}" if number == 3 else state})

    report = await examine(url, prefix=prefix)

    assert "D201" in codes(report, subject="queue payments")


@pytest.mark.no_audit("the names are not ours")
async def test_a_queue_with_an_odd_name_does_not_stop_the_doctor(queue, url, prefix, client):
    odd = ("", " padded ", "esc\x1b[2J", "line\nbreak", "x" * 300, "with:colon")
    await queue.add("charge", {})
    for name in odd:
        await client.hset(f"{prefix}:{name}:meta", "version", "bullmq:5.81.0")

    report = await examine(url, prefix=prefix)

    assert "D201" in codes(report, subject="queue payments"), "the others are looked at"
    finding = told(report, "D225")
    assert finding.severity is Severity.WARNING
    for name in (" padded ", "esc\x1b[2J", "line\nbreak"):
        assert repr(name) in finding.problem


async def test_a_server_that_refuses_scripts_still_gets_a_report(start_server):
    """As one that is too old does: it has never heard of the scripts' first line."""
    server = start_server(tcp=True)
    async with Queue("payments", connection=server.url) as queue:
        await queue.add("charge", {})
    with server.client() as client:
        words = ("on", ">secret", "~*", "+@all", "-@scripting")
        client.execute_command("ACL", "SETUSER", "small", *words)

    report = await examine(server.url.replace("redis://", "redis://small:secret@"))

    finding = told(report, "D231")
    assert (finding.severity, finding.subject) == (Severity.ERROR, "queue payments")
    assert report.exit_code == 2


async def test_a_queue_that_does_not_exist_is_told_with_names_like_it(queue, url, prefix):
    await queue.add("charge", {})

    report = await examine(url, prefix=prefix, queues=["paymens", "payments"])

    finding = told(report, "D226")
    assert finding.subject == "queue paymens"
    assert "'payments'" in finding.remedy
    assert "D201" in codes(report, subject="queue payments")
    assert report.exit_code == 2


async def test_queues_under_another_prefix_are_told(queue, url, prefix, client):
    await queue.add("charge", {})
    await client.set(f"{prefix}-other:x:meta", "no queue")

    wrong = await examine(url, prefix=f"{prefix}-wrong")
    named = await examine(url, prefix=f"{prefix}-wrong", queues=["payments"])
    right = await examine(url, prefix=prefix)

    assert repr(prefix) in told(wrong, "D227").problem
    assert told(wrong, "D227").severity is Severity.WARNING
    assert "D227" in codes(named)
    assert "D227" not in codes(right)
    await client.delete(f"{prefix}-other:x:meta")


@pytest.mark.no_audit("the lock is taken away by hand")
async def test_running_jobs_that_nobody_runs_are_told(queue, url, prefix, client):
    job = await queue.add("charge", {})
    await client.lmove(f"{prefix}:payments:wait", f"{prefix}:payments:active")

    alone = await examine(url, prefix=prefix, audit=False)
    await pretend_to_work(client, prefix, "payments")
    watched = await examine(url, prefix=prefix, audit=False)
    await client.set(f"{prefix}:payments:{job.id}:lock", "token", px=60_000)
    running = await examine(url, prefix=prefix, audit=False)

    assert told(alone, "D228").severity is Severity.ERROR
    assert "no worker" in told(alone, "D228").problem
    assert told(watched, "D228").severity is Severity.WARNING
    assert job.id in told(watched, "D228").problem
    assert "D228" not in codes(running)


async def test_lanes_that_are_stopped_while_jobs_wait_are_told(queue, url, prefix):
    for lane in ("user:1", "user:2"):
        await queue.add("sync", {}, lane=lane)
    await queue.pause_lane("user:1")
    await queue.pause_lane("empty")

    report = await examine(url, prefix=prefix)

    finding = told(report, "D229")
    assert finding.severity is Severity.WARNING
    assert "'user:1'" in finding.problem
    assert "user:2" not in finding.problem
    assert "empty" not in finding.problem


async def test_a_halted_lane_is_told_with_the_job_that_halted_it(queue, url, prefix):
    async def fail(job):
        raise UnrecoverableError("no")

    job = await queue.add("sync", {}, lane="user:1", on_exhausted="halt")
    await queue.add("sync", {}, lane="user:1")
    async with Worker("payments", fail, connection=url, prefix=prefix):
        await wait_until(queue.get_failed_count)
        report = await examine(url, prefix=prefix)

    assert job.id in told(report, "D229").problem


async def test_an_old_prioritized_backlog_is_told(queue, url, prefix, client):
    """The least urgent are those that starve, behind any number of urgent ones."""
    for _ in range(30):
        await queue.add("urgent", {}, priority=1)
    old = await queue.add("late", {}, priority=9)
    await queue.add("late", {}, priority=9)
    await client.hset(f"{prefix}:payments:{old.id}", "timestamp", old.timestamp - 3 * HOUR_MS)
    await pretend_to_work(client, prefix, "payments")

    report = await examine(url, prefix=prefix)

    assert "3 hours" in told(report, "D210").problem


async def test_groups_that_could_not_be_undone_are_an_error(queue, url, prefix):
    async def handle(job):
        if job.name != "charge":
            raise UnrecoverableError("no")

    options = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow:
        node = await flow.add_group(
            "order",
            [GroupJob("charge", queue_name="payments"), GroupJob("reserve", queue_name="payments")],
            {"charge": Compensation("refund", attempts=1)},
        )

        async def has_failed():
            group = await queue.get_group_state(node.group_id)
            return group.state == "FAILED_COMPENSATION"

        async with (
            Worker("payments", handle, **options),
            Worker("payments:compensation", handle, **options),
        ):
            await wait_until(has_failed)

    report = await examine(url, prefix=prefix)
    finding = told(report, "D230")
    await queue.resolve_group(node.group_id, "by hand")
    resolved = await examine(url, prefix=prefix)

    assert finding.severity is Severity.ERROR
    assert node.group_id in finding.problem
    assert "D230" not in codes(resolved)


async def test_groups_that_cannot_go_on_are_told(url: str, prefix: str):
    """Behind the pivot nothing is undone, so somebody has to let the group go on."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow, Queue("payments", **options) as queue:
        members = [GroupJob("charge", queue_name="payments", pivot=True)]
        await flow.add_group("order", [*members, GroupSignal("ok", after=["charge"])], group_id="g")

        async def handle(job: Any) -> None:
            return None

        async def is_awaited() -> bool:
            return (await queue.get_group_jobs("g"))[1].status == "awaited"

        async with Worker("payments", handle, **options):
            await wait_until(is_awaited)
        await queue.fail_member("g", "ok", "declined")
        finding = told(await examine(url, prefix=prefix), "D233")
        await queue.resolve_group("g", "by hand")

        assert "'g'" in finding.problem
        assert "D233" not in codes(await examine(url, prefix=prefix))
