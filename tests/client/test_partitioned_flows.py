"""Flows and groups whose queues have partitions."""

from __future__ import annotations

import pytest

from tests.servers import Cluster
from toril import (
    Deduplication,
    FlowJob,
    FlowProducer,
    GroupJob,
    NewJob,
    Queue,
    Worker,
    compensation_worker,
)
from toril.client import agreeing, growing
from toril.client import partitions as partitions_module
from toril.errors import PartitionMismatchError
from toril.protocol import partitioning
from toril.sync import FlowProducer as BlockingFlowProducer

PATIENCE_MS = 30_000


@pytest.fixture
async def flow(url, prefix):
    async with FlowProducer(
        connection=url, prefix=prefix, partitions={"mail": 4, "report": 4}
    ) as flow:
        yield flow


@pytest.fixture
def soon(monkeypatch):
    """Processes ask at every call whether the number is still the same."""
    monkeypatch.setattr(partitions_module, "AGREE_AGAIN_S", 0.0)
    monkeypatch.setattr(agreeing, "AGREE_AGAIN_S", 0.0)


async def owners_of(queue):
    found = {}
    for part in queue.partitions:
        found |= {group.id: part.name for group in await part.get_groups()}
    return found


def tree(number, **options):
    children = [FlowJob("send", {"n": n}, queue_name="mail") for n in range(3)]
    return FlowJob("sum", {"n": number}, queue_name="mail", children=children, **options)


async def test_a_flow_stays_in_one_partition_and_flows_are_spread(flow, make_queue, url, prefix):
    mail = make_queue("mail", partitions=4)
    nodes = await flow.add_bulk([tree(n) for n in range(1)])
    nodes += [await flow.add(tree(n)) for n in range(30)]

    for node in nodes:
        names = {node.job.queue_name, *(child.job.queue_name for child in node.children)}
        assert len(names) == 1
        assert partitioning.named_in(node.job.id, 4) == partitioning.whole_of(names.pop())[1]
    assert len({node.job.queue_name for node in nodes}) > 1
    found = await flow.get_flow(nodes[3].job.id, "mail")
    assert found is not None
    assert len(found.children) == 3
    assert await flow.get_flow("nobody", "mail") is None

    async def work(job):
        return (await mail.get_children_values(job.id)) if job.name == "sum" else job.data["n"]

    async with Worker("mail", work, connection=url, prefix=prefix, partitions=4, concurrency=8):
        for node in nodes:
            values = await mail.wait_for(node.job.id, PATIENCE_MS)
            assert sorted(values.values()) == [0, 1, 2]


async def test_a_job_with_a_home_goes_there(flow, make_queue):
    lane = FlowJob("send", queue_name="mail", lane="user-7")
    own = FlowJob("send", queue_name="mail", job_id="mine")
    plain = FlowJob("send", queue_name="plain")
    node = await flow.add(
        FlowJob("sum", queue_name="report", job_id="all", children=[lane, own, plain])
    )

    homes = [partitioning.whole_of(child.job.queue_name) for child in node.children[:2]]
    expected = [partitioning.home_of(text, 4) for text in ("user-7", "mine")]
    assert [home[1] for home in homes] == expected
    assert node.children[2].job.queue_name == "plain"
    assert node.job.queue_name == partitioning.name_of("report", partitioning.home_of("all", 4))
    assert (await flow.add(tree(1, job_id="twice"))).job.duplicated is False
    assert (await flow.add(tree(1, job_id="twice"))).job.duplicated is True


async def test_after_growing_what_exists_is_found_where_it_is(flow, make_queue, url, prefix, soon):
    mail = make_queue("mail", partitions=4)
    for n in range(12):
        await flow.add(tree(n, job_id=f"root-{n}"))
        await flow.add_group("g", [GroupJob("send", queue_name="mail")], group_id=f"group-{n}")
    before = await owners_of(mail)
    assert len(before) == 12
    await growing.grow(mail._connection, mail.keys, 16, grace_s=0.0)
    with pytest.raises(PartitionMismatchError, match="has 16 partitions"):
        await flow.add(tree(1))

    async with FlowProducer(connection=url, prefix=prefix, partitions={"mail": 16}) as grown:
        for n in range(12):
            assert (await grown.add(tree(n, job_id=f"root-{n}"))).job.duplicated
            again = await grown.add_group(
                "g", [GroupJob("send", queue_name="mail")], group_id=f"group-{n}"
            )
            assert again.is_new is False
    now = make_queue("mail", partitions=16)
    assert await owners_of(now) == before


async def test_after_growing_an_id_is_a_duplicate_whatever_its_lane(
    flow, make_queue, url, prefix, soon
):
    """Lanes are empty when a queue grows, but their last jobs are known: they ran again."""
    mail = make_queue("mail", partitions=4)
    ran = []
    jobs = [NewJob("send", job_id=f"j-{n}", lane=f"lane-{n}") for n in range(12)]
    for n in range(12):
        both = Deduplication(f"both-{n}")
        jobs.append(NewJob("send", job_id=f"b-{n}", deduplication=both))
    for n in range(12):
        once = Deduplication(f"d-{n}", ttl=600_000)
        jobs.append(NewJob("send", deduplication=once, lane=f"other-{n}"))
    roots = [tree(n, job_id=f"root-{n}", lane=f"sum-{n}") for n in range(12)]

    async def work(job):
        ran.append(job.id)

    before = await mail.add_bulk(jobs)
    for root in roots:
        await flow.add(root)
    async with Worker("mail", work, connection=url, prefix=prefix, partitions=4, concurrency=8):
        assert await mail.wait_until_empty(PATIENCE_MS)
    assert len(ran) == 36 + 12 * 4
    await growing.grow(mail._connection, mail.keys, 16, grace_s=0.0)

    grown = make_queue("mail", partitions=16)
    again = await grown.add_bulk(jobs)
    assert [job.id for job in again] == [job.id for job in before]
    assert all(job.duplicated for job in again)
    assert all(
        [(await grown.add("send", job_id=j.job_id, lane=j.lane)).duplicated for j in jobs[:12]]
    )
    prepared = [grown.adder.prepare(job) for job in jobs]
    assert all([(await grown.adder.send(job)).is_duplicate for job in prepared])
    async with FlowProducer(connection=url, prefix=prefix, partitions={"mail": 16}) as producer:
        assert all([(await producer.add(root)).job.duplicated for root in roots])
    assert await grown.get_waiting_count() == 0
    new = await grown.add("send", lane="lane-3")
    assert partitioning.whole_of(new.queue_name)[1] == partitioning.home_of("lane-3", 16)


async def test_a_forgotten_group_is_not_started_again_after_growing(
    flow, make_queue, url, prefix, soon
):
    """Its id stays known for a day, in the partition where it was."""
    mail = make_queue("mail", partitions=4)
    ran = []

    async def start(producer):
        members = [GroupJob("send", queue_name="mail")]
        ids = [f"group-{n}" for n in range(12)]
        return [
            await producer.add_group("g", members, group_id=one, group_retention=True)
            for one in ids
        ]

    async def work(job):
        ran.append(job.group_id)

    async with Worker("mail", work, connection=url, prefix=prefix, partitions=4):
        for node in await start(flow):
            assert (await mail.wait_for_group(node.group_id, PATIENCE_MS)).state == "COMPLETED"
    assert await owners_of(mail) == {}
    await growing.grow(mail._connection, mail.keys, 16, grace_s=0.0)

    async with FlowProducer(connection=url, prefix=prefix, partitions={"mail": 16}) as grown:
        assert not any(node.is_new for node in await start(grown))

    assert await make_queue("mail", partitions=16).get_waiting_count() == 0
    assert len(ran) == 12


async def test_groups_in_partitions_are_undone(flow, make_queue, url, prefix):
    mail = make_queue("mail", partitions=4)
    undone = []

    async def work(job):
        if job.name == "fail":
            raise ValueError("no")

    async def undo(job):
        undone.append(job.name)

    where = {"connection": url, "prefix": prefix, "partitions": 4}
    ids = []
    for n in range(8):
        jobs = [
            GroupJob("send", queue_name="mail", key="a"),
            GroupJob("fail", queue_name="mail", attempts=1, after=["a"]),
        ]
        node = await flow.add_group("order", jobs, {"send": {"name": "unsend"}}, group_id=f"g-{n}")
        ids.append(node.group_id)
    async with (
        Worker("mail", work, concurrency=8, **where),
        compensation_worker("mail", undo, concurrency=8, **where),
    ):
        for group_id in ids:
            assert (await mail.wait_for_group(group_id, PATIENCE_MS)).state == "FAILED"

    assert undone == ["unsend"] * 8
    assert await flow.keep_groups("mail") == 0


def test_the_blocking_producer_places_jobs_too(url, prefix):
    with BlockingFlowProducer(connection=url, prefix=prefix, partitions={"mail": 4}) as flow:
        node = flow.add(tree(1))

    assert partitioning.whole_of(node.job.queue_name)[0] == "mail"
    assert {child.job.queue_name for child in node.children} == {node.job.queue_name}


async def test_on_a_cluster_flows_and_groups_need_no_hash_tag(cluster: Cluster):
    where = {"connection": cluster.url}
    partitions = {"flows": 6}
    async with (
        FlowProducer(partitions=partitions, **where) as flow,
        Queue("flows", partitions=6, **where) as queue,
    ):
        nodes = [
            await flow.add(
                FlowJob(
                    "sum", queue_name="flows", children=[FlowJob("send", queue_name="flows")] * 2
                )
            )
            for _ in range(10)
        ]
        groups = [
            await flow.add_group("g", [GroupJob("send", queue_name="flows")] * 2) for _ in range(10)
        ]

        async def work(job):
            return None

        async with Worker("flows", work, partitions=6, concurrency=8, **where):
            for node in nodes:
                assert await queue.wait_for(node.job.id, PATIENCE_MS) is None
            for group in groups:
                info = await queue.wait_for_group(group.group_id, PATIENCE_MS)
                assert info.state == "COMPLETED"
        await queue.obliterate(force=True)
