"""Groups are created whole, or not at all."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import pytest

from tests.features.group_support import World
from tests.keyspace import lasting_keys
from toril import (
    Backoff,
    Compensation,
    GroupJob,
    GroupValidationError,
    InvalidInputError,
    Job,
)
from toril.errors import CrossSlotError, InvalidNameError, InvalidOptionError, UnknownOptionError
from toril.protocol import codec, starting


async def test_a_group_is_returned_with_its_id_name_and_jobs(world: World):
    """SAGA-01, SAGA-08: three jobs in three queues, one call."""
    node = await world.flow.add_group(
        name="order-123",
        jobs=[
            GroupJob("charge-payment", queue_name="payments", data={"order": 1}),
            GroupJob("reserve-inventory", queue_name="inventory", data={"order": 1}, attempts=3),
            GroupJob("send-confirmation", queue_name="mail", data=None),
        ],
        compensation={"charge-payment": Compensation("refund-payment", data={"order": 1})},
    )

    assert node.group_name == "order-123"
    assert [job.name for job in node.jobs] == [
        "charge-payment",
        "reserve-inventory",
        "send-confirmation",
    ]
    assert [job.queue_name for job in node.jobs] == ["payments", "inventory", "mail"]
    assert all(isinstance(job, Job) for job in node.jobs)
    for job in node.jobs:
        assert await world.queue(job.queue_name).get_state(job.id) == "waiting"
    assert node.jobs[1].opts.attempts == 3


async def test_every_call_creates_a_group_of_its_own(world: World):
    """SAGA-02: equal arguments, different ids."""
    nodes = [await world.order() for _ in range(20)]

    assert len({node.group_id for node in nodes}) == 20
    assert len({job.id for node in nodes for job in node.jobs}) == 60


async def test_members_say_to_which_group_they_belong(world: World):
    """SAGA-04: as job.opts.group, through the server and back."""
    node = await world.order()

    for job in node.jobs:
        stored = await world.queue(job.queue_name).get_job(job.id)
        assert stored is not None
        assert stored.opts.group is not None
        assert (stored.opts.group.id, stored.opts.group.name) == (node.group_id, "order")
        assert stored.group_id == node.group_id == job.group_id
        raw = json.loads(await world.client.hget(f"{world.prefix}:{job.name}:{job.id}", "opts"))
        assert raw["group"] == {"id": node.group_id, "name": "order"}


def test_the_short_name_of_the_option_is_understood():
    """SAGA-04: `grp`, as a compressing client would write it."""
    opts = codec.decode_options(b'{"attempts":1,"grp":{"id":"g1","name":"order"}}')

    assert opts.group is not None
    assert (opts.group.id, opts.group.name) == ("g1", "order")
    assert codec.decode_options(b'{"group":7}').group is None
    assert codec.decode_options(b"{}").group is None


async def test_the_record_has_the_documented_fields(world: World):
    """SAGA-05, SAGA-07, SAGA-09, C-02, C-03: the hash, first seen as ACTIVE."""
    node = await world.order()

    record = await world.record(node)

    assert record["name"] == "order"
    assert record["state"] == "ACTIVE"
    assert record["totalJobs"] == "3"
    assert record["completedCount"] == record["failedCount"] == record["cancelledCount"] == "0"
    assert record["createdAt"] == record["updatedAt"]
    assert abs(int(record["createdAt"]) - node.jobs[0].timestamp) < 1000
    assert json.loads(record["compensation"])["a"] == {
        "name": "undo-a",
        "data": {"of": "a"},
        "opts": {"attempts": 1},
    }


async def test_the_members_and_the_index_are_there(world: World):
    """SAGA-06: full job keys, all pending; the index scored by creation."""
    node = await world.order()

    base = f"{world.prefix}:a:groups"
    members = await world.client.hgetall(f"{base}:{node.group_id}:jobs")
    assert members == {f"{world.prefix}:{job.queue_name}:{job.id}": "pending" for job in node.jobs}
    created_at = int((await world.record(node))["createdAt"])
    assert await world.client.zscore(base, node.group_id) == created_at


async def test_nobody_ever_sees_a_pending_group(world: World):
    """SAGA-07: creation is one script, which begins with ACTIVE; nothing ever writes PENDING."""
    await world.order()  # the first time the server learns the library
    async with world.client.monitor() as monitor:
        await world.order()
        await world.client.ping()
        calls, states = [], []
        while (command := (await monitor.next_command())["command"]) != "PING":
            calls += re.findall(r"^(?:FCALL|EVAL)\w*", command)
            states += re.findall(r" state (\w+)", command.replace('"', ""))

    assert states == ["ACTIVE"]
    assert calls == ["FCALL"]


async def test_an_empty_group_is_refused(world: World):
    """SAGA-10: with the words of the source, before anything is sent."""
    with pytest.raises(GroupValidationError, match=r"^Group must contain at least one job$"):
        await world.flow.add_group("order", [], {})

    assert await lasting_keys(world.client, world.prefix) == []


async def test_a_compensation_without_its_job_is_refused(world: World):
    """SAGA-11: the error names the key."""
    with pytest.raises(
        GroupValidationError, match=r'^Compensation key "chrage" does not match any job name$'
    ):
        await world.flow.add_group(
            "order", [GroupJob("charge", queue_name="a")], {"chrage": Compensation("refund")}
        )

    assert await lasting_keys(world.client, world.prefix) == []


async def test_a_member_cannot_be_a_child_of_a_flow(world: World):
    """SAGA-12: opts.parent is refused, and nothing is written."""
    described = {
        "name": "a",
        "queueName": "a",
        "opts": {"parent": {"id": "1", "queue": "bull:other"}},
    }

    with pytest.raises(
        GroupValidationError, match=r"^A job cannot belong to both a group and a flow$"
    ):
        await world.flow.add_group("order", [GroupJob("b", queue_name="b"), described])

    assert await lasting_keys(world.client, world.prefix) == []


async def test_a_job_belongs_to_one_group_only(world: World):
    """SAGA-13, SAGA-41: neither an option nor a stored job brings in another group."""
    described = {"name": "a", "queue_name": "a", "opts": {"group": {"id": "x", "name": "y"}}}
    with pytest.raises(GroupValidationError, match="already belongs to a group"):
        await world.flow.add_group("order", [described])
    assert await lasting_keys(world.client, world.prefix) == []

    node = await world.order()
    with pytest.raises(GroupValidationError, match=f"already belongs to group '{node.group_id}'"):
        await world.flow.add_group("outer", [node.jobs[0]])  # type: ignore[list-item]


async def test_members_are_scheduled_as_any_job(world: World):
    """SAGA-14: standard, delayed and prioritized members go where such jobs go."""
    node = await world.order(b={"delay": 60_000}, c={"priority": 5})

    places = [await world.place_of(job.queue_name, job.id) for job in node.jobs]

    assert places == ["waiting", "delayed", "prioritized"]


async def test_dictionaries_in_the_shape_of_the_source_do(world: World):
    """SAGA-01, SAGA-27: camelCase keys and options, as another language would give them."""
    node = await world.flow.add_group(
        name="order",
        jobs=[
            {
                "name": "charge",
                "queueName": "a",
                "data": {"order": 1},
                "opts": {"attempts": 2, "removeOnComplete": {"age": 60}, "jobId": "charge-1"},
            },
            {"name": "mail", "queue_name": "a", "data": None, "opts": {"remove_on_fail": True}},
        ],
        compensation={
            "charge": {
                "name": "refund",
                "data": {"order": 1},
                "opts": {"attempts": 5, "backoff": {"type": "exponential", "delay": 5000}},
            }
        },
    )

    assert node.jobs[0].id == "charge-1"
    assert node.jobs[0].opts.attempts == 2
    assert node.jobs[0].opts.remove_on_complete == {"age": 60}
    stored = json.loads((await world.record(node))["compensation"])
    assert stored["charge"]["opts"] == {
        "attempts": 5,
        "backoff": {"type": "exponential", "delay": 5000},
    }


@pytest.mark.parametrize(
    ("jobs", "options", "error"),
    [
        ([GroupJob("a", queue_name="a")], {"name": ""}, GroupValidationError),
        ([GroupJob("a", queue_name="a")], {"queue_name": "a:b"}, InvalidNameError),
        ([GroupJob("a", queue_name="a")], {"compensation_order": "random"}, InvalidOptionError),
        ([GroupJob("a", queue_name="a")], {"timeout": 0}, InvalidOptionError),
        ([{"name": "a"}], {}, GroupValidationError),
        ([{"name": "a", "queue_name": "a", "atempts": 3}], {}, UnknownOptionError),
        ([{"name": "a", "queue_name": "a", "children": [{}]}], {}, GroupValidationError),
        (["a"], {}, GroupValidationError),
        ([GroupJob("a", queue_name="a", job_id="x")] * 2, {}, GroupValidationError),
        ([GroupJob("a", queue_name="a")] * 1001, {}, GroupValidationError),
        ([GroupJob("a", queue_name="a")], {"compensation": {"a": 1}}, GroupValidationError),
        ([GroupJob("a", queue_name="a")], {"compensation": {"a": {}}}, GroupValidationError),
        (
            [GroupJob("a", queue_name="a")],
            {"compensation": {"a": Compensation("b")}, "compensation_queue": "{queue}"},
            InvalidOptionError,
        ),
        (
            [GroupJob("a", queue_name="a")],
            {"compensation": {"a": {"name": "b", "delya": 1}}},
            UnknownOptionError,
        ),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    world: World, jobs: Any, options: dict[str, Any], error: type[Exception]
):
    """SAGA-03, SAGA-10 … SAGA-13: every bad argument, and the server is empty afterwards."""
    with pytest.raises(error) as raised:
        await world.flow.add_group(**{"name": "order", "jobs": jobs, **options})

    assert isinstance(raised.value, InvalidInputError)
    assert await lasting_keys(world.client, world.prefix) == []


async def test_an_id_that_exists_stops_the_whole_group(world: World):
    """SAGA-03: nothing of the group is there, and the job that was is untouched."""
    await world.queue("c").add("other", job_id="taken")
    before = await lasting_keys(world.client, world.prefix)

    with pytest.raises(GroupValidationError, match="'taken' exists already"):
        await world.order(c={"job_id": "taken"})

    assert await lasting_keys(world.client, world.prefix) == before


@pytest.mark.no_audit("a key has another type on purpose")
@pytest.mark.parametrize("name", ["wait", "delayed", "events", "groups", "marker", "id", "meta"])
async def test_damage_anywhere_stops_the_whole_group(world: World, name: str):
    """SAGA-03: a script cannot undo its first half, so it looks before it writes."""
    for queue in ("a", "c", "c:compensation"):
        key = f"{world.prefix}:{queue}:{name}"
        await world.client.sadd(key, "damage")

        with pytest.raises(Exception, match="WRONGTYPE"):
            await world.order()

        assert await lasting_keys(world.client, world.prefix) == [key]
        await world.client.delete(key)


async def test_a_create_that_is_sent_again_creates_nothing_new(world: World, monkeypatch: Any):
    """SAGA-03: the reply is lost, the same call is sent again, one group exists."""
    from toril.protocol.new_group import new_group

    group = new_group(
        "order",
        [GroupJob("a", queue_name="a")],
        {},
        queue_name=None,
        compensation_queue="{queue}:compensation",
        order="parallel",
        late=True,
        keep=None,
        timeout=None,
    )
    command = starting.create(world.prefix, group, "g1", ["j1"])

    first, again = await world.connection.run(command), await world.connection.run(command)

    assert first.jobs[0].timestamp == again.jobs[0].timestamp
    assert await world.client.lrange(f"{world.prefix}:a:wait", 0, -1) == ["j1"]
    assert await world.client.zcard(f"{world.prefix}:a:groups") == 1


async def test_the_owner_is_the_queue_of_the_first_job_unless_given(world: World):
    """SAGA-05, C-09: another queue may own the group; members know where it is."""
    node = await world.order(queue_name="orders")

    assert await world.state(node, "orders") == "ACTIVE"
    assert await world.client.exists(f"{world.prefix}:a:groups:{node.group_id}") == 0
    await world.complete("abc")
    assert await world.state(node, "orders") == "COMPLETED"
    assert await world.event_names("orders") == ["group:completed"]


async def test_a_compensation_has_three_attempts_unless_told(world: World):
    """SAGA-27: exponential from 1000 ms by default."""
    node = await world.order("a", compensation={"a": Compensation("undo-a")})

    stored = json.loads((await world.record(node))["compensation"])["a"]

    assert stored["opts"] == {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
    custom = Compensation("x", attempts=7, backoff=Backoff.fixed(5))
    assert codec.wire_options(custom.as_job())["backoff"] == {"type": "fixed", "delay": 5}


async def test_on_a_cluster_every_queue_of_a_group_needs_a_hash_tag(cluster: Any):
    """SAGA-08: refused with the remedy before anything is sent; with a hash tag it works."""
    from toril import FlowProducer, Queue

    url = cluster.url.replace("redis://", "redis+cluster://")
    prefix = "{" + f"t{secrets.token_hex(4)}" + "}"
    jobs = [GroupJob("a", queue_name="a"), GroupJob("b", queue_name="b")]
    async with FlowProducer(connection=url) as flow:
        with pytest.raises(CrossSlotError, match="hash tag"):
            await flow.add_group("order", jobs)
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add_group("order", jobs, {"a": Compensation("undo-a")})
        async with Queue("a", connection=url, prefix=prefix) as queue:
            await queue.cancel_group(node.group_id)
            info = await queue.get_group_state(node.group_id)
    assert info is not None
    assert info.state == "FAILED"
