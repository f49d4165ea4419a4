"""A worker that serves all partitions of a queue, with one budget."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import Counter, defaultdict

import pytest

from tests.counting import counting
from tests.helpers import let_pass, wait_until
from tests.servers import Cluster
from toril import NewJob, Queue, RateLimit, UnrecoverableError, Worker
from toril.errors import (
    CrossSlotError,
    InvalidNameError,
    InvalidOptionError,
    PartitionMismatchError,
    ServerError,
)
from toril.protocol.partitioning import home_of
from toril.worker.partitions import TURN_S, Budget


@pytest.fixture
def options(url, prefix) -> dict:
    return {"connection": url, "prefix": prefix, "partitions": 4}


class Ledger:
    """A handler that writes down what runs, and how much at once."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.ran: list = []
        self.running = 0
        self.most = 0
        self.pause_s = pause_s
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, job) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.pause_s)
        await self.may_end.wait()
        self.ran.append((job.queue_name, job.lane, job.data.get("n")))
        self.running -= 1
        return job.data.get("n")


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_everything_runs_with_one_budget(options, concurrency):
    ledger = Ledger(0.001)
    ledger.may_end.clear()
    async with Queue("mail", **options) as queue:
        await queue.add_bulk([NewJob("x", {"n": n}) for n in range(1000)])
        async with Worker("mail", ledger, concurrency=concurrency, **options):
            # A slow server would bring the next ones when the first have ended.
            await wait_until(lambda: ledger.running == concurrency)
            ledger.may_end.set()
            if concurrency == 50:
                assert await queue.wait_until_empty(timeout=30_000)
            else:
                await wait_until(lambda: len({name for name, _, _ in ledger.ran}) == 4, 120)

        assert ledger.most == concurrency
        assert len({queue_name for queue_name, _, _ in ledger.ran}) == 4
        if concurrency == 50:
            assert sorted(n for _, _, n in ledger.ran) == list(range(1000))
            assert await queue.get_completed_count() == 1000


async def test_connections_and_threads_do_not_grow_with_each_partition(url, prefix, client):
    """One that waits for each partition, by which others know the worker; the rest is shared."""
    threads = threading.active_count()
    before = {one["id"] for one in await client.client_list()}
    ledger = Ledger(0.001)
    options = {"connection": url, "prefix": prefix, "partitions": 16}
    async with (
        Queue("mail", **options) as queue,
        Worker("mail", ledger, concurrency=50, **options),
    ):
        await queue.add_bulk([NewJob("x", {"n": n}, lane=f"l{n % 100}") for n in range(1000)])
        assert await queue.wait_until_empty(timeout=60_000)
        assert len(ledger.ran) == 1000

        async def lines() -> list[dict[str, str]]:
            found = [one for one in await client.client_list() if one["id"] not in before]
            return found if any(one["cmd"] == "blpop" for one in found) else []

        opened = await wait_until(lines, message="the lease waits: its thread may begin late")
        named = [one for one in opened if one["name"]]
        waiting = [one["name"] for one in named if not one["name"].endswith(":qe")]
        assert len(waiting) == 16, "BullMQ's getWorkers finds it in each partition"
        assert len(set(waiting)) == 16
        assert sum(one["cmd"] == "blpop" for one in opened) == 1
        # The worker shares four among its partitions; the queue has some of its own.
        assert len(opened) - len(named) <= 1 + 4 + 16
        assert threading.active_count() - threads <= 2


async def test_a_busy_partition_starves_no_other(options):
    """All room is taken when the others get their jobs."""
    ledger = Ledger(0.005)
    async with Queue("mail", **options) as queue:
        busy, *others = queue.partitions
        await busy.add_bulk([NewJob("busy", {"n": n}) for n in range(3000)])
        async with Worker("mail", ledger, concurrency=4, **options):
            await wait_until(lambda: len(ledger.ran) > 20)
            for number, part in enumerate(others, 1):
                await part.add("rare", {"n": -number})
                before = len(ledger.ran)
                await wait_until(lambda n=-number: n in [one for _, _, one in ledger.ran], 60)
                place = [n for _, _, n in ledger.ran].index(-number)
                assert place - before < 400


class Hand:
    """A pump as the budget knows it."""

    def __init__(self, budget: Budget, load: int = 0) -> None:
        self.load, self.is_hungry, self.has_its_turn = load, True, False
        budget.join(self)  # type: ignore[arg-type]

    def begin_turn(self) -> None:
        self.has_its_turn = True


async def test_a_partition_that_gets_what_others_leave_has_no_turn():
    """In a turn it would take what is owed to them, again and again."""
    budget = Budget(4)
    rare, busy = Hand(budget), Hand(budget, load=4)
    assert budget.grant(rare) == 0

    busy.load = 2  # two have ended, and they are owed to the other
    assert budget.grant(busy) == 0
    busy.load = 0
    assert budget.grant(busy) == 2
    budget.served(busy)
    assert not busy.has_its_turn

    busy.load = 2
    assert budget.grant(busy) == 0
    assert budget.grant(rare) == 2
    budget.served(rare)
    assert rare.has_its_turn


async def test_two_busy_partitions_share_the_room(options):
    ledger = Ledger(0.005)
    async with Queue("mail", **options) as queue:
        first, second, *_ = queue.partitions
        await first.add_bulk([NewJob("x", {"n": n}) for n in range(2000)])
        async with Worker("mail", ledger, concurrency=10, **options):
            await wait_until(lambda: len(ledger.ran) > 100)
            ledger.may_end.clear()  # the first must not run out while the second is filled
            await second.add_bulk([NewJob("x", {"n": n}) for n in range(2000)])
            ledger.may_end.set()
            await wait_until(lambda: len({name for name, _, _ in ledger.ran}) == 2)
            begin = len(ledger.ran) + 100
            # Several turns of each: one in which the machine stood still brings nobody anything.
            await wait_until(lambda: len(ledger.ran) > begin + 1200, 60)
            counts = Counter(name for name, _, _ in ledger.ran[begin : begin + 1200])
        assert min(counts.values()) > 360, counts


async def test_an_idle_worker_hears_of_a_job_in_any_partition(options):
    """With less room than partitions; a wait at the server lasts for half a minute here."""
    ledger = Ledger()
    async with (
        Queue("mail", **options) as queue,
        Worker("mail", ledger, concurrency=1, drain_delay=30_000, **options),
    ):
        for count in range(1, 13):
            await queue.partitions[count % 4].add("x", {"n": count})
            await wait_until(lambda count=count: len(ledger.ran) == count, 60)
            if count == 4:
                await queue.partitions[1].add("x", {"n": 0}, delay=100)
                await wait_until(lambda: len(ledger.ran) == 5, 60)
                ledger.ran.pop()


async def test_a_full_worker_leaves_what_comes_to_others(options):
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(job):
        started.set()
        await go_on.wait()

    ledger = Ledger()
    async with (
        Queue("mail", **options) as queue,
        Worker("mail", slow, concurrency=1, drain_delay=30_000, **options),
    ):
        await queue.partitions[0].add("first")
        await asyncio.wait_for(started.wait(), 60)
        try:
            async with Worker("mail", ledger, concurrency=1, drain_delay=30_000, **options):
                for count in range(1, 13):
                    await queue.partitions[count % 4].add("x", {"n": count})
                    await wait_until(lambda count=count: len(ledger.ran) == count, 60)
                await queue.partitions[2].add("x", {"n": 0}, delay=100)
                await wait_until(lambda: len(ledger.ran) == 13, 60)
        finally:
            go_on.set()


async def test_lanes_keep_their_order(options):
    ledger = Ledger(0.001)
    running = defaultdict(int)

    async def handle(job):
        running[job.lane] += 1
        assert running[job.lane] == 1
        await ledger(job)
        running[job.lane] -= 1

    async with Queue("mail", **options) as queue:
        given = [NewJob("x", {"n": n}, lane=f"user-{n % 20}") for n in range(400)]
        await queue.add_bulk(given)
        async with Worker("mail", handle, concurrency=30, **options):
            assert await queue.wait_until_empty(timeout=30_000)

    lanes = defaultdict(list)
    for name, lane, n in ledger.ran:
        assert name == f"{{mail-{home_of(lane, 4)}}}"
        lanes[lane].append(n)
    assert all(order == sorted(order) for order in lanes.values())
    assert len(ledger.ran) == 400


async def test_listeners_hear_of_the_whole(options):
    heard = Counter()
    async with Queue("mail", **options) as queue:
        await queue.add_bulk([NewJob("x") for _ in range(300)])
        worker = Worker("mail", Ledger(), concurrency=20, worker_name="w", **options)
        for event in ("ready", "active", "completed", "closing", "closed", "drained"):
            worker.on(event, lambda *_, event=event: heard.update([event]))
        async with worker:
            assert worker.is_running
            assert await queue.wait_until_empty(timeout=60_000)
            await wait_until(lambda: heard["completed"] == 300)
            assert worker.current_job() is None
            assert worker.server_error is None

            async def is_listed() -> bool:
                return [one.name for one in await queue.get_workers()] == ["w"]

            await wait_until(is_listed)
        assert heard["active"] == 300
        assert (heard["ready"], heard["closing"], heard["closed"]) == (1, 1, 1)
        assert heard["drained"] >= 1


@pytest.mark.usefixtures("patient_end")
async def test_pausing_and_closing_hold_for_all_partitions(options):
    started, go_on = Counter(), asyncio.Event()

    async def slow(job):
        started.update([job.queue_name])
        await go_on.wait()

    async with Queue("mail", **options) as queue:
        worker = Worker("mail", slow, concurrency=8, **options)
        worker.pause()
        async with worker:
            await queue.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(40)])
            await let_pass(0.1, "a paused worker takes nothing")
            assert not started
            worker.resume()
            await wait_until(lambda: started.total() == 8)
            assert worker.is_processing
            assert len(worker.current_jobs) == 8
            await worker.close(timeout=0)
        assert await queue.get_active_count() == 0
        assert await queue.get_waiting_count() == 40


async def test_a_wrong_number_of_partitions_ends_the_worker(options):
    async with Queue("mail", **options) as queue:
        await queue.add("x")
    worker = Worker("mail", Ledger(), **{**options, "partitions": 8})

    with pytest.raises(PartitionMismatchError, match="has 4 partitions"):
        await worker.run()

    assert not worker.is_running


async def test_dead_letters_go_to_the_partition_of_the_same_number(options):
    async def fail(job):
        raise UnrecoverableError("no")

    async with Queue("mail", **options) as queue, Queue("{mail}-dlq", **options) as letters:
        await queue.add_bulk([NewJob("x", {"n": n}, job_id=f"j-{n}") for n in range(40)])
        worker = Worker("mail", fail, concurrency=9, dead_letter_queue="{mail}-dlq", **options)
        async with worker:
            assert await queue.wait_until_empty(timeout=60_000)
            await wait_until(lambda: worker.dead_lettered == 40)

        assert await letters.get_dead_letter_count() == 40
        assert await queue.get_dead_lettered_total() == 40
        (group,) = await letters.get_dead_letter_summary()
        assert group.count == 40
        page = await letters.get_dead_letter_jobs(0, 9)
        assert len(page) == 10
        assert all(job.queue_name == f"{{mail-{job.queue_name[6]}}}-dlq" for job in page)
        # Partitions number their letters themselves, and so there are several of the same id.
        with pytest.raises(InvalidNameError, match=r"say which is meant: queue.partitions\[0\]"):
            await letters.replay_dead_letter("1")
        source = await letters.partitions[0].replay_dead_letter("1")
        assert await queue.partitions[0].get_state(source) == "waiting"
        assert await letters.replay_all_dead_letters() == 39
        assert await queue.get_waiting_count() == 40


async def test_a_limit_is_shared_out(options):
    ledger = Ledger()
    limiter = RateLimit(8, 60_000)
    async with Queue("mail", **options) as queue:
        await queue.add_bulk([NewJob("x", {"n": n}, job_id=f"j-{n}") for n in range(200)])
        async with Worker("mail", ledger, concurrency=50, limiter=limiter, **options):
            await wait_until(lambda: len(ledger.ran) == 8)
            await let_pass(0.2, "the limit holds the others back")
        assert len(ledger.ran) == 8
        await queue.obliterate(force=True)


@pytest.mark.parametrize("wrong", [0, -1, 2000, "4", None])
async def test_what_cannot_be_is_refused(wrong, url):
    with pytest.raises(InvalidOptionError, match="partitions"):
        Worker("mail", Ledger(), connection=url, partitions=wrong)


async def test_on_a_cluster_every_node_has_its_share(cluster):
    prefix = f"t{secrets.token_hex(4)}"
    ledger = Ledger()
    options = {
        "connection": cluster.url.replace("redis://", "redis+cluster://"),
        "prefix": prefix,
        "partitions": 12,
    }
    async with Queue("mail", **options) as queue:
        owners = Counter(
            cluster.nodes.index(cluster.owner(cluster.slot_of(part.keys.wait)))
            for part in queue.partitions
        )
        assert len(owners) == 3
        jobs = await queue.add_bulk([NewJob("x", {"n": n}) for n in range(1200)])
        jobs += await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(1200, 1400)))
        assert await queue.get_waiting_count() == 1400
        assert len(await queue.get_waiting(0, 49)) == 50
        async with Worker("mail", ledger, concurrency=40, **options):
            assert await queue.wait_until_empty(timeout=30_000)
            assert await queue.wait_for(jobs[77].id, timeout=60_000) == 77
        assert sorted(n for _, _, n in ledger.ran) == list(range(1400))
        with pytest.raises(CrossSlotError):
            Worker("mail", ledger, dead_letter_queue="mail-dlq", **options)
        async with Worker("mail", ledger, dead_letter_queue="{mail}-dlq", **options):
            pass
        await queue.obliterate(force=True)


@pytest.mark.first
async def test_a_node_that_is_gone_takes_no_room_from_the_others():
    """The calls to it asked for all the room there was, and kept it until it was back."""
    durable = {"appendonly": "yes", "appendfsync": "always"}
    with Cluster({"cluster-require-full-coverage": "no", **durable}) as cluster:
        options = {
            "connection": cluster.url.replace("redis://", "redis+cluster://"),
            "partitions": 12,
        }
        ledger = Ledger()
        async with (
            Queue("mail", **options) as queue,
            Worker("mail", ledger, concurrency=4, **options) as worker,
        ):
            first = queue.partitions[0]
            gone = cluster.owner(cluster.slot_of(first.keys.wait))
            here = [
                part
                for part in queue.partitions
                if cluster.owner(cluster.slot_of(part.keys.wait)) is not gone
            ]
            late = await first.add("x", {"n": "late"}, delay=3000)
            gone.kill()
            await wait_until(lambda: worker.server_error is not None)

            for n in range(20):
                await here[n % len(here)].add("x", {"n": n})
            await wait_until(lambda: len(ledger.ran) >= 20)

            # What comes when it is back has no room either, and is left for others.
            ledger.may_end.clear()
            for part in here[:4]:
                await part.add("x", {"n": 20})
            await wait_until(lambda: ledger.running == 4)
            gone.start()

            async def has_come() -> bool:
                with contextlib.suppress(ServerError):  # the node looks for the others first
                    return (await first.get_job(late.id)).attempts_started > 0
                return False

            try:
                await wait_until(has_come)
                await wait_until(lambda: worker.server_error is None)
            finally:
                ledger.may_end.set()
            await wait_until(lambda: len(ledger.ran) == 25)
            assert ledger.most == 4


async def test_one_queue_takes_the_letters_of_all_partitions_of_a_cluster(cluster):
    where = {
        "connection": cluster.url.replace("redis://", "redis+cluster://"),
        "prefix": f"t{secrets.token_hex(4)}",
    }

    async def fail(job):
        raise UnrecoverableError("no")

    async with (
        Queue("mail", partitions=6, **where) as queue,
        Queue("{graves}", **where) as graves,
        Worker("mail", fail, dead_letter_queue="{graves}", partitions=6, **where),
    ):
        await queue.add_bulk([NewJob("x", {"n": n}, job_id=f"j-{n}") for n in range(60)])
        await wait_until(lambda: _has_letters(graves, 60))
        letters = await graves.get_dead_letter_jobs(0, 59)
        assert sorted(letter.data["n"] for letter in letters) == list(range(60))
        assert len({letter.dead_letter.source_queue for letter in letters}) == 6
        await graves.obliterate(force=True)
        await queue.obliterate(force=True)


async def _has_letters(graves: Queue, number: int) -> bool:
    return await graves.get_dead_letter_count() == number


async def test_markers_are_not_passed_to_and_fro_while_the_worker_is_full(start_server):
    server = start_server(tcp=True)
    options = {"connection": server.url, "partitions": 16}
    ledger = Ledger()
    async with Queue("mail", **options) as queue:
        await queue.add_bulk([NewJob("x", {"n": n}) for n in range(8000)])
        began = time.monotonic()
        with counting(server) as counted:
            async with Worker("mail", ledger, concurrency=100, **options):
                await wait_until(lambda: len(ledger.ran) == 8000)
        turns = (time.monotonic() - began) / TURN_S + 1

    sent = counted.commands
    assert sent["BZPOPMIN"] <= 16 * turns
    assert sent["FCALL"] <= 8000 / 20 + 4 * 16 * turns


async def test_a_worker_waits_for_a_server_that_is_not_there_yet(start_server):
    server = start_server(tcp=True)
    server.stop()
    ledger = Ledger()
    options = {"connection": server.url, "partitions": 3}
    async with Worker("mail", ledger, concurrency=2, **options) as worker:
        assert worker.is_running
        assert worker.server_error is not None
        server.start()
        async with Queue("mail", **options) as queue:
            await queue.add_bulk([NewJob("x", {"n": n}) for n in range(30)])
            await wait_until(lambda: len(ledger.ran) == 30, 60)
        assert worker.server_error is None


async def test_a_job_that_runs_is_cancelled(options):
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(job):
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with (
        Queue("mail", **options) as queue,
        Worker("mail", slow, concurrency=2, **options),
    ):
        job = await queue.add("x")
        await asyncio.wait_for(started.wait(), 60)
        await queue.cancel(job.id, "not wanted")
        await asyncio.wait_for(stopped.wait(), 60)
        await wait_until(queue.get_failed_count)


async def test_a_worker_that_is_closed_while_it_starts_ends_without_an_error(options):
    worker = Worker("mail", lambda job: None, **options)
    agree, asked, may_go_on = worker._agree, asyncio.Event(), asyncio.Event()

    async def agree_later():
        await agree()
        asked.set()
        await may_go_on.wait()

    worker._agree = agree_later
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(asked.wait(), 60)
    closing = asyncio.create_task(worker.close())
    await wait_until(lambda: worker._fate.is_closing)
    may_go_on.set()

    await asyncio.wait_for(closing, 60)
    await asyncio.wait_for(running, 60)


async def test_one_that_is_closed_while_it_starts_leaves_nothing_that_asks_again(
    start_server, prefix
):
    server = start_server()
    server.freeze()
    try:
        worker = Worker("q", Ledger(), connection=server.unix_url, prefix=prefix, partitions=2)
        starting = asyncio.create_task(worker.start())
        await let_pass(0.1, "it asks the server, which is silent")
        await worker.close(timeout=0)
    finally:
        server.thaw()
    await asyncio.gather(starting, return_exceptions=True)

    assert worker._starting is None
