"""The smallest users: what they may do is enough, and no more than that."""

from __future__ import annotations

import re
import shlex

import pytest
import redis

from tests.helpers import wait_until
from toril import (
    Compensation,
    FlowJob,
    FlowProducer,
    GroupJob,
    ManualWorker,
    NewJob,
    Queue,
    QueueEvents,
    Worker,
)
from toril.cli.main import run
from toril.errors import ServerUnusableError
from toril.protocol import rights, scripts


@pytest.fixture
def users(start_server, capsys):
    """A server on which only the three users of ``toril acl`` can do anything."""
    server = start_server(tcp=True)
    urls = {}
    with server.client() as client:
        for role in rights.ROLES:
            assert run(["acl", role]) == 0
            line = capsys.readouterr().out.replace("SECRET", "x")
            assert client.execute_command(*shlex.split(line)) in (True, b"OK", "OK")
            urls[role] = server.url.replace("redis://", f"redis://{role}:x@")
        client.execute_command("ACL", "LOG", "RESET")
    yield urls
    with server.client() as client:
        denied = [entry["object"] for entry in client.acl_log()]
    assert denied == []


def test_the_line_is_what_the_server_takes(capsys):
    run(["acl", "worker", "--user", "mail", "--prefix", "shop"])

    line = capsys.readouterr().out
    assert line.startswith("ACL SETUSER mail on >SECRET resetkeys ~shop:* -@all +")
    assert not re.search(r"eval|@scripting|\+@", line)


def test_every_command_of_the_library_is_known(start_server):
    """A command that is added to the library is added to the rights of who calls it."""
    server = start_server(tcp=True)
    with server.client() as client:
        known = {name.upper() for name in client.command_list()}

    used = set(re.findall(r'"([A-Z]{3,})"', scripts.library().code)) & known
    assert used <= rights._COMMANDS
    assert rights._COMMANDS - {"XRANGE", "ZCOUNT"} <= used | {"XRANGE", "ZCOUNT"}


def test_a_producer_has_fewer_rights_than_a_worker_and_an_operator_has_most():
    producer, worker, operator = (set(rights.commands_of(role)) for role in rights.ROLES)

    assert producer < worker
    assert worker - operator <= {"bzpopmin", "blpop"}
    for role in (producer, worker, operator):
        assert not role & {"eval", "evalsha", "script", "flushall", "keys", "config|set", "debug"}


async def test_producers_and_workers_need_no_more(users):
    """Plain, delayed, prioritised, deduplicated jobs, lanes, flows, groups, letters."""
    done: list[str] = []

    async def handler(job):
        if job.name == "doomed":
            raise ValueError("no")
        await job.log("here")
        await job.report(50)
        done.append(job.name)
        return job.name

    workers = [
        Worker(
            name, handler, connection=users["worker"], dead_letter_queue="dead", metrics_points=10
        )
        for name in ("q", "other", "q:compensation")
    ]
    for worker in workers:
        await worker.start()
    async with (
        Queue("q", connection=users["producer"]) as queue,
        FlowProducer(connection=users["producer"]) as flows,
        QueueEvents("q", connection=users["producer"]),
    ):
        plain = await queue.add("plain")
        assert await queue.wait_for(plain.id, timeout=60_000) == "plain"
        await queue.add("later", delay=1)
        await queue.add("first", priority=3)
        await queue.add("once", deduplication={"id": "d"}, lane="one")
        await queue.add("second", lane="one")
        await queue.add("doomed", attempts=2)
        await queue.upsert_job_scheduler("tick", every=60_000, template=NewJob("tick"))
        await flows.add(
            FlowJob("parent", queue_name="q", children=[FlowJob("child", queue_name="other")])
        )
        node = await flows.add_group(
            "g",
            [
                GroupJob("a", queue_name="q", attempts=1),
                GroupJob("doomed", queue_name="other", attempts=1),
            ],
            {"a": Compensation("undo")},
        )
        wanted = {"plain", "later", "first", "once", "second", "parent", "child", "tick"}
        await wait_until(lambda: wanted <= set(done), timeout=30)
        ended = await queue.wait_for_group(node.group_id, timeout=30_000)
        assert ended.state == "FAILED"
        assert (await queue.get_job(plain.id)).return_value == "plain"
        assert (await queue.get_job_counts())["failed"] == 0
        assert await queue.remove_job_scheduler("tick")
    for worker in workers:
        await worker.close()
    async with Queue("dead", connection=users["operator"]) as dead:
        assert await dead.get_dead_letter_count() >= 1
        assert await dead.replay_all_dead_letters() >= 1


@pytest.mark.parametrize(
    "words",
    [
        ["queues"],
        ["monitor", "--json"],
        ["jobs", "q"],
        ["doctor"],
        ["pause", "q"],
        ["resume", "q"],
        ["retry", "--all", "-q", "q"],
        ["drain", "q", "--yes"],
        ["clean", "q", "--state", "completed", "--yes"],
        ["obliterate", "q", "--yes", "--force"],
    ],
)
async def test_an_operator_needs_no_more(users, words, capsys):
    import asyncio

    async with Queue("q", connection=users["producer"]) as queue:
        await queue.add("x")

    code = await asyncio.to_thread(lambda: run([*words, "--url", users["operator"]]))

    # The doctor's code tells how bad it is; 3 is a server that cannot serve.
    assert code in ((0, 1, 2) if words == ["doctor"] else (0, 1)), capsys.readouterr().err


def test_an_operator_may_remove_the_libraries_that_nobody_calls(users, capsys):
    other = "#!lua name=toril_0ld\nredis.register_function('old', function() end)"
    with redis.Redis.from_url(users["operator"]) as client:
        client.function_load(other)

    run(["doctor", "--fix", "--no-audit", "--url", users["operator"]])

    assert "removed the library toril_0ld" in capsys.readouterr().out


async def test_a_producer_cannot_take_what_others_added(start_server):
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">x", *rights.acl_rules("producer"))
    url = server.url.replace("redis://", "redis://small:x@")
    async with Queue("q", connection=url) as queue:
        await queue.add("x")
        async with ManualWorker("q", connection=url) as hand:
            with pytest.raises(ServerUnusableError, match="ACL"):
                await hand.get_next_job()


def test_a_user_of_another_prefix_sees_nothing(start_server):
    server = start_server(tcp=True)
    with server.client() as client:
        rules = rights.acl_rules("producer", "shop")
        client.execute_command("ACL", "SETUSER", "small", "on", ">x", *rules)
    small = redis.Redis.from_url(server.url.replace("redis://", "redis://small:x@"))

    with pytest.raises(redis.exceptions.NoPermissionError):
        small.hgetall("bull:q:1")
    assert small.hgetall("shop:q:1") == {}
    small.close()
