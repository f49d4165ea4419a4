"""The doctor sees what will hurt, says why and what to do, and is silent where all is well.

RULES-17: the review checklist of the source, machine-checked; each test names its items.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from base64 import b64encode
from datetime import timedelta

import pytest
from sqlalchemy import MetaData, create_engine, update

from tests.helpers import let_pass, wait_until
from toril import (
    Backoff,
    FlowProducer,
    GroupJob,
    NewJob,
    Queue,
    RateLimit,
    Router,
    UnrecoverableError,
    Worker,
)
from toril.client.connection import Connection
from toril.doctor import Severity, examine
from toril.doctor.finding import Finding, Report
from toril.doctor.reader import ConnectionReader
from toril.doctor.server import ServerFacts, check_server, examine_servers
from toril.doctor.wording import counted, lasting
from toril.errors import InvalidOptionError
from toril.idempotency import RedisStore, idempotent
from toril.outbox import Outbox, Relay
from toril.steps import BaseConsumer, ConsumerRegistrar

GOOD = {"attempts": 5, "backoff": Backoff.exponential(1000, jitter=0.5)}
SOUND = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "role": "master",
    "evicted_keys": "0",
}


async def handler(job):
    pass


async def pretend_to_work(client, prefix, queue):
    """Be a worker of another library, as far as the server can tell."""
    await client.client_setname(f"{prefix}:{b64encode(queue.encode()).decode()}")


def codes(report, *, subject=None, least=Severity.INFO):
    order = list(Severity)
    return [
        one.code
        for one in report.findings
        if (subject is None or subject in one.subject)
        and order.index(one.severity) <= order.index(least)
    ]


# ---------------------------------------------------------------------- the server


def test_a_sound_server_gets_no_word():
    facts = ServerFacts(info=SOUND, save="3600 1", user="worker", has_password=True)

    assert list(check_server(facts)) == []


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"valkey_version": "7.0.1"}, "D101", "error"),
        ({"maxmemory_policy": "allkeys-lru"}, "D102", "error"),
        ({"aof_enabled": "0"}, "D103", "warning"),
        ({"evicted_keys": "12"}, "D107", "error"),
        ({"maxmemory": "100", "used_memory": "90"}, "D108", "warning"),
        ({"role": "slave"}, "D109", "error"),
        ({"rdb_last_bgsave_status": "err"}, "D111", "error"),
        ({"aof_last_write_status": "err"}, "D111", "error"),
    ],
)
def test_what_the_server_tells_is_judged(change, code, severity):
    facts = ServerFacts(info={**SOUND, **change}, save="", user="w", has_password=True)

    (finding,) = check_server(facts)

    assert (finding.code, finding.severity.value) == (code, severity)


@pytest.mark.parametrize(
    ("facts", "code", "severity"),
    [
        ({"clock_ms": 5000}, "D105", "warning"),
        ({"clock_ms": -60_000}, "D105", "error"),
        ({"user": "default", "has_password": False}, "D106", "warning"),
        ({"user": "default", "has_password": True}, "D106", "info"),
        ({"info": None}, "D110", "info"),
    ],
)
def test_clock_and_access_are_judged(facts, code, severity):
    sound = {"info": SOUND, "save": "3600 1", "user": "w", "has_password": True}

    (finding,) = check_server(ServerFacts(**{**sound, **facts}))

    assert (finding.code, finding.severity.value) == (code, severity)


async def test_a_real_server_is_read(start_server):
    server = start_server({"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"})

    report = await examine(server.unix_url)

    assert codes(report, subject="server") == ["D102", "D103", "D106"]
    assert report.exit_code == 2


async def test_a_sound_server_gets_no_word_in_reality(start_server):
    """RULES-17: with an append-only file, noeviction and a user of its own; exit code 0."""
    server = start_server({"appendonly": "yes"}, tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")

    report = await examine(server.url.replace("redis://", "redis://worker:secret@"))

    assert report.findings == []
    assert report.exit_code == 0


async def test_memory_that_is_full_and_keys_that_were_evicted_are_told(start_server):
    server = start_server({"maxmemory-policy": "allkeys-lru"})
    with server.client() as client:
        client.config_set("maxmemory", client.info()["used_memory"] + 500_000)
        for n in range(200):
            client.set(f"cache-{n}", "x" * 10_000)
        assert client.info()["evicted_keys"] > 0

    report = await examine(server.unix_url)

    assert {"D102", "D107", "D108"} <= set(codes(report, subject="server"))


async def test_a_replica_is_told(start_server):
    master, replica = start_server(tcp=True), start_server(tcp=True)
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", master.port)

    report = await examine(replica.url)

    assert "D109" in codes(report, subject="server", least=Severity.ERROR)


async def test_a_snapshot_that_failed_is_told(start_server):
    server = start_server()
    with server.client() as client:
        # Nobody can write a file into a directory of that name, not even root.
        (server.directory / "dump.rdb").mkdir()
        client.bgsave()
        await wait_until(lambda: client.info()["rdb_last_bgsave_status"] == "err")

    report = await examine(server.unix_url)

    assert "D111" in codes(report, subject="server", least=Severity.ERROR)


@pytest.mark.parametrize(("ahead_s", "severity"), [(5, "warning"), (-60, "error")])
async def test_a_clock_that_is_wrong_is_told(ahead_s, severity, url, prefix, monkeypatch):
    """The server's clock is real; this host's is set forward or back."""
    real = time.time
    monkeypatch.setattr("toril.doctor.server.time.time", lambda: real() + ahead_s)

    report = await examine(url, prefix=prefix)

    (finding,) = [one for one in report.findings if one.code == "D105"]
    assert finding.severity == severity
    assert ("ahead of" if ahead_s > 0 else "behind") in finding.problem


@pytest.mark.parametrize("late", ["question", "answer"])
async def test_what_the_way_to_the_server_takes_is_no_difference_of_clocks(late, url):
    class FarOff(ConnectionReader):
        async def ask_node(self, node, *words):
            if words == ("TIME",) and late == "question":
                await let_pass(2.5, "it is on its way, and the server reads its clock at the end")
            answer = await super().ask_node(node, *words)
            if words == ("TIME",) and late == "answer":
                await let_pass(2.5, "it is on its way, and the server has read its clock before")
            return answer

    connection = Connection(url)
    try:
        findings = await examine_servers(FarOff(connection))
    finally:
        await connection.close()

    assert "D105" not in [one.code for one in findings]


async def test_a_user_who_may_little_still_gets_a_report(start_server, queue):
    """A refusal of the server is no error of the doctor."""
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command(
            *(
                [
                    "ACL",
                    "SETUSER",
                    "small",
                    "on",
                    ">secret",
                    "~bull:*",
                    "+@read",
                    "+@connection",
                    "+eval",
                    "+evalsha",
                    "+fcall",
                    "+fcall_ro",
                    "+function|load",
                    "+time",
                ]
            )
        )
        client.execute_command("ACL", "SETUSER", "small", "-client|list", "-info", "-acl")

    report = await examine(server.url.replace("redis://", "redis://small:secret@"))

    assert "D110" in codes(report)


# ---------------------------------------------------------------------- queues


async def test_a_queue_at_work_gets_no_warning(queue, url, prefix):
    async with Worker(*("payments", handler), connection=url, prefix=prefix, worker_name="w"):
        job = await queue.add("charge", {}, remove_on_complete=True, **GOOD)
        await wait_until(lambda: _is_gone(queue, job.id))

        report = await examine(url, prefix=prefix)

    assert codes(report, subject="queue", least=Severity.WARNING) == []
    (told,) = [one for one in report.findings if one.code == "D208"]
    assert "toril" in told.problem
    assert codes(report, subject="keyspace") == []


async def _is_gone(queue, job_id):
    return await queue.get_job(job_id) is None


async def test_jobs_that_nobody_runs_are_an_error(queue, url, prefix):
    await queue.add("charge", {}, **GOOD)

    report = await examine(url, prefix=prefix)

    assert codes(report, subject="queue payments", least=Severity.WARNING) == ["D201"]


async def test_a_worker_that_never_had_to_wait_for_a_job_is_seen(queue, url, prefix):
    """Busy from its first moment on, it is a worker all the same; and one, also when it is idle."""
    may_end = asyncio.Event()

    async def long(job):
        await may_end.wait()

    await queue.add_bulk([NewJob("charge", {}, remove_on_complete=True, **GOOD) for _ in range(3)])
    async with Worker("payments", long, connection=url, prefix=prefix):
        await wait_until(queue.get_active_count)
        await wait_until(queue.get_workers)

        report = await examine(url, prefix=prefix)

        assert "D201" not in codes(report)
        may_end.set()
        await wait_until(lambda: _is_empty(queue))
        await wait_until(lambda: _is_waiting_for_jobs(queue))
        assert len(await queue.get_workers()) == 1


async def _is_waiting_for_jobs(queue):
    return [one.raw["cmd"] for one in await queue.get_workers()] == ["bzpopmin"]


async def test_a_paused_queue_with_jobs_is_told(queue, url, prefix):
    await queue.add("charge", {}, **GOOD)
    await queue.pause()

    report = await examine(url, prefix=prefix)

    assert codes(report, subject="queue payments", least=Severity.WARNING) == ["D209"]
    assert "it is paused, and 1 job waits" in str(report)


async def test_jobs_in_a_list_that_nobody_takes_from_are_told(queue, url, prefix, client):
    await queue.add("charge", {}, **GOOD)
    await client.rename(f"{prefix}:payments:wait", f"{prefix}:payments:paused")

    stray = await examine(url, prefix=prefix)
    await client.hset(f"{prefix}:payments:meta", "paused", "1")
    await client.lpush(f"{prefix}:payments:wait", "1")
    await client.hset(f"{prefix}:payments:1", mapping={"name": "charge", "data": "{}"})
    split = await examine(url, prefix=prefix)

    assert "D219" in codes(stray, subject="queue payments")
    assert "it runs, and 1 job waits in its `paused` list" in str(stray)
    assert "D218" in codes(split, subject="queue payments")
    assert "1 job in `wait` and 1 in `paused`" in str(split)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (counted(1, "job", "wait"), "1 job waits"),
        (counted(0, "job", "wait"), "0 jobs wait"),
        (counted(2, "job"), "2 jobs"),
        (lasting(0), "less than a second"),
        (lasting(59_999), "59 seconds"),
        (lasting(60_000), "1 minute"),
        (lasting(7_300_000), "2 hours"),
        (lasting(3 * 86_400_000), "3 days"),
    ],
)
def test_numbers_and_times_are_said_as_people_do(said, expected):
    assert said == expected


async def test_a_backlog_of_hours_is_told(queue, url, prefix, client):
    await queue.add("charge", {}, timestamp=1_600_000_000_000, **GOOD)
    await pretend_to_work(client, prefix, "payments")

    report = await examine(url, prefix=prefix)

    assert "D210" in codes(report, subject="queue payments")


async def test_failed_jobs_and_permanent_errors_are_told(queue, url, prefix):
    """Checklist: permanent failures raise UnrecoverableError; nothing fails silently."""

    async def failing(job):
        raise KeyError("amount")

    async with Worker("payments", failing, connection=url, prefix=prefix):
        await queue.add("charge", {}, attempts=2, backoff=1)
        await wait_until(queue.get_failed_count)

        report = await examine(url, prefix=prefix)

    assert {"D204", "D215"} <= set(codes(report, subject="queue payments"))


async def test_dead_letters_that_nobody_reads_and_a_worker_on_them(queue, url, prefix, client):
    """RULES-07: the dead letters are counted, and age."""

    async def failing(job):
        raise UnrecoverableError("no")

    async with (
        Queue("payments-dlq", connection=url, prefix=prefix) as dead,
        Worker(*("payments", failing), connection=url, prefix=prefix, dead_letter_queue=dead.name),
    ):
        await queue.add("charge", {})
        await wait_until(dead.get_dead_letter_count)
        fresh = await examine(url, prefix=prefix)
        (letter,) = await dead.get_dead_letter_jobs()
        await client.hset(f"{prefix}:payments-dlq:{letter.id}", "timestamp", 1_600_000_000_000)
        old = await examine(url, prefix=prefix)
        await pretend_to_work(client, prefix, "payments-dlq")
        worked = await examine(url, prefix=prefix)

    assert codes(fresh, subject="payments-dlq") == ["D203"]
    assert re.search(r"1 dead letter, the oldest for (\d+|less than a) second", str(fresh))
    assert codes(fresh, subject="payments-dlq", least=Severity.WARNING) == []
    assert codes(old, subject="payments-dlq", least=Severity.WARNING) == ["D203"]
    assert "D216" in codes(worked, subject="payments-dlq", least=Severity.ERROR)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"attempts": 5}, "D222"),
        ({"attempts": 5, "backoff": 1000}, "D223"),
        ({"attempts": 5, "backoff": Backoff.exponential(1000)}, "D224"),
        ({"attempts": 5000, "backoff": Backoff.exponential(1, jitter=1)}, "D220"),
        ({}, "D221"),
    ],
)
async def test_retries_that_do_not_back_off_or_end_are_told(options, code, queue, url, prefix):
    """Checklist: attempts bounded, backoff exponential with jitter; of jobs and of defaults."""
    await queue.add("charge", {}, **options)
    configured = Queue("other", connection=url, prefix=prefix, default_job_options=options)

    report = await examine(url, prefix=prefix, objects=[configured] if options else [])

    assert code in codes(report, subject="queue payments")
    assert not options or code in codes(report, subject="queue other")
    await configured.close()


@pytest.mark.no_audit("the recurring job is made up")
async def test_recurring_jobs_of_the_deprecated_kind_are_told(queue, url, prefix, client):
    """RULES-10; checklist: recurring jobs use upsert_job_scheduler."""
    await queue.add("charge", {}, **GOOD)
    await client.zadd(f"{prefix}:payments:repeat", {"digest:::Europe/Berlin:0 9 * * *": 1})

    report = await examine(url, prefix=prefix, audit=False)

    assert "D213" in codes(report, subject="queue payments")


async def test_limits_over_all_workers_are_told(queue, url, prefix):
    """Queue settings: a limit that nobody remembers looks like slow workers."""
    await queue.add("charge", {}, **GOOD)
    before = await examine(url, prefix=prefix)
    await queue.set_global_concurrency(3)
    await queue.set_global_rate_limit(RateLimit(10, 1000))

    after = await examine(url, prefix=prefix)

    assert "D211" not in codes(before)
    (told,) = [one for one in after.findings if one.code == "D211"]
    assert "at most 3 of its jobs run at once and at most 10 start in 1000 ms" in told.problem


async def test_completed_jobs_that_pile_up_are_told(queue, url, prefix, monkeypatch):
    monkeypatch.setattr("toril.doctor.queues.MANY_COMPLETED", 2)
    async with Worker("payments", handler, connection=url, prefix=prefix):
        for _ in range(3):
            await queue.add("charge", {}, **GOOD)
        await wait_until(lambda: _has_completed(queue, 3))

        report = await examine(url, prefix=prefix)

    assert "D205" in codes(report, subject="queue payments")


async def _has_completed(queue, count):
    return await queue.get_completed_count() == count


async def test_groups_need_workers_of_our_own_and_one_for_compensation(url, prefix, client):
    """A stock worker on a queue with groups, and a compensation queue that nobody serves."""
    flow = FlowProducer(connection=url, prefix=prefix)
    await flow.add_group(name="order", jobs=[GroupJob("charge", queue_name="payments", data={})])
    await pretend_to_work(client, prefix, "payments")

    report = await examine(url, prefix=prefix)

    found = codes(report, subject="queue payments", least=Severity.WARNING)
    assert "D207" in found
    assert "D202" in found
    await flow.close()


@pytest.mark.parametrize("queues", [(), ("payments",)], ids=["all", "named"])
async def test_a_compensation_queue_that_is_served_is_no_finding(queues, url, prefix):
    """It was looked for among the queues that are examined, not on the server."""
    options = {"connection": url, "prefix": prefix}
    async with FlowProducer(**options) as flow, Worker("payments:compensation", handler, **options):
        await flow.add_group(
            name="order", jobs=[GroupJob("charge", queue_name="payments", data={})]
        )

        async def is_served():
            report = await examine(url, prefix=prefix, queues=queues)
            return "D202" not in codes(report, subject="queue payments")

        await wait_until(is_served, every=0.2)


async def test_compensations_that_wait_for_a_worker_are_an_error(url, prefix):
    async with Queue("payments:compensation", connection=url, prefix=prefix) as queue:
        await queue.add("refund", {}, **GOOD)

        report = await examine(url, prefix=prefix)

    assert codes(report, subject="compensation", least=Severity.ERROR) == ["D202"]


# ---------------------------------------------------------------------- configuration


async def test_a_worker_is_held_against_the_checklist(url, prefix):
    """Checklist: idempotent, dead letters, retention, concurrency, locks."""
    bare = Worker("payments", handler, connection=url, prefix=prefix, lock_duration=1000)

    report = await examine(url, prefix=prefix, objects=[bare])

    found = codes(report, subject="worker of payments")
    assert found == ["D301", "D303", "D304", "D306", "D305"]
    assert report.exit_code >= 1
    await bare.close()


async def test_a_worker_that_keeps_to_the_checklist_gets_no_word(url, prefix):
    store = RedisStore(url)
    router = Router()
    router.on("charge", idempotent(store)(handler))
    worker = Worker(
        "payments",
        router,
        connection=url,
        prefix=prefix,
        concurrency=10,
        remove_on_complete=1000,
        dead_letter_queue="payments-dlq",
    )

    report = await examine(url, prefix=prefix, objects=[worker])

    assert codes(report, subject="worker") == []
    await worker.close()


async def test_records_that_live_shorter_than_the_jobs_come_back_are_an_error(queue, url, prefix):
    """RULES-04; checklist: the dedup record's TTL outlives the retry window."""
    store = RedisStore(url, ttl=timedelta(hours=1))
    worker = Worker(
        *("payments", idempotent(store)(handler)), connection=url, prefix=prefix, concurrency=2
    )
    patient = {"attempts": 12, "backoff": Backoff.exponential(60_000, jitter=1)}
    configured = Queue("payments", connection=url, prefix=prefix, default_job_options=patient)

    by_defaults = await examine(url, prefix=prefix, objects=[worker, configured])
    await queue.add("charge", {}, **patient)
    by_jobs = await examine(url, prefix=prefix, objects=[worker])
    await queue.drain()
    without = await examine(url, prefix=prefix, objects=[worker])

    assert "D302" in codes(by_defaults, least=Severity.ERROR)
    assert "D302" in codes(by_jobs, least=Severity.ERROR)
    assert "D302" not in codes(without)
    await worker.close()
    await configured.close()


async def test_consumers_and_registrars_are_looked_at_too(url, prefix):
    class Fetch(BaseConsumer):
        async def handle(self, payload, job): ...

    registrar = ConsumerRegistrar()
    consumer = registrar.register(Fetch("imports", connection=url, prefix=prefix))

    report = await examine(url, prefix=prefix, objects=[registrar])

    assert "D303" in codes(report, subject="worker of imports")
    assert "D301" not in codes(report), "what a consumer's handle does cannot be seen"
    with pytest.raises(InvalidOptionError, match="not something the doctor can examine"):
        await examine(url, prefix=prefix, objects=[object()])
    await consumer.close()


async def test_an_outbox_with_parked_or_late_rows_is_told(url, prefix, tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/o.db")
    metadata = MetaData()
    outbox = Outbox(metadata)
    metadata.create_all(engine)
    relay = Relay(engine, outbox, connection=url, prefix=prefix)
    with engine.begin() as connection:
        outbox.add(connection, "payments", "charge")
        outbox.add(connection, "payments", "charge")
        connection.execute(update(outbox.table).values(created_at=1))
        connection.execute(
            update(outbox.table).where(outbox.table.c.seq == 1).values(status="parked")
        )

    report = await examine(url, prefix=prefix, objects=[relay])

    assert codes(report, subject="outbox") == ["D401", "D402"]
    await relay.close()


# ---------------------------------------------------------------------- the audit, the report


@pytest.mark.no_audit("a job is damaged on purpose")
async def test_damage_in_the_keyspace_is_an_error(queue, url, prefix, client):
    await queue.add("charge", {}, job_id="lost", **GOOD)
    await client.lrem(f"{prefix}:payments:wait", 0, "lost")

    report = await examine(url, prefix=prefix)

    (damage,) = [one for one in report.findings if one.code == "D501"]
    assert "'lost'" in damage.problem
    assert "in no container" in damage.problem


async def test_a_busy_queue_is_not_taken_for_a_damaged_one(queue, url, prefix):
    """Jobs move while they are read; only what stays wrong is told."""

    async def produce():
        while True:
            await queue.add_bulk(
                [NewJob("charge", {}, remove_on_complete=True, **GOOD) for _ in range(20)]
            )
            await wait_until(lambda: _is_empty(queue))

    producing = asyncio.create_task(produce())
    async with Worker("payments", handler, connection=url, prefix=prefix, concurrency=5):
        for _ in range(2):
            report = await examine(url, prefix=prefix)
            assert codes(report, subject="keyspace") == []
        producing.cancel()
        await asyncio.gather(producing, return_exceptions=True)
        await wait_until(lambda: _is_empty(queue))


async def _is_empty(queue):
    counts = await queue.get_job_counts("waiting", "active")
    return not any(counts.values())


async def test_too_many_keys_are_not_audited(queue, url, prefix):
    await queue.add("charge", {}, **GOOD)

    report = await examine(url, prefix=prefix, most_keys=1)

    assert codes(report, subject="keyspace") == ["D502"]


async def test_the_doctor_writes_nothing(queue, url, prefix, client):
    from tests.keyspace import dump

    await queue.add("charge", {}, **GOOD)
    before = await dump(client, prefix)

    await examine(url, prefix=prefix)

    assert await dump(client, prefix) == before


def test_a_report_is_for_people_and_for_programs():
    def finding(severity, code):
        return Finding(code=code, severity=severity, subject="s", problem="p", harm="h", remedy="r")

    empty = Report.of([])
    info = Report.of([finding(Severity.INFO, "D3")])
    warning = Report.of([finding(Severity.INFO, "D3"), finding(Severity.WARNING, "D2")])
    error = Report.of([*warning.findings, finding(Severity.ERROR, "D1")])

    assert [empty.exit_code, info.exit_code, warning.exit_code, error.exit_code] == [0, 0, 1, 2]
    assert [one.code for one in error.findings] == ["D1", "D2", "D3"]
    parsed = json.loads(error.to_json())
    assert parsed["counts"] == {"error": 1, "warning": 1, "info": 1}
    assert parsed["findings"][0] == {
        "code": "D1",
        "severity": "error",
        "subject": "s",
        "problem": "p",
        "harm": "h",
        "remedy": "r",
    }
    assert "error   D1 s: p" in str(error)
    assert "1 errors, 1 warnings, 1 infos" in str(error)
