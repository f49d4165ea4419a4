"""``toril dlq``, ``lanes``, ``groups``, ``schedulers`` and ``relay``."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toril, start_asking
from tests.cli.test_worker_in_production import fetch, port_of
from tests.helpers import wait_until, wait_until_sync
from tests.servers import Server
from toril import (
    Compensation,
    FlowProducer,
    GroupJob,
    GroupSignal,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.sync import Queue as BlockingQueue


@pytest.fixture
def payments(url: str, prefix: str) -> Iterator[BlockingQueue]:
    with BlockingQueue("payments", connection=url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
async def letters(url: str, prefix: str) -> list[str]:
    """Three dead letters of the queue "payments", from the oldest to the newest."""

    async def fail(job: Any) -> None:
        raise (
            TimeoutError("the bank is away") if job.name == "charge" else ValueError("no such card")
        )

    options = {"connection": url, "prefix": prefix}
    async with Queue("payments", **options) as queue, Queue("payments-dlq", **options) as dlq:
        worker = Worker("payments", fail, dead_letter_queue="payments-dlq", **options)
        async with worker:
            for number, name in enumerate(("charge", "charge", "refund")):
                await queue.add(name, {"order": number})
                await wait_until(lambda n=number: _has(dlq, n + 1))
        return [job.id for job in await dlq.get_dead_letter_jobs(newest_first=False)]


async def _has(dlq: Queue, count: int) -> bool:
    return await dlq.get_dead_letter_count() == count


def test_dead_letters_are_listed_grouped_and_shown(toril: Toril, letters: list[str]):
    """DLQ-17, DLQ-18, DLQ-19 from the command line."""
    listed = toril("dlq", "list", "payments-dlq", "--json").json
    assert [row["id"] for row in listed] == letters[::-1]
    assert listed[0]["data"] == {"order": 2}
    assert listed[0]["source_queue"] == "payments"
    table = toril("dlq", "list", "payments-dlq", "-n", "2").out
    assert "3 dead letters in payments-dlq" in table
    assert table.count(" ago ") == 2

    groups = toril("dlq", "summary", "payments-dlq", "--json").json
    assert [group["count"] for group in groups] == [2, 1]
    assert groups[0]["example_reason"] == "the bank is away"
    assert groups[0]["fingerprint"] in toril("dlq", "summary", "payments-dlq").out

    shown = toril("dlq", "show", "payments-dlq", letters[0]).out
    assert "the bank is away" in shown
    assert "Attempt 1" in shown
    assert '"order": 0' in shown
    assert "_dlqMeta" not in shown
    missing = toril("dlq", "show", "payments-dlq", "nobody")
    assert (missing.code, len(missing.err.splitlines())) == (1, 1)


def test_dead_letters_are_replayed_and_purged_after_a_yes(
    toril: Toril, letters: list[str], payments: BlockingQueue
):
    """DLQ-21 and DLQ-26 from the command line."""
    repaired = toril("dlq", "replay", "payments-dlq", letters[0], "--data", '{"order": 7}')
    assert repaired.code == 0, repaired
    new_id = repaired.out.split()[-1]
    assert payments.get_job(new_id).data == {"order": 7}
    again = toril("dlq", "replay", "payments-dlq", letters[0])
    assert (again.code, len(again.err.splitlines())) == (1, 1), again

    assert toril("dlq", "replay", "payments-dlq").code == 2
    filters = ("--reason", "BANK", "--since", "1h")
    dry = toril("dlq", "replay", "payments-dlq", *filters, "--dry-run", "--json")
    assert dry.json == {"would_replay": 1}
    unsure = toril("dlq", "replay", "payments-dlq", *filters, typed="n\n")
    assert (unsure.code, payments.get_waiting_count()) == (1, 1)
    done = toril("dlq", "replay", "payments-dlq", *filters, "--rate", "100", typed="y\n")
    assert done.out.endswith("Replayed 1 dead letter.\n")
    assert payments.get_waiting_count() == 2

    assert toril("dlq", "purge", "payments-dlq").code == 2
    assert toril("dlq", "purge", "payments-dlq", "--name", "refund").code == 1
    purged = toril("dlq", "purge", "payments-dlq", "--name", "refund", "--yes", "--json")
    assert purged.json == {"queue": "payments-dlq", "removed": 1}
    assert toril("dlq", "list", "payments-dlq", "--json").json == []


def test_as_many_jobs_of_a_lane_are_removed_as_were_named(toril: Toril, payments: BlockingQueue):
    payments.add("sync", lane="user:42")
    for _ in range(2):
        payments.add("sync", lane="user:42", delay=3_600_000)
    drain = ("lanes", "drain", "payments", "user:42")

    assert "Remove 1 waiting job of lane 'user:42'?" in toril(*drain).err
    asked = toril(*drain, "--delayed")
    assert "Remove 3 waiting and delayed jobs of lane 'user:42'?" in asked.err
    assert asked.code == 1
    assert toril(*drain, "--delayed", typed="y\n").out == "Removed 3 jobs.\n"


def test_lanes_are_listed_shown_paused_resumed_and_drained(toril: Toril, payments: BlockingQueue):
    """FIFO-22 from the command line."""
    for number in range(3):
        toril_id = f"a-{number}"
        payments.add("sync", lane="user:42", job_id=toril_id)
    added = toril("add", "payments", "sync", "--lane", "user:7", "--id", "b-0", "--order-ms", "5")
    assert added.code == 0, added

    listed = {row["lane"]: row for row in toril("lanes", "list", "payments", "--json").json}
    assert listed.keys() == {"user:42", "user:7"}
    assert (listed["user:42"]["depth"], listed["user:42"]["head"]) == (3, "a-0")
    assert "2 lanes in payments" in toril("lanes", "list", "payments").out

    assert toril("lanes", "pause", "payments", "user:42").code == 0
    assert payments.get_lane("user:42").is_paused
    assert "paused" in toril("lanes", "show", "payments", "user:42").out
    stopped = toril("lanes", "list", "payments", "--state", "stopped", "--json").json
    assert [row["lane"] for row in stopped] == ["user:42"]
    assert "is halted" in toril("lanes", "list", "payments", "-s", "halted").out
    jobs = toril("lanes", "jobs", "payments", "user:42", "--skip", "1", "-n", "1", "--json").json
    assert [row["id"] for row in jobs] == ["a-1"]
    assert "a-2" in toril("lanes", "jobs", "payments", "user:42").out
    assert "lane" in toril("job", "a-1", "--json").json["why"]
    assert toril("lanes", "resume", "payments", "user:42", "--json").json["had_stopped"] is True
    assert toril("lanes", "drain", "payments", "user:42").code == 1
    assert toril("lanes", "drain", "payments", "user:42", "-y").out == "Removed 3 jobs.\n"
    assert toril("lanes", "show", "payments", "user:42").code == 1


async def test_groups_are_listed_shown_and_cancelled(toril: Toril, url: str, prefix: str):
    """SAGA-33, SAGA-34 and SAGA-35 from the command line."""
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add_group(
            "order",
            [
                GroupJob("charge", queue_name="payments"),
                GroupJob("reserve", queue_name="inventory"),
            ],
            {"charge": Compensation("refund")},
        )

    listed = toril("groups", "list", "payments", "--state", "active", "--json").json
    assert [(row["id"], row["state"]) for row in listed] == [(node.group_id, "ACTIVE")]
    assert "order" in toril("groups", "list", "payments").out
    shown = toril("groups", "show", "payments", node.group_id, "--json").json
    assert [(m["name"], m["queue"]) for m in shown["members"]] == [
        ("charge", "payments"),
        ("reserve", "inventory"),
    ]
    assert toril("job", node.jobs[0].id, "--json").json["group"] == node.group_id
    assert "reserve" in toril("groups", "show", "payments", node.group_id).out
    assert toril("groups", "show", "payments", "nobody").code == 1

    assert toril("groups", "cancel", "payments", node.group_id).code == 1
    why = ("--reason", "sold out")
    done = toril("groups", "cancel", "payments", node.group_id, "--yes", *why)
    assert done.out.endswith("FAILED.\n")
    assert "sold out" in toril("groups", "show", "payments", node.group_id).out
    again = toril("groups", "cancel", "payments", node.group_id, "--yes")
    assert (again.code, len(again.err.splitlines())) == (1, 1), again


async def test_stages_are_drawn_and_signals_given(toril: Toril, url: str, prefix: str):
    """Where a saga stands, what it waits for, and how to go on."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}

    def members() -> list[Any]:
        return [
            GroupJob("charge", queue_name="payments", pivot=True),
            GroupSignal("approval", after=["charge"]),
            GroupJob("ship", queue_name="payments", after=["approval"]),
        ]

    async def handle(job: Any) -> None:
        if job.name == "ship":
            raise UnrecoverableError("no lorry")

    async with FlowProducer(**options) as flow, Queue("payments", **options) as queue:
        for group_id in ("order-1", "order-2"):
            await flow.add_group("order", members(), group_id=group_id)
        async with Worker("payments", handle, **options):
            await wait_until(lambda: _is_awaited(queue, "order-1"))
            await wait_until(lambda: _is_awaited(queue, "order-2"))
            shown = toril("groups", "show", "payments", "order-1").out
            assert re.search(r"▶ 2 +approval +\(signal\) +awaited +charge", shown), shown
            assert re.search(r" 3 +ship +payments +planned +approval", shown), shown
            assert "toril groups complete-member payments order-1 approval" in shown
            assert re.search(r"charge +completed", shown), "the timeline"

            told = ("groups", "complete-member", "payments", "order-1", "approval")
            assert toril(*told, "--result", "{").code == 2
            assert toril(*told, "--result", '{"by": 1}', "--json").json["id"] == "order-1"
            assert toril(*told).code == 1, "a second time"
            refuse = ("groups", "fail-member", "payments", "order-2", "approval")
            assert toril(*refuse, "--reason", "no").code == 1, "not confirmed"
            assert "BLOCKED" in toril(*refuse, "--reason", "no", "--yes").out

            async def is_blocked() -> bool:
                group = await queue.get_group_state("order-1")
                return group is not None and group.state == "BLOCKED"

            await wait_until(is_blocked)
        assert "2 groups need a person" in toril("queues").out
        (row,) = toril("queues", "--json").json
        assert (row["groups_needing_a_person"], row["groups_not_undone"]) == (2, 0)
        shown = toril("groups", "show", "payments", "order-1").out
        assert "toril groups retry payments order-1" in shown
        as_json = toril("groups", "show", "payments", "order-1", "--json").json
        assert [m["after"] for m in as_json["members"]] == [[], ["charge"], ["approval"]]
        assert as_json["timeline"][0]["what"] == "created"
        assert toril("groups", "retry", "payments", "order-1", "--json").json["retried"] == 1
        assert toril("groups", "retry", "payments", "order-1").code == 1
        note = ("--note", "by phone", "--yes")
        assert "ACTIVE" in toril("groups", "resolve", "payments", "order-2", *note).out


async def test_an_answer_about_one_failure_is_not_given_for_the_next(
    toril: Toril, cli_env: dict[str, str], url: str, prefix: str
):
    """While the question is open, somebody else resolves the group, and another member fails."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    members = [
        GroupJob("ship", queue_name="payments", pivot=True),
        GroupJob("label", queue_name="payments", after=["ship"]),
        GroupJob("invoice", queue_name="payments", after=["label"]),
        GroupJob("close", queue_name="payments", after=["invoice"]),
    ]

    async def handle(job: Any) -> None:
        if job.name in ("label", "invoice"):
            raise UnrecoverableError("no")

    resolve = ("groups", "resolve", "payments", "order-1", "--note", "printed by hand")
    async with FlowProducer(**options) as flow, Queue("payments", **options) as queue:
        await flow.add_group("order", members, group_id="order-1")

        async def statuses() -> dict[str, str]:
            return {one.key: one.status for one in await queue.get_group_jobs("order-1")}

        async def has_failed(name: str) -> bool:
            return (await statuses())[name] == "failed"

        async with Worker("payments", handle, **options):
            await wait_until(lambda: has_failed("label"))
            asked, question = await start_asking(cli_env, *resolve)
            assert "'order' (BLOCKED) continue as if what failed were done ('label')" in question
            await queue.resolve_group("order-1", "by somebody else")
            await wait_until(lambda: has_failed("invoice"))
            _, refused = await asyncio.wait_for(asked.communicate(b"y\n"), 60)

        assert asked.returncode == 1
        assert b"BLOCKED now ('invoice')" in refused
        assert (await statuses())["invoice"] == "failed"
        assert (await statuses())["close"] == "planned"
        again = await asyncio.to_thread(toril, *resolve, typed="y\n")
        assert (again.code, "('invoice')" in again.err) == (0, True), again
        assert (await statuses())["invoice"] == "completed"


async def _is_awaited(queue: Queue, group_id: str) -> bool:
    return any(m.status == "awaited" for m in await queue.get_group_jobs(group_id))


async def test_a_group_that_could_not_be_undone_is_retried_and_resolved(
    toril: Toril, url: str, prefix: str
):
    """SAGA-40: out of FAILED_COMPENSATION from the command line."""

    async def handle(job: Any) -> None:
        if job.name != "charge":
            raise UnrecoverableError("no")

    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow, Queue("payments", **options) as queue:
        node = await flow.add_group(
            "order",
            [GroupJob("charge", queue_name="payments"), GroupJob("reserve", queue_name="payments")],
            {"charge": Compensation("refund", attempts=1)},
        )

        async def is_in(state: str) -> bool:
            group = await queue.get_group_state(node.group_id)
            return group is not None and group.state == state

        async with (
            Worker("payments", handle, **options),
            Worker("payments:compensation", handle, **options),
        ):
            await wait_until(lambda: is_in("FAILED_COMPENSATION"))
        assert "1 group needs a person" in toril("queues").out
        shown = toril("groups", "show", "payments", node.group_id).out
        assert f"toril groups retry-compensation payments {node.group_id}" in shown, "what next"
        assert re.search(r" charge .* completed +no +no *\n", shown), shown
        member = toril("groups", "show", "payments", node.group_id, "--json").json["members"][0]
        assert (member["compensation_status"], member["compensation_failed_reason"]) == (
            "failed",
            "no",
        )
        listed = {row["queue"]: row for row in toril("queues", "--json").json}
        assert listed["payments:compensation"]["failed"] == 1, "SAGA-32: it is an ordinary queue"
        retried = toril("groups", "retry-compensation", "payments", node.group_id)
        assert "1 compensation" in retried.out, retried
        assert await is_in("COMPENSATING")
        async with Worker("payments:compensation", handle, **options):
            await wait_until(lambda: is_in("FAILED_COMPENSATION"))
        note = ("--note", "refunded by hand")
        unsure = toril("groups", "resolve", "payments", node.group_id, *note)
        assert (unsure.code, "what could not be undone were undone ('charge')" in unsure.err) == (
            1,
            True,
        ), unsure
        resolved = toril("groups", "resolve", "payments", node.group_id, *note, "-y", "--json")
        assert (resolved.json["state"], resolved.json["note"]) == ("FAILED", "refunded by hand")


async def test_a_scheduler_whose_data_are_no_json_is_listed_with_the_others(
    toril: Toril, payments: BlockingQueue, client: Any, prefix: str
):
    for name in ("ours", "theirs"):
        await asyncio.to_thread(payments.upsert_job_scheduler, name, every=60_000)
    await client.hset(f"{prefix}:payments:repeat:theirs", "data", "{")

    listed = await asyncio.to_thread(toril, "schedulers", "list", "payments", "--json")

    assert {row["id"]: row["data"] for row in listed.json} == {"ours": {}, "theirs": "{"}


def test_schedulers_are_paused_changed_run_and_resumed(toril: Toril, payments: BlockingQueue):
    toril("schedulers", "set", "payments", "tick", "--every", "5m")

    assert toril("schedulers", "pause", "payments", "tick", "--json").json["paused"] is True
    assert "paused" in toril("schedulers", "list", "payments").out
    (row,) = toril("schedulers", "list", "payments", "--json").json
    assert row["next_at"] is None
    assert row["paused_at"] > 0
    changed = toril(
        "schedulers", "change", "payments", "tick", "--every", "10m", "--times", "4", "--json"
    )
    assert (changed.json["every"], changed.json["limit"]) == (600_000, 4)
    ran = toril("schedulers", "run", "payments", "tick", "--json").json
    assert payments.get_job(ran["job_id"]).name == "tick"
    assert toril("schedulers", "resume", "payments", "tick", "--json").json["next_at"] > 0
    zoned = (
        "schedulers",
        "change",
        "payments",
        "tick",
        "--cron",
        "0 9 * * *",
        "--tz",
        "Asia/Tokyo",
    )
    assert toril(*zoned).code == 0
    found = payments.get_job_scheduler("tick")
    assert (found.cron, found.tz, found.limit) == ("0 9 * * *", "Asia/Tokyo", 4)
    for verb in ("pause", "resume", "run", "change"):
        missing = toril("schedulers", verb, "payments", "nobody")
        assert (missing.code, "no scheduler 'nobody'" in missing.err) == (1, True)
    payments.remove_job_scheduler("tick")


def test_schedulers_are_set_listed_and_removed(toril: Toril, payments: BlockingQueue):
    set_one = toril(
        *("schedulers", "set", "payments", "digest", "--cron", "0 9 * * 1-5"),
        *("--tz", "Europe/Berlin", "--data", '{"to": "all"}'),
    )
    assert set_one.code == 0, set_one
    toril("schedulers", "set", "payments", "tick", "--every", "5m")

    listed = {row["id"]: row for row in toril("schedulers", "list", "payments", "--json").json}
    assert (listed["digest"]["cron"], listed["digest"]["tz"]) == ("0 9 * * 1-5", "Europe/Berlin")
    assert listed["digest"]["data"] == {"to": "all"}
    assert listed["tick"]["every"] == 300_000
    assert "every 5m" in toril("schedulers", "list", "payments").out
    assert toril("schedulers", "set", "payments", "bad", "--cron", "nonsense").code == 2

    for name in ("digest", "tick"):
        assert toril("schedulers", "remove", "payments", name, "--yes").code == 0
    assert toril("schedulers", "remove", "payments", "tick", "--yes").code == 1
    assert payments.get_job_scheduler_count() == 0


OUTBOX = """
from sqlalchemy import MetaData, create_engine
from toril.outbox import Outbox, Relay

engine = create_engine("sqlite:///shop.db")
metadata = MetaData()
outbox = Outbox(metadata)
metadata.create_all(engine)
relay = Relay(engine, outbox, prefix={prefix!r}, poll_interval=50)
with engine.begin() as connection:
    outbox.add(connection, "payments", "charge", {{"order": 1}})
"""


def test_relay_carries_jobs_from_an_outbox_until_sigterm(
    cli_env: dict[str, str], tmp_path: Path, prefix: str, payments: BlockingQueue
):
    (tmp_path / "shop_outbox.py").write_text(OUTBOX.format(prefix=prefix))
    command = [sys.executable, "-m", "toril", "relay", "shop_outbox:relay", "--metrics-port", "0"]
    log = tmp_path / "log"

    with (
        log.open("w") as err,
        subprocess.Popen(command, cwd=tmp_path, env=cli_env, stderr=err) as process,
    ):
        wait_until_sync(lambda: payments.get_waiting_count() == 1, timeout=60)
        port = port_of(log.read_text)
        assert fetch(port, "/healthz") == (200, "ok\n")
        wait_until_sync(lambda: fetch(port, "/readyz")[0] == 200, timeout=60)
        status, metrics = fetch(port, "/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert status == 200
    assert 'toril_outbox_rows_total{outbox="toril_outbox",outcome="dispatched"} 1.0' in metrics
    assert 'toril_outbox_lag_seconds{outbox="toril_outbox"} 0.0' in metrics
    assert payments.get_waiting()[0].data == {"order": 1}


def test_doctor_says_what_is_wrong_and_how_bad_it_is(toril: Toril, payments: BlockingQueue):
    payments.add("charge")

    told = toril("doctor", "--queue", "payments")
    as_json = toril("doctor", "--queue", "payments", "--no-audit", "--json")

    findings = json.loads(as_json.out)["findings"]
    worst = {finding["severity"] for finding in findings}
    assert as_json.code == (2 if "error" in worst else 1 if "warning" in worst else 0)
    assert any(finding["subject"].endswith("payments") for finding in findings), findings
    assert "→" in told.out
    assert f"more: toril doctor --explain {findings[0]['code']}" in told.out
    assert told.err == ""
    assert toril("doctor", "--url", "redis://127.0.0.1:1").code == 3


def test_doctor_explains_a_code(toril: Toril):
    told = toril("doctor", "--explain", "d201", "--url", "redis://127.0.0.1:1")
    as_json = toril("doctor", "--explain", "D201", "--json")

    assert told.code == 0, "a server is not needed"
    assert told.out.startswith("D201: Jobs wait and no worker is connected\n")
    assert json.loads(as_json.out)["code"] == "D201"
    assert toril("doctor", "--explain", "D999").code == 2


CHECKED = """
import toril
from toril.idempotency import RedisStore, idempotent
from toril.outbox import Outbox, Relay
from sqlalchemy import MetaData, create_engine


@idempotent(RedisStore())
async def charge(job): ...


good = toril.Worker(
    "payments", charge, concurrency=5, remove_on_complete=100, dead_letter_queue="payments-dlq"
)
bare = toril.Worker("payments", lambda job: None)
engine = create_engine("sqlite:///shop.db")
outbox = Outbox(MetaData())
outbox.table.metadata.create_all(engine)
with engine.begin() as connection:
    outbox.add(connection, "payments", "charge")
    connection.execute(outbox.table.update().values(status="parked"))
both = [bare, Relay(engine, outbox)]
"""


def test_doctor_checks_objects_of_a_module_and_ends_with_a_code_for_ci(
    toril: Toril, tmp_path: Path, start_server: Callable[..., Server]
):
    """RULES-17: 0 when nothing is wrong, 1 with warnings, 2 with errors, 3 without a server."""
    server = start_server({"appendonly": "yes"}, tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "ci", "on", ">secret", "~*", "+@all")
    url = server.url.replace("redis://", "redis://ci:secret@")
    (tmp_path / "shop_checked.py").write_text(CHECKED)

    def doctor(*targets: str) -> tuple[int, list[dict[str, str]]]:
        done = toril("doctor", *targets, "--url", url, "--json", env={"TORIL_URL": url})
        return done.code, json.loads(done.out)["findings"]

    assert doctor("shop_checked:good") == (0, [])
    code, findings = doctor("shop_checked:bare")
    assert code == 1
    assert {"D301", "D303", "D304"} <= {one["code"] for one in findings}
    code, findings = doctor("shop_checked:both")
    assert code == 2
    assert "D401" in {one["code"] for one in findings}
    for one in findings:
        assert all(one[part] for part in ("problem", "harm", "remedy", "severity", "subject"))
