"""Metrics for Prometheus, read through the real library."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.helpers import wait_until
from toril import FlowProducer, GroupJob, GroupSignal, NewJob, Worker
from toril.contrib.prometheus import OTHER, QueueCollector, WorkerMetrics
from toril.sync import Queue


@pytest.fixture
def registry():
    return CollectorRegistry()


async def handler(job):
    if job.name == "bad":
        raise ValueError("no")
    await asyncio.sleep(job.data or 0)


async def test_queues_are_read_at_every_scrape(queue, registry, url, prefix):
    collector = QueueCollector(
        ["q"], connection=url, prefix=prefix, dead_letter_queues=["q-dlq"], registry=registry
    )
    await queue.add("a")
    await queue.add("b", delay=3_600_000)

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    read = await asyncio.to_thread(generate_latest, registry)
    assert b'toril_jobs{queue="q",state="waiting"} 1.0' in read
    assert value("toril_jobs", queue="q", state="delayed") == 1
    assert value("toril_up") == 1
    assert value("toril_dead_letters", queue="q-dlq") == 0

    options = {"connection": url, "prefix": prefix, "dead_letter_queue": "q-dlq"}
    await queue.add("bad")
    async with Worker("q", handler, metrics_points=5, **options):
        await wait_until(lambda: value("toril_jobs", queue="q", state="waiting") == 0)
        await wait_until(lambda: value("toril_jobs", queue="q", state="active") == 0)
    assert value("toril_jobs_finished_total", queue="q", outcome="completed") == 1
    assert value("toril_jobs_finished_total", queue="q", outcome="failed") == 1
    assert value("toril_dead_letters", queue="q-dlq") == 1
    collector.close()
    assert value("toril_up") is None


async def test_groups_are_counted_by_state(queue, registry, url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        for _ in range(2):
            await flow.add_group(name="g", jobs=[GroupJob("a", queue_name="q")])
    collector = QueueCollector(["q"], connection=url, prefix=prefix, registry=registry)

    assert registry.get_sample_value("toril_groups", {"queue": "q", "state": "ACTIVE"}) == 2
    assert registry.get_sample_value("toril_groups", {"queue": "q", "state": "COMPLETED"}) == 0
    collector.close()


async def test_blocked_groups_are_counted_by_their_index(queue, registry, url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        members = [GroupSignal("a"), GroupJob("b", queue_name="q", after=["a"], pivot=True)]
        await flow.add_group("g", [*members, GroupSignal("c", after=["b"])], group_id="g")
    await queue.complete_member("g", "a")

    async def handler(job):
        return None

    async def is_awaited():
        return (await queue.get_group_jobs("g"))[2].status == "awaited"

    async with Worker("q", handler, connection=url, prefix=prefix):
        await wait_until(is_awaited)
    await queue.fail_member("g", "c", "no")
    collector = QueueCollector(["q"], connection=url, prefix=prefix, registry=registry)

    assert registry.get_sample_value("toril_groups", {"queue": "q", "state": "BLOCKED"}) == 1
    assert registry.get_sample_value("toril_groups_needing_person", {"queue": "q"}) == 1
    collector.close()


async def test_a_group_that_asks_how_a_member_ended_needs_a_person(
    queue, registry, url, prefix, client
):
    """It is ACTIVE, and goes no further by itself."""
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add_group("g", [GroupJob("a", queue_name="q")])
    collector = QueueCollector(["q"], connection=url, prefix=prefix, registry=registry)
    assert registry.get_sample_value("toril_groups_needing_person", {"queue": "q"}) == 0
    await client.lrem(queue.keys.wait, 1, node.jobs[0].id)
    await client.delete(queue.keys.job(node.jobs[0].id), queue.keys.events)
    await queue.reconcile_groups()

    assert registry.get_sample_value("toril_groups", {"queue": "q", "state": "ACTIVE"}) == 1
    assert registry.get_sample_value("toril_groups_needing_person", {"queue": "q"}) == 1
    collector.close()


async def test_lanes_are_counted(queue, registry, url, prefix):
    for n in range(5):
        await queue.add("a", n, lane=f"user:{n % 2}")
    await queue.add("a", lane="user:0", delay=3_600_000)
    collector = QueueCollector(["q"], connection=url, prefix=prefix, registry=registry)

    def value(metric, /, **labels):
        return registry.get_sample_value(metric, {"queue": "q", **labels})

    assert value("toril_lanes") == 2
    assert value("toril_lane_jobs", state="waiting") == 5
    assert value("toril_lane_jobs", state="delayed") == 1
    collector.close()


@pytest.mark.parametrize("names", [["q"], []], ids=["a queue", "none"])
def test_a_server_that_does_not_answer_is_told(registry, names):
    """Regression: without the names of queues it was always said to answer."""
    collector = QueueCollector(names, connection="redis://127.0.0.1:1", registry=registry)
    collector._connection._patience_s = 0

    assert generate_latest(registry).count(b"toril_up 0.0") == 1
    assert b"toril_jobs{" not in generate_latest(registry)
    collector.close()


async def test_a_worker_tells_how_long_jobs_wait_and_run(queue, registry, url, prefix):
    def value(metric, /, **labels):
        return registry.get_sample_value(metric, {"queue": "q", **labels})

    worker = Worker(
        "q", handler, connection=url, prefix=prefix, dead_letter_queue="q-dlq", concurrency=3
    )
    WorkerMetrics(worker, registry=registry)
    await queue.add("good", 0.05)
    await queue.add("bad", attempts=2)
    async with worker:
        await wait_until(lambda: value("toril_attempts_total", name="good", outcome="completed"))
        await wait_until(lambda: value("toril_attempts_total", name="bad", outcome="failed"))
        assert value("toril_running_jobs") == 0
        assert value("toril_abandoned_threads") == 0

    assert value("toril_attempts_total", name="bad", outcome="retried") == 1
    assert value("toril_dead_lettered_jobs_total", name="bad") == 1
    assert value("toril_job_run_seconds_count", name="good") == 1
    assert 0.045 <= value("toril_job_run_seconds_sum", name="good") < 60
    assert value("toril_job_run_seconds_count", name="bad") == 2
    # Only the first start of a job ends its wait.
    assert value("toril_job_wait_seconds_count", name="bad") == 1
    assert value("toril_job_wait_seconds_sum", name="good") < 60


async def test_what_alerts_look_at_is_zero_before_its_first_event(queue, registry, url, prefix):
    """Regression: a dead worker's twenty jobs began the series at 20, and nothing increased."""

    def value(metric, /, **labels):
        return registry.get_sample_value(metric, {"queue": "q", **labels})

    worker = Worker("q", handler, connection=url, prefix=prefix, dead_letter_queue="q-dlq")
    WorkerMetrics(worker, registry=registry)

    assert value("toril_stalled_jobs_total") == 0
    assert value("toril_lost_jobs_total") == 0
    await queue.add("good")
    async with worker:
        await wait_until(lambda: value("toril_attempts_total", name="good", outcome="completed"))
    assert value("toril_dead_lettered_jobs_total", name="good") == 0


async def test_a_delay_is_no_wait(queue, registry, url, prefix):
    def wait_sum():
        return registry.get_sample_value(
            "toril_job_wait_seconds_sum", {"queue": "q", "name": "later"}
        )

    worker = Worker("q", handler, connection=url, prefix=prefix)
    WorkerMetrics(worker, registry=registry)
    job = await queue.add("later", delay=300)
    async with worker:
        await wait_until(lambda: wait_sum() is not None)
        ran = await queue.get_job(job.id)

    assert wait_sum() == pytest.approx((ran.processed_on - ran.timestamp) / 1000 - 0.3, abs=0.01)


async def test_the_time_before_run_at_is_no_wait(queue, registry, url, prefix):
    def wait_sum():
        return registry.get_sample_value(
            "toril_job_wait_seconds_sum", {"queue": "q", "name": "later"}
        )

    worker = Worker("q", handler, connection=url, prefix=prefix)
    WorkerMetrics(worker, registry=registry)
    added = await queue.add("now")
    at = added.timestamp + 500
    job = await queue.add("later", run_at=at)
    async with worker:
        await wait_until(lambda: wait_sum() is not None)
        ran = await queue.get_job(job.id)

    assert wait_sum() == pytest.approx((ran.processed_on - at) / 1000, abs=0.01)


async def test_the_number_of_names_is_bounded(queue, registry, url, prefix):
    worker = Worker("q", handler, connection=url, prefix=prefix, concurrency=5)
    WorkerMetrics(worker, registry=registry, most_names=3)
    for n in range(20):
        await queue.add(f"name-{n}")

    def names():
        family = next(f for f in registry.collect() if f.name == "toril_attempts")
        return {s.labels["name"]: s.value for s in family.samples if s.name.endswith("_total")}

    async with worker:
        await wait_until(lambda: sum(names().values()) == 20)

    assert len(names()) == 4
    assert names()[OTHER] == 17


async def test_two_workers_share_the_meters_of_a_registry(queue, registry, url, prefix):
    workers = [Worker("q", handler, connection=url, prefix=prefix) for _ in range(2)]
    for worker in workers:
        WorkerMetrics(worker, registry=registry)
    for _ in range(4):
        await queue.add("a", 0.1)
    async with workers[0], workers[1]:
        labels = {"queue": "q", "name": "a", "outcome": "completed"}
        running = {"queue": "q"}
        await wait_until(lambda: registry.get_sample_value("toril_running_jobs", running) == 2)
        await wait_until(lambda: registry.get_sample_value("toril_attempts_total", labels) == 4)
    assert registry.get_sample_value("toril_running_jobs", {"queue": "q"}) == 0


def test_a_queue_with_partitions_is_one_row(url, prefix):
    registry = CollectorRegistry()
    with Queue("mail", connection=url, prefix=prefix, partitions=4) as queue:
        queue.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(10)])
        queue.add_bulk([NewJob("x", lane=f"l-{n // 2}") for n in range(4)])
    collector = QueueCollector(
        ["mail"], connection=url, prefix=prefix, registry=registry, partitions={"mail": 4}
    )

    text = generate_latest(registry).decode()

    assert 'toril_jobs{queue="mail",state="waiting"} 14.0' in text
    assert 'toril_lane_jobs{queue="mail",state="waiting"} 4.0' in text
    collector.close()


def test_the_partitions_of_a_queue_are_found_on_the_server(url, prefix):
    """Regression: whoever was not told of them read the plain queue of that name."""
    registry = CollectorRegistry()
    collector = QueueCollector(
        ["mail"],
        connection=url,
        prefix=prefix,
        registry=registry,
        dead_letter_queues=["{mail}-dlq"],
    )
    assert b'state="waiting"} 0.0' in generate_latest(registry)
    with Queue("mail", connection=url, prefix=prefix, partitions=4) as queue:
        queue.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(10)])
    with Queue("{mail}-dlq", connection=url, prefix=prefix, partitions=4) as letters:
        letters.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(10)])

    text = generate_latest(registry).decode()

    assert 'toril_jobs{queue="mail",state="waiting"} 10.0' in text
    assert 'toril_dead_letters{queue="{mail}-dlq"} 10.0' in text
    assert "toril_up 1.0" in text
    collector.close()
