"""What a call with one job costs the server, counted in commands: exact on any machine."""

from __future__ import annotations

import msgspec
import pytest
import redis

from tests.servers import Server
from toril import NewJob, Queue
from toril.protocol import leasing, settling
from toril.protocol.settling import Outcome, Settled, Take

PLAIN_ADD = {
    *("fcall", "exists", "hgetall", "hset", "incrby", "lpush", "set", "time", "xadd", "zadd"),
}


@pytest.fixture
def server(start_server) -> Server:
    return start_server(tcp=True)


OF_THE_TEST = {"info", "config|resetstat", "hello", "client|setinfo"}


def counted(server: Server) -> dict[str, int]:
    with server.client() as raw:
        stats = raw.info("commandstats")
    names = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}
    return {name: calls for name, calls in names.items() if name not in OF_THE_TEST}


def start_counting(server: Server) -> None:
    with server.client() as raw:
        raw.config_resetstat()


class Hand:
    """Settles and takes one job at a time, as the pump does at a concurrency of one."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._request = 0
        self.held: list[Settled] = []

    async def settle_and_take(self, count: int = 1) -> list[str]:
        self._request += 1
        token = f"w:{self._request}"
        take = Take(count=count, token=token, lock_ms=30_000)
        command = settling.settle(
            self._queue.keys, self.held, take, flight="w-0", request=self._request
        )
        reply = await self._queue._connection.run(command)
        assert all(result == 0 for result in reply.results)
        ids = [job[-1].decode() for job in reply.jobs]
        done = Outcome(kind="completed", payloads=(b"1",))
        self.held = [Settled(job_id, token, done, None) for job_id in ids]  # type: ignore[arg-type]
        return ids


async def test_a_call_that_settles_one_job_and_takes_one(server):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        added = [(await queue.add("x", {"n": n})).id for n in range(3)]
        assert await hand.settle_and_take() == added[:1]

        start_counting(server)
        taken = await hand.settle_and_take()

        assert counted(server) == {
            "fcall": 1,
            "time": 1,
            "hget": 1,
            "hmget": 1,
            "mget": 1,
            "exists": 2,  # what is read
            "lrem": 1,
            "zadd": 2,
            "xadd": 2,
            "hset": 3,
            "del": 1,
            "lmove": 1,
            "hgetall": 2,
            "set": 1,  # the next job
        }
        assert taken == added[1:2]
        assert await queue.get_job_counts("completed") == {"completed": 1}


async def test_delayed_jobs_are_asked_for_only_where_there_are_some(server):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        for n in range(3):
            await queue.add("x", {"n": n})
        await queue.add("later", {}, delay=3_600_000)
        await hand.settle_and_take()

        start_counting(server)
        await hand.settle_and_take()

        found = counted(server)
        assert (found["zrangebyscore"], found["exists"]) == (1, 3)


@pytest.mark.parametrize("lane", [None, "a"], ids=["plain", "a fraction in a lane"])
async def test_a_take_tells_one_more_worker_what_is_due_once(server, lane):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        await queue.add("later", {}, delay=3_600_000, lane=lane)
        if lane is not None:
            with server.client() as raw:
                delayed = f"{queue.keys.base}:lanes:delayed"
                raw.zincrby(delayed, 0.3, raw.zrange(delayed, 0, 0)[0])
        found = []
        for _ in range(2):
            start_counting(server)
            assert await hand.settle_and_take() == []
            found.append(counted(server))

        assert (found[0]["hset"], found[0]["zadd"]) == (2, 1)
        assert (found[1]["hset"], "zadd" in found[1]) == (1, False)


async def test_the_stream_is_trimmed_with_the_event_of_the_first_outcome(server):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        for n in range(2):
            await queue.add("x", {"n": n})
        with server.client() as raw:
            raw.hset(queue.keys.meta, "opts.maxLenEvents", 5)
            for n in range(1_000):
                raw.xadd(queue.keys.events, {"event": "old", "n": n})
        await hand.settle_and_take()

        await hand.settle_and_take()

        with server.client() as raw:
            assert raw.xlen(queue.keys.events) < 200  # nodes of a stream hold 100 entries


async def test_a_cancel_trims_the_stream_with_its_event(server):
    async with Queue("q", connection=server.url) as queue:
        job = await queue.add("x")

        start_counting(server)
        await queue.cancel(job.id)

        found = counted(server)
        assert (found["xadd"], "xtrim" in found) == (1, False)


async def test_one_job_is_taken_from_the_priorities_when_the_list_is_empty(server):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        second = await queue.add("x", priority=2)
        first = await queue.add("x", priority=1)

        assert await hand.settle_and_take() == [first.id]
        assert await hand.settle_and_take() == [second.id]
        assert await hand.settle_and_take() == []
        assert await queue.get_job_counts("completed", "active") == {"completed": 2, "active": 0}


async def test_a_worker_is_told_once_of_a_lane_that_became_ready(server):
    """Whoever takes a job has told the next worker, and whoever tells one has read the settings."""
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        jobs = [await queue.add("x", {"n": n}, lane="a", delay=60_000) for n in range(2)]

        start_counting(server)
        await queue.promote(jobs[0].id)
        found = counted(server)
        assert (found["hgetall"], found["zadd"]) == (1, 5)
        await queue.promote(jobs[1].id)
        assert await hand.settle_and_take() == [jobs[0].id]

        start_counting(server)
        assert await hand.settle_and_take() == [jobs[1].id]
        found = counted(server)
        assert (found["hgetall"], found["zadd"]) == (2, 3)
        assert found["hget"] == 1  # what it remembers of the last call, and nobody's hold of a lane


async def test_an_add_of_one_job(server):
    async with Queue("q", connection=server.url) as queue:
        await queue.add("x", {"n": 0})

        start_counting(server)
        await queue.add("x", {"n": 1})

        assert counted(server) == {**dict.fromkeys(PLAIN_ADD, 1), "xadd": 2}


async def test_an_add_of_many_jobs(server):
    async with Queue("q", connection=server.url) as queue:
        await queue.add("x", {"n": 0})

        start_counting(server)
        await queue.add_bulk([NewJob("x", {"n": n}) for n in range(10)])

        found = counted(server)
        assert (found["exists"], found["lpush"]) == (1, 2)
        assert found == {**dict.fromkeys(PLAIN_ADD, 1), "hset": 10, "xadd": 20, "lpush": 2}


async def test_jobs_that_are_added_together_wait_in_their_order(server):
    async with Queue("q", connection=server.url) as queue:
        names = ("a", "b", "first", "c", "urgent", "d")
        jobs = await queue.add_bulk(
            [
                NewJob(name, lifo=name == "first", priority=1 if name == "urgent" else None)
                for name in names
            ]
        )
        name_of = {job.id: job.name for job in jobs}

        hand = Hand(queue)
        taken = [name_of[(await hand.settle_and_take())[0]] for _ in names]

        assert taken == ["first", "a", "b", "c", "d", "urgent"]


async def test_an_id_that_comes_twice_among_many_is_added_once(server):
    async with Queue("q", connection=server.url) as queue:
        await queue.add_bulk([NewJob(name, job_id=name) for name in ("a", "b", "a")])
        await queue.add_bulk([NewJob(name, job_id=name) for name in ("c", "b", "d")])

        assert await queue.get_job_ids("waiting") == {"waiting": ["a", "b", "c", "d"]}


async def test_jobs_before_one_that_the_server_refuses_are_in_the_queue(server):
    async with Queue("q", connection=server.url) as queue:
        with server.client() as raw:
            raw.set(queue.keys.prioritized, "damaged")
            raw.delete(queue.keys.marker)

            with pytest.raises(Exception, match=r"WRONGTYPE|wrong kind"):
                await queue.add_bulk(
                    [*(NewJob(name, job_id=name) for name in "abc"), NewJob("d", priority=1)]
                )

            assert raw.lrange(queue.keys.wait, 0, -1) == ["c", "b", "a"]
            assert raw.exists(queue.keys.marker)


async def test_no_job_is_written_if_the_list_of_waiting_jobs_is_damaged(server):
    async with Queue("q", connection=server.url) as queue:
        with server.client() as raw:
            raw.set(queue.keys.wait, "damaged")

            with pytest.raises(Exception, match=r"WRONGTYPE|wrong kind"):
                await queue.add_bulk([NewJob(name, job_id=name) for name in "ab"])

            assert raw.exists(queue.keys.job("a"), queue.keys.job("b")) == 0


async def test_a_job_that_is_marked_as_stalled_loses_the_mark_with_its_end(server):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        job = await queue.add("x")
        await hand.settle_and_take()
        with server.client() as raw:
            raw.sadd(queue.keys.stalled, job.id, "another")

            await hand.settle_and_take()

            assert raw.smembers(queue.keys.stalled) == {"another"}


async def test_children_are_found_beside_a_mark_of_stalled_jobs(server):
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        job = await queue.add("x")
        await hand.settle_and_take()
        with server.client() as raw:
            raw.sadd(queue.keys.stalled, "another")
            raw.sadd(f"{queue.keys.job(job.id)}:dependencies", "bull:q:child")

            with pytest.raises(AssertionError):
                await hand.settle_and_take()

            assert raw.lrange(queue.keys.active, 0, 9) == [job.id]


async def test_what_an_earlier_version_remembers_of_a_call_is_understood(server):
    """Its records have the number inside, and none behind them."""
    old = msgspec.msgpack.encode(
        {
            "request": 3,
            "token": "o:3",
            "at": 1,
            "results": [0],
            "taken": ["gone"],
            "rate_limit_ms": 0,
            "next_due_ms": 0,
        }
    )
    async with Queue("q", connection=server.url) as queue:
        hand = Hand(queue)
        job = await queue.add("x")
        with redis.Redis.from_url(server.url) as raw:
            raw.hset(queue.keys.own("replies"), mapping={"o-0": old})

            assert await hand.settle_and_take() == [job.id]
            await queue._connection.follow(
                leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1)
            )

            assert raw.hkeys(queue.keys.own("replies")) == [b"w-0"]
            record = raw.hget(queue.keys.own("replies"), "w-0")
            assert record.endswith(b"0000000000000001")
            assert msgspec.msgpack.decode(record[:-16])["taken"] == [job.id]
