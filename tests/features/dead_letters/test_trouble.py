"""Dead letters on a cluster, with replies that get lost, and with a server that is full."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.client.test_pipelining import Cutter
from tests.features.dead_letters.conftest import DLQ, refuse
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from tests.proxy import Proxy, runs
from toril import (
    DeadLetterNotFoundError,
    FlowProducer,
    GroupJob,
    Queue,
    QueueEvents,
    Worker,
)
from toril.errors import CrossSlotError, DeadLetterSourceError, ServerOutOfMemoryError
from toril.protocol import replaying
from toril.protocol.command import plain


@pytest.fixture
def cluster_url(cluster) -> str:
    return cluster.url.replace("redis://", "redis+cluster://", 1)


@pytest.fixture
async def cut(server):
    """A line to the server that can be cut before a reply comes through."""
    cutter = Cutter(server.port)
    listener = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    yield cutter, f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


async def test_a_cluster_moves_and_replays_within_one_slot(cluster_url):
    """DLQ-27."""
    options = {"connection": cluster_url, "prefix": f"{{t{secrets.token_hex(4)}}}"}
    async with Queue("orders", **options) as orders, Queue(DLQ, **options) as dlq:
        for number in range(30):
            await orders.add("charge", {"n": number})

        async def all_there() -> bool:
            return await dlq.get_dead_letter_count() == 30

        async with Worker("orders", refuse, dead_letter_queue=DLQ, concurrency=10, **options):
            await wait_until(all_there)
        await dlq.replay_dead_letter((await dlq.get_dead_letter_jobs(0, 0))[0].id)
        assert await dlq.replay_all_dead_letters() == 29
        assert (await orders.get_job_counts())["waiting"] == 30


async def test_a_cluster_never_replays_to_a_queue_without_a_hash_tag(cluster_url):
    """DLQ-27: a letter that names such a source is refused before anything is written."""
    options = {"connection": cluster_url, "prefix": f"t{secrets.token_hex(4)}"}
    async with Queue("{a}-dlq", **options) as dlq:
        meta = {"sourceQueue": "orders", "failedReason": "x"}
        letter = await dlq.add("charge", {"n": 1, "_dlqMeta": meta})

        with pytest.raises(CrossSlotError, match="hash tag"):
            await dlq.replay_dead_letter(letter.id)
        assert await dlq.replay_all_dead_letters() == 0
        assert await dlq.get_dead_letter_count() == 1


async def test_a_letter_of_ours_that_names_a_queue_without_a_hash_tag_stays(cluster_url, cluster):
    """DLQ-27: as if somebody had copied letters from elsewhere."""
    prefix = f"t{secrets.token_hex(4)}"
    options = {"connection": cluster_url, "prefix": prefix}
    async with Queue("{a}-dlq", **options) as dlq, Queue("{a}-orders", **options) as orders:
        await orders.add("charge", {"n": 1})

        async def there() -> bool:
            return await dlq.get_dead_letter_count() == 1

        async with Worker("{a}-orders", refuse, dead_letter_queue="{a}-dlq", **options):
            await wait_until(there)
        note = json.dumps({"source": "orders", "why": "", "fp": "", "size": 1})
        command = ("HSET", dlq.keys.job("1"), "x.letter", note)
        await dlq._connection.run(plain(*command, parse=int))

        assert await dlq.replay_all_dead_letters() == 0
        assert await dlq.get_dead_letter_count() == 1


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_replay_whose_reply_got_lost_is_not_done_twice(side, cut, prefix, is_taken):
    """DLQ-29: sent again, it is answered as the first time, even if the job has gone since."""
    cutter, url = cut
    await side.bury("charge", "charge")
    async with Queue(DLQ, connection=url, prefix=prefix) as dlq, AsyncExitStack() as stack:
        await dlq.get_dead_letter_count()
        if is_taken:
            options = {"connection": side.url, "prefix": prefix, "remove_on_complete": True}
            await stack.enter_async_context(Worker("orders", succeed, **options))
        cutter.bytes_until_cut = 0
        command = replaying.replay(dlq.keys, "1", "new-1", "orders")

        assert await dlq._connection.run(command) == "new-1"

        assert cutter.connections == 2
        assert await dlq.get_dead_letter_count() == 1
        added = [event for event in await side.events() if event.get("jobId") == "new-1"]
        assert [event["event"] for event in added].count("added") == 1
        with pytest.raises(DeadLetterNotFoundError):
            await dlq.replay_dead_letter("1")


async def succeed(job) -> None:
    return None


class FarLetters:
    """The dead letters over a line that loses the reply of the first replay."""

    def __init__(self, proxy: Proxy, queue: Queue) -> None:
        self._proxy = proxy
        self._queue = queue

    @asynccontextmanager
    async def replaying(self, letter_id: str) -> AsyncIterator[asyncio.Task[str]]:
        """What happens inside happens before the replay is sent again."""
        self._proxy.rule = self._lose_the_first
        self._proxy.may_lose.clear()
        task = asyncio.create_task(self._queue.replay_dead_letter(letter_id))
        await wait_until(lambda: self._proxy.broken)
        try:
            yield task
        finally:
            self._proxy.may_lose.set()

    def _lose_the_first(self, words: list[bytes]) -> str | None:
        is_first = not self._proxy.broken and runs(words, "replayDeadLetter")
        return "lose" if is_first else None


@pytest.fixture
async def far(server, prefix):
    async with Proxy(server.port) as proxy, Queue(DLQ, connection=proxy.url, prefix=prefix) as dlq:
        yield FarLetters(proxy, dlq)


async def test_a_replay_whose_job_has_left_no_trace_has_succeeded(side, far):
    """Neither the job nor the events about it are there when the replay is sent again."""
    await side.bury("charge")
    ran: list[str] = []
    async with far.replaying("1") as task:
        options = {"connection": side.url, "prefix": side.prefix, "remove_on_complete": True}
        async with Worker("orders", lambda job: ran.append(job.id), **options) as worker:
            await wait_until(lambda: ran)
            await worker.close()
        await side.orders.trim_events(0)
        assert await side.orders.get_job(ran[0]) is None

    assert await task == ran[0]


async def test_a_replayed_member_that_keeps_its_id_is_named_although_the_reply_was_lost(side, far):
    """It blocks its group, so it comes back as the member that the group knows."""
    async with FlowProducer(connection=side.url, prefix=side.prefix) as flow:
        node = await flow.add_group(
            "order",
            [
                GroupJob("reserve", queue_name="orders", key="a", pivot=True),
                GroupJob("charge", queue_name="orders", key="b", after=["a"], attempts=1),
            ],
        )
    async with side.failing(refuse_charges):
        await side.letters(1)

    async with far.replaying("1") as task:
        pass

    assert await task == node.jobs[1].id
    assert [job.id for job in await side.orders.get_waiting()] == [await task]


async def refuse_charges(job) -> None:
    if job.name == "charge":
        raise ConnectionError("Connection refused")


async def test_bulk_slices_whose_replies_get_lost_count_right(side, cut, prefix):
    """DLQ-29: each slice is done once, however often it is sent."""
    cutter, url = cut
    await forge(side.client, prefix, DLQ, 450)
    async with Queue(DLQ, connection=url, prefix=prefix) as dlq:
        await dlq.get_dead_letter_count()

        def cut_the_next(now) -> None:
            cutter.bytes_until_cut = 0 if now.done < 300 else None

        assert await dlq.replay_all_dead_letters(on_progress=cut_the_next) == 450

    assert cutter.connections >= 3
    assert await side.client.llen(f"{prefix}:orders:wait") == 450
    assert await side.dlq.get_dead_letter_count() == 0


async def test_a_full_server_still_takes_dead_letters_and_purges(start_server):
    """Failing and purging go on; adding back has to wait."""
    server = start_server()
    options = {"connection": server.url, "prefix": "t"}
    async with Queue("orders", **options) as orders, Queue(DLQ, **options) as dlq:
        for number in range(3):
            await orders.add("charge", {"n": number, "text": "x" * 1000})
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(server.url)
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", 1_000_000)

        async def all_there() -> bool:
            return await dlq.get_dead_letter_count() == 3

        async with Worker("orders", refuse, dead_letter_queue=DLQ, **options):
            await wait_until(all_there)
        with pytest.raises(ServerOutOfMemoryError):
            await dlq.replay_dead_letter("1")
        assert await dlq.purge_dead_letters() == 3
        await client.aclose()


async def test_listeners_read_the_event_in_snake_case(side):
    """DLQ-11."""
    async with QueueEvents("orders", connection=side.url, prefix=side.prefix) as events:
        heard = []
        events.on("deadLettered", heard.append)
        job = await side.orders.add("charge", {"n": 1})
        async with side.failing():
            await wait_until(lambda: heard)

    (event,) = heard
    assert event.job_id == job.id
    told = {name: event.data[name] for name in ("queue", "dead_letter_queue")}
    assert told == {"queue": "orders", "dead_letter_queue": DLQ}
    assert event.data["dead_letter_job_id"] == "1"
    assert event.data["failed_reason"] == "ConnectionError: Connection refused"


async def test_sources_that_are_no_names_are_refused(side):
    """DLQ-22."""
    letter = await side.dlq.add("x", {"_dlqMeta": {"sourceQueue": ""}})

    with pytest.raises(DeadLetterSourceError):
        await side.dlq.replay_dead_letter(letter.id)
