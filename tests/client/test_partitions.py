"""A queue of several partitions, read and steered as one."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import Counter

import pytest

from tests.helpers import wait_until
from toril import (
    Deduplication,
    FlowJob,
    FlowProducer,
    ManualWorker,
    NewJob,
    Queue,
    QueueEvents,
    RateLimit,
    sync,
)
from toril.client import growing
from toril.client import partitions as partitions_module
from toril.client.partitions import PartitionedQueue
from toril.doctor import examine
from toril.errors import (
    InvalidOptionError,
    JobLockedError,
    JobNotFoundError,
    NotPausedError,
    PartitionMismatchError,
    RefusedError,
)
from toril.protocol import lanes, partitioning
from toril.protocol.partitioning import Numbers
from toril.sync.partitions import PartitionedQueue as BlockingPartitionedQueue

MADE_OF_OTHERS = {
    *("default_job_options", "lanes", "dead_letters", "groups", "schedulers"),
    *(f"get_{state}" for state in ("active", "completed", "delayed", "failed", "prioritized")),
    *("get_waiting", "get_waiting_children", "remove_repeating_job"),
    *("get_active_count", "get_completed_count", "get_delayed_count", "get_failed_count"),
    *("get_prioritized_count", "get_waiting_children_count", "get_waiting_count"),
}
"""What calls other methods of the queue and has nothing to ask a server itself."""


@pytest.fixture
async def mail(make_queue):
    return make_queue("mail", partitions=4)


@pytest.mark.parametrize("kind", [PartitionedQueue, BlockingPartitionedQueue])
def test_every_method_of_a_queue_is_one_of_the_whole(kind):
    """None may work on the keys of a plain queue of that name by mistake."""
    plain = kind.__mro__[1]
    public = {name for name, _ in inspect.getmembers(plain) if not name.startswith("_")}

    own = {name for name in vars(kind) if not name.startswith("_")}

    assert public - own == MADE_OF_OTHERS
    passed_on = {"upsert_job_scheduler", "change_job_scheduler"}
    for name in own - passed_on - {"partitions", "get_dead_letter_summary"}:
        ours, theirs = (inspect.signature(getattr(one, name)) for one in (kind, plain))
        assert list(ours.parameters) == list(theirs.parameters), name


async def test_one_partition_is_the_plain_queue(make_queue, client):
    queue = make_queue("mail", partitions=1)

    job = await queue.add("x")

    assert type(queue) is Queue
    assert queue.partitions == [queue]
    assert await client.exists(queue.keys.job(job.id)) == 1
    assert await client.exists(queue.keys.own("partitions")) == 0


async def test_jobs_that_may_go_anywhere_are_spread(mail):
    jobs = [await mail.add("x", {"n": n}) for n in range(40)]
    jobs += await asyncio.gather(*(mail.add("x") for _ in range(400)))
    jobs += await mail.add_bulk([NewJob("x") for _ in range(1600)])

    per_queue = Counter(job.queue_name for job in jobs)
    assert sorted(per_queue) == ["{mail-0}", "{mail-1}", "{mail-2}", "{mail-3}"]
    assert min(per_queue.values()) >= 400
    assert await mail.get_waiting_count() == 2040
    assert len({job.id for job in jobs}) == 2040
    for job in jobs[::97]:
        assert job.id.endswith(f"-{job.queue_name[6]}")
        assert (await mail.get_job(job.id)).id == job.id
        assert await mail.get_state(job.id) == "waiting"


async def test_a_bulk_comes_back_in_its_order(mail):
    given = [NewJob("x", {"n": n}, **({"lane": f"l{n % 7}"} if n % 2 else {})) for n in range(1000)]

    jobs = await mail.add_bulk(given)

    assert [job.data["n"] for job in jobs] == list(range(1000))
    homes = {}
    for n, job in enumerate(jobs):
        if n % 2:
            homes.setdefault(f"l{n % 7}", set()).add(job.queue_name)
    assert all(len(queues) == 1 for queues in homes.values())
    assert sum([(await mail.get_lane(lane)).depth for lane in homes]) == 500


async def test_ids_and_deduplication_hold_over_all_partitions(mail):
    first = await mail.add("x", job_id="order-1")
    again = await mail.add("x", job_id="order-1")
    owner = await mail.add("x", deduplication=Deduplication("daily", ttl=60_000))
    (kept_out,) = await mail.add_bulk([NewJob("x", deduplication=Deduplication("daily"))])

    assert (again.id, again.duplicated) == (first.id, True)
    assert (kept_out.id, kept_out.duplicated) == (owner.id, True)
    assert await mail.get_deduplication_job_id("daily") == owner.id
    assert await mail.remove_deduplication_key("daily")
    assert not (await mail.add("x", deduplication=Deduplication("daily"))).duplicated
    assert (await mail.get_job("order-1")).id == "order-1"


async def test_a_job_that_somebody_added_to_a_partition_is_found(mail, make_queue):
    await mail.add("x")
    for number in range(4):
        await make_queue(f"{{mail-{number}}}").add("x", job_id=f"by-hand-{number}")

    found = [(await mail.get_job(f"by-hand-{number}")).queue_name for number in range(4)]

    assert found == ["{mail-0}", "{mail-1}", "{mail-2}", "{mail-3}"]
    await mail.cancel("by-hand-2")
    assert await mail.get_state("by-hand-2") == "failed"
    assert await mail.get_job("nowhere") is None
    with pytest.raises(JobNotFoundError):
        await mail.retry("nowhere")


async def test_lists_are_read_by_page(mail):
    jobs = await mail.add_bulk([NewJob("x", delay=1000 * n or None) for n in range(60)])
    jobs += [await mail.add("x", priority=1) for _ in range(11)]

    everything = await mail.get_jobs()
    pages = [await mail.get_jobs((), start, start + 9) for start in range(0, 80, 10)]
    delayed = await mail.get_job_ids("delayed", start=0, end=-1)

    assert {job.id for job in everything} == {job.id for job in jobs}
    assert [job.id for page in pages for job in page] == [job.id for job in everything]
    assert len(delayed["delayed"]) == 59
    assert len(await mail.get_prioritized(0, 3)) == 4
    assert await mail.get_counts_per_priority([0, 1]) == {0: 1, 1: 11}
    newest = await mail.get_delayed(0, 0, newest_first=True)
    assert len(newest) == 1


async def test_the_whole_is_paused_drained_cleaned_and_retried(mail):
    await mail.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(40)])
    seen: list[int] = []

    await mail.pause()
    assert await mail.is_paused()
    assert [await part.is_paused() for part in mail.partitions] == [True] * 4
    await mail.resume()
    assert not await mail.is_paused()
    for n in range(20):
        await mail.cancel(f"j-{n}")
    assert await mail.get_failed_count() == 20
    assert await mail.retry_all() == 20
    for n in range(10):
        await mail.cancel(f"j-{n}")
    assert len(await mail.clean("failed", limit=6)) == 6
    assert len(await mail.clean("failed")) == 4
    assert await mail.drain(on_progress=seen.append) == 30
    assert seen[-1] == 30
    with pytest.raises(NotPausedError):
        await mail.obliterate()
    await mail.obliterate(force=True)


async def test_a_limit_below_zero_is_refused_as_in_a_plain_queue(mail):
    with pytest.raises(InvalidOptionError, match="limit=-1"):
        await mail.clean("completed", limit=-1)
    with pytest.raises(InvalidOptionError, match="limit=-1"):
        await mail.clean_groups(limit=-1)


async def test_limits_are_shared_out(mail):
    await mail.set_global_concurrency(10)
    assert await mail.get_global_concurrency() == 10
    assert [await part.get_global_concurrency() for part in mail.partitions] == [3, 3, 2, 2]
    with pytest.raises(InvalidOptionError, match="4 is the smallest"):
        await mail.set_global_concurrency(3)
    await mail.remove_global_concurrency()
    assert await mail.get_global_concurrency() is None

    await mail.set_global_rate_limit(RateLimit(100, 1000))
    assert await mail.get_global_rate_limit() == RateLimit(100, 1000)
    await mail.rate_limit(60_000)
    assert await mail.get_rate_limit_ttl() > 0
    await mail.remove_rate_limit()
    await mail.remove_global_rate_limit()
    assert await mail.get_rate_limit_ttl() == 0


async def test_lanes_and_schedulers_of_the_whole(mail):
    for n in range(12):
        await mail.add("x", lane=f"user-{n}")
    assert sorted(await mail.get_lanes()) == sorted(f"user-{n}" for n in range(12))
    assert await mail.lanes.count() == 12
    await mail.lanes.pause("user-3")
    assert await mail.get_lanes(state="paused") == ["user-3"]
    assert await mail.drain_lane("user-4") == 1
    await mail.set_lane_concurrency(None, 3)

    for n in range(6):
        await mail.upsert_job_scheduler(f"s{n}", every=60_000 * (n + 1))
    every = await mail.get_job_schedulers()
    assert [one.next_at for one in every] == sorted(one.next_at for one in every)
    assert await mail.get_job_schedulers(0, 1) == every[:2]
    # One with a lane lives where its lane does.
    await mail.upsert_job_scheduler("s0", every=60_000, template=NewJob("x", lane="user-3"))
    assert await mail.get_job_scheduler_count() == 6
    await mail.add("x", repeat={"every": 3_600_000})
    assert await mail.remove_repeating_job("x", {"every": 3_600_000})
    assert await mail.remove_job_scheduler("s0")
    assert not await mail.remove_job_scheduler("s0")


async def test_every_process_must_say_the_same_number(mail, make_queue, client):
    await mail.add("x")

    for number in (2, 5, 16):
        other = make_queue("mail", partitions=number)
        for use in (other.add("x"), other.get_job_counts(), other.pause(), other.get_job("j")):
            with pytest.raises(PartitionMismatchError, match=f"has 4 .* was told {number}"):
                await use
    assert await client.get(mail.keys.own("partitions")) == "4"


async def test_whoever_only_reads_writes_no_number(mail, client):
    assert await mail.get_waiting_count() == 0
    assert await client.keys(f"{mail.keys.prefix}:*") == []


async def test_what_cannot_be_is_refused(make_queue, url):
    for partitions in (0, -1, 1025, "4", None, True):
        with pytest.raises(InvalidOptionError, match="partitions"):
            Queue("mail", connection=url, partitions=partitions)
    with pytest.raises(InvalidOptionError, match="hash tag"):
        Queue("mail", connection=url, prefix="{bull}", partitions=4)

    class Own(Queue):
        pass

    with pytest.raises(InvalidOptionError, match="subclass"):
        Own("mail", connection=url, partitions=4)


def test_a_blocking_queue_has_partitions_too(url, prefix):
    options = {"connection": url, "prefix": prefix, "partitions": 3}
    with sync.Queue("mail", **options) as mail:
        jobs = mail.add_bulk([NewJob("x") for _ in range(700)]) + [mail.add("x") for _ in range(9)]
        assert len({job.queue_name for job in jobs}) == 3
        assert mail.get_job_counts("waiting") == {"waiting": 709}
        assert len(mail.get_waiting(0, 99)) == 100
        assert mail.get_job(jobs[-1].id).id == jobs[-1].id
        with pytest.raises(PartitionMismatchError):
            sync.Queue("mail", connection=url, prefix=prefix, partitions=2).add("x")


async def test_dead_letters_of_the_whole(make_queue):
    letters = make_queue("{mail}-dlq", partitions=2)

    assert [part.name for part in letters.partitions] == ["{mail-0}-dlq", "{mail-1}-dlq"]
    assert await letters.get_dead_letter_count() == 0
    assert await letters.get_dead_letter_jobs() == []
    assert await letters.get_dead_letter_summary() == []
    assert await letters.purge_dead_letters() == 0


async def test_the_events_of_all_partitions_are_heard(mail, url, prefix):
    options = {"connection": url, "prefix": prefix, "partitions": 4}
    called = []
    async with QueueEvents("mail", **options) as events:
        events.on("added", called.append)
        jobs = await mail.add_bulk([NewJob("x", lane=f"l{n}") for n in range(40)])
        heard = set()
        while len(heard) < 40:
            event = await asyncio.wait_for(anext(events), 60)
            if event.name == "added":
                heard.add(event.job_id)
        await wait_until(lambda: len(called) == 40)
        assert heard == {job.id for job in jobs}
        waiting = asyncio.create_task(_rest_of(events))
        await asyncio.sleep(0)
    await asyncio.wait_for(waiting, 60)
    async with QueueEvents("mail", last_event_id="0", **options) as again:
        assert (await asyncio.wait_for(anext(again), 60)).id


async def _rest_of(events):
    async for _ in events:
        pass


def test_and_by_blocking_code(url, prefix):
    options = {"connection": url, "prefix": prefix, "partitions": 3}
    with sync.Queue("mail", **options) as mail, sync.QueueEvents("mail", **options) as events:
        jobs = {mail.add("x").id for _ in range(9)}
        heard = set()
        while len(heard) < 9:
            event = next(events)
            if event.name == "added":
                heard.add(event.job_id)
    assert heard == jobs


# ---------------------------------------------------------------------- growing


@pytest.fixture
def soon(monkeypatch):
    """Processes ask at every call whether the number is still the same."""
    monkeypatch.setattr(partitions_module, "AGREE_AGAIN_S", 0.0)


async def grow_at_once(queue, number, **options):
    return await growing.grow(queue._connection, queue.keys, number, grace_s=0.0, **options)


async def test_a_queue_grows_and_keeps_what_it_has(mail, make_queue, soon):
    before = await mail.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(40)])
    owner = await mail.add("x", deduplication=Deduplication("daily", ttl=600_000))

    assert await grow_at_once(mail, 16) == Numbers((4,), 16)

    with pytest.raises(PartitionMismatchError, match="has 16 partitions"):
        await mail.add("x")
    grown = make_queue("mail", partitions=16)
    assert await grown.get_waiting_count() == 41
    # What was there is found and is not added again, wherever it would go now.
    again = await grown.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(40)])
    assert all(job.duplicated for job in again)
    assert [job.queue_name for job in again] == [job.queue_name for job in before]
    assert (await grown.add("x", job_id="j-7")).duplicated
    assert (await grown.add("x", deduplication=Deduplication("daily"))).id == owner.id
    assert (await grown.adder.send(grown.adder.prepare(NewJob("x", job_id="j-9")))).is_duplicate
    new = await grown.add_bulk([NewJob("x", job_id=f"new-{n}") for n in range(200)])
    assert len({job.queue_name for job in new}) == 16
    assert await grown.get_waiting_count() == 241
    assert await grow_at_once(grown, 32) == Numbers((4, 16), 32)


async def test_while_it_grows_nothing_is_added(mail, make_queue, soon):
    await mail.add("x", lane="busy")
    began, told = asyncio.Event(), []

    def tell(words):
        told.append(words)
        began.set()

    growth = asyncio.create_task(grow_at_once(mail, 8, patience_s=20.0, tell=tell))
    await asyncio.wait_for(began.wait(), 60)
    with pytest.raises(PartitionMismatchError, match="grows from 4 to 8"):
        await mail.add("x")
    with pytest.raises(PartitionMismatchError):
        await make_queue("mail", partitions=8).add("x")
    assert (await mail.get_job_counts("waiting"))["waiting"] == 1, "it can be read"
    await wait_until(lambda: "1 lanes have jobs" in told)
    assert await mail.drain() == 1

    assert await growth == Numbers((4,), 8)


async def test_who_has_read_while_it_grows_adds_nothing_either(mail, make_queue):
    """What is read is believed for ten seconds; by then a lane may be in another partition."""
    await mail.add("x")
    grows = Numbers((), 4, 8, "g")
    await mail._connection.run(partitioning.swap(mail.keys, Numbers((), 4), grows))
    other = make_queue("mail", partitions=4)
    assert await other.get_waiting_count() == 1

    with pytest.raises(PartitionMismatchError, match="grows from 4 to 8"):
        await other.add("x", lane="a")
    with pytest.raises(PartitionMismatchError, match="grows from 4 to 8"):
        await other.add_bulk([NewJob("x", lane="a")])
    with pytest.raises(PartitionMismatchError, match="grows from 4 to 8"):
        await other.adder.send(other.adder.prepare(NewJob("x", lane="a")))

    assert await other.get_waiting_count() == 1


async def test_growing_breaks_off_and_goes_on(mail, soon):
    await mail.add("x", lane="busy")
    with pytest.raises(RefusedError, match="1 have jobs"):
        await grow_at_once(mail, 8, patience_s=0.01)
    with pytest.raises(RefusedError, match="already growing to 8 partitions"):
        await grow_at_once(mail, 12)
    await growing.stop_growing(mail._connection, mail.keys)
    await mail.add("x")
    await mail.drain()
    await mail.pause_lane("held")
    with pytest.raises(RefusedError, match="lanes held are stopped"):
        await grow_at_once(mail, 8, patience_s=0.01)
    await mail.resume_lane("held")

    assert await grow_at_once(mail, 8) == Numbers((4,), 8)


async def test_two_operators_grow_a_queue_at_once(mail, make_queue, soon):
    await mail.add("x", lane="busy")
    operators = [mail, make_queue("mail", partitions=4)]
    told: list[str] = []
    growths = [
        asyncio.create_task(grow_at_once(one, 8, patience_s=30.0, tell=told.append))
        for one in operators
    ]
    await wait_until(lambda: told.count("1 lanes have jobs") == 2)
    await mail.drain()

    assert await asyncio.gather(*growths) == [Numbers((4,), 8)] * 2
    assert await grow_at_once(mail, 8) == Numbers((4,), 8), "nothing is left to do"


async def test_of_two_operators_who_want_different_numbers_one_is_refused(mail, make_queue, soon):
    await mail.add("x")
    other = make_queue("mail", partitions=4)
    await other.get_waiting_count()  # both are connected: neither is over before the other begins

    ends = await asyncio.gather(
        grow_at_once(mail, 8), grow_at_once(other, 16), return_exceptions=True
    )

    grown = [end for end in ends if isinstance(end, Numbers)]
    refused = [end for end in ends if isinstance(end, RefusedError)]
    assert (len(grown), len(refused)) == (1, 1), ends
    assert await mail._connection.run(partitioning.read(mail.keys)) == grown[0]


async def test_one_who_waited_notices_that_the_growth_is_another_one(mail, soon):
    """Who began before it was stopped has not waited for those that added in between."""
    await mail.add("x", lane="busy")
    told: list[str] = []
    first = asyncio.create_task(grow_at_once(mail, 8, patience_s=30.0, tell=told.append))
    await wait_until(lambda: "1 lanes have jobs" in told)
    connection, read = mail._connection, partitioning.read(mail.keys)
    begun = await connection.run(read)
    assert begun.growth
    again = Numbers((), 4, 8, "another")
    assert await connection.run(partitioning.swap(mail.keys, begun, again)) == again

    with pytest.raises(RefusedError, match="somebody else is changing the partitions"):
        await first

    assert await connection.run(read) == again
    await mail.drain()
    assert await grow_at_once(mail, 8) == Numbers((4,), 8)


async def test_an_operator_who_is_killed_leaves_what_another_finishes(mail, url, prefix, soon):
    await mail.add("x", lane="busy")
    words = ["partitions", "grow", "mail", "8", "--yes", "--url", url, "--prefix", prefix]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "toril", *words, stdout=asyncio.subprocess.DEVNULL
    )
    read = partitioning.read(mail.keys)

    async def grows() -> bool:
        return (await mail._connection.run(read)).next == 8

    await wait_until(grows, 60)
    process.kill()
    await process.wait()
    with pytest.raises(PartitionMismatchError, match="grows from 4 to 8"):
        await mail.add("x")
    await mail.drain()

    assert await grow_at_once(mail, 8) == Numbers((4,), 8)


async def test_new_partitions_are_like_all_others(mail, make_queue, soon):
    """A paused queue ran what came to its new partitions, and their lanes had other limits."""
    await mail.add("x")
    await mail.pause()
    await mail.set_lane_concurrency(None, 3)
    await mail.set_lane_rate_limit(None, RateLimit(10, 5000))

    await grow_at_once(mail, 6)

    grown = make_queue("mail", partitions=6)
    assert await grown.is_paused()
    for part in grown.partitions:
        found = await mail._connection.run(lanes.defaults(part.keys))
        assert found == (3, RateLimit(10, 5000)), part
    await grown.resume()
    await grown.set_lane_rate_limit(None, None)
    await make_queue("{mail-7}").pause()  # as a growth that was stopped at that moment leaves it

    await grow_at_once(grown, 8)

    again = make_queue("mail", partitions=8)
    assert [await part.is_paused() for part in again.partitions] == [False] * 8
    for part in again.partitions:
        assert await mail._connection.run(lanes.defaults(part.keys)) == (3, None), part


@pytest.mark.parametrize("limit", ["concurrency", "rate limit"])
async def test_a_queue_whose_limit_is_divided_does_not_grow(mail, limit, soon):
    """The new partitions had none: half of the queue ran without the limit."""
    await mail.add("x")

    async def set_limit(queue):
        if limit == "concurrency":
            await queue.set_global_concurrency(8)
        else:
            await queue.set_global_rate_limit(RateLimit(8, 1000))

    await set_limit(mail)
    with pytest.raises(RefusedError, match=f"while it has a global {limit}, .* remove it"):
        await grow_at_once(mail, 8)
    await mail.add("x")  # it has not begun to grow
    await mail.remove_global_concurrency()
    await mail.remove_global_rate_limit()
    await mail.add("x", lane="busy")
    told: list[str] = []
    growth = asyncio.create_task(grow_at_once(mail, 8, patience_s=30.0, tell=told.append))
    await wait_until(lambda: "1 lanes have jobs" in told)
    await set_limit(mail.partitions[2])  # another program does not ask
    await mail.drain()

    with pytest.raises(RefusedError, match=f"global {limit}, .* grow mail --stop`, remove it"):
        await growth

    await mail.partitions[2].remove_global_concurrency()
    await mail.partitions[2].remove_global_rate_limit()
    assert await grow_at_once(mail, 8) == Numbers((4,), 8)


async def test_a_queue_does_not_grow_before_parents_have_entered_their_lanes(
    mail, url, prefix, soon
):
    """Their lane has no jobs until then, and would run in two partitions afterwards."""
    child = FlowJob("send", queue_name="other")
    async with FlowProducer(connection=url, prefix=prefix, partitions={"mail": 4}) as flow:
        node = await flow.add(FlowJob("sum", queue_name="mail", lane="ada", children=[child]))
        await flow.add(FlowJob("sum", queue_name="mail", children=[child]))
    told: list[str] = []

    with pytest.raises(RefusedError, match="some will get 1 jobs that wait for children"):
        await grow_at_once(mail, 8, patience_s=0.01)
    growth = asyncio.create_task(grow_at_once(mail, 8, patience_s=30.0, tell=told.append))
    await wait_until(lambda: "1 jobs of lanes wait for children" in told)
    assert await mail.remove(node.job.id)

    assert await growth == Numbers((4,), 8)


async def test_what_cannot_grow_is_refused(mail, make_queue):
    with pytest.raises(RefusedError, match="has no partitions"):
        await grow_at_once(mail, 8)
    await mail.add("x")
    with pytest.raises(InvalidOptionError, match="cannot shrink to 2"):
        await grow_at_once(mail, 2)
    template = NewJob("x", lane="daily")
    await mail.upsert_job_scheduler("s", every=3_600_000, template=template)
    with pytest.raises(RefusedError, match="scheduler 's' adds jobs to lane 'daily'"):
        await grow_at_once(mail, 8)
    await mail.remove_job_scheduler("s")


async def test_the_doctor_tells_of_jobs_beside_the_partitions(mail, make_queue, url, prefix):
    await mail.add("x")
    beside = make_queue("mail")
    assert "D234" not in [one.code for one in (await examine(url, prefix=prefix)).findings]
    await beside.add("x")

    report = await examine(url, prefix=prefix)

    (found,) = [one for one in report.findings if one.code == "D234"]
    assert "4 partitions, and 1 unfinished jobs" in found.problem
    await beside.obliterate(force=True)


async def test_the_doctor_examines_the_partitions_of_a_named_queue(mail, make_queue, url, prefix):
    """It said that the queue did not exist."""
    await mail.add("x", job_id="a")
    [home] = [part for part in mail.partitions if await part.get_waiting_count()]

    report = await examine(url, prefix=prefix, queues=["mail", "none"])

    assert {one.subject for one in report.findings if one.code == "D226"} == {"queue none"}
    assert f"queue {home.name}" in {one.subject for one in report.findings if one.code == "D201"}
    beside = make_queue("mail")
    await beside.add("x")
    report = await examine(url, prefix=prefix, queues=["mail"])
    assert "D234" in [one.code for one in report.findings]


async def test_a_scheduler_of_a_partition_is_paused_changed_and_run(mail):
    await mail.upsert_job_scheduler("digest", every=3_600_000)

    assert await mail.schedulers.pause("digest")
    assert (await mail.get_job_scheduler("digest")).is_paused
    assert (await mail.schedulers.change("digest", limit=3)).limit == 3
    assert await mail.schedulers.resume("digest")
    job = await mail.schedulers.run("digest")
    assert await mail.get_job(job.id) is not None
    assert not await mail.schedulers.pause("nobody")
    with pytest.raises(LookupError):
        await mail.schedulers.run("nobody")


@pytest.fixture
async def full(mail, url, prefix):
    """A queue that is paused, with a job that runs in its last partition."""
    await mail.add_bulk([NewJob("x", job_id=f"j-{n}") for n in range(40)])
    worker = ManualWorker(mail.partitions[-1].name, connection=url, prefix=prefix)
    running = await worker.get_next_job()
    await mail.pause()
    yield mail, running
    await worker.close()


async def state_of(queue):
    counts = [await part.get_job_counts() for part in queue.partitions]
    return counts, [await part.is_paused() for part in queue.partitions]


async def test_an_obliterate_that_is_refused_has_removed_nothing_and_resumed_nobody(full):
    """It removed one partition after another, until it came to one that was not to be."""
    mail, running = full
    before = await state_of(mail)

    with pytest.raises(JobLockedError, match="queue 'mail' has active jobs"):
        await mail.obliterate()

    assert await state_of(mail) == before
    assert before[1] == [True] * 4
    await running.complete(None)
    await mail.partitions[2].resume()
    before = await state_of(mail)
    with pytest.raises(NotPausedError, match="queue 'mail' is not paused"):
        await mail.obliterate()
    assert await state_of(mail) == before
    await mail.obliterate(force=True)


@pytest.mark.parametrize("force", [False, True])
async def test_no_key_is_left_of_an_obliterated_queue(full, client, prefix, force):
    mail, running = full
    seen: list[int] = []
    if not force:
        await running.complete(None)

    assert await mail.obliterate(force, on_progress=seen.append) == 40

    assert seen[-1] == 40
    assert [key async for key in client.scan_iter(f"{prefix}:*")] == []
    await mail.add("y")  # the queue object can be used on, and writes its number down again
    assert await mail._connection.run(partitioning.read(mail.keys)) == Numbers((), 4)


async def test_an_interrupted_obliterate_leaves_all_partitions_paused_and_is_resumed(full):
    mail, running = full
    await running.complete(None)

    def stop(done):
        raise KeyError(done)

    with pytest.raises(KeyError):
        await mail.obliterate(on_progress=stop)
    assert (await state_of(mail))[1] == [True] * 4
    await mail.partitions[0].obliterate()  # as far as another call has come

    assert await mail.obliterate() > 0

    assert await mail._connection.run(partitioning.read(mail.keys)) == Numbers()
    with pytest.raises(NotPausedError):
        await mail.obliterate()


async def test_an_obliterate_that_was_interrupted_at_its_end_is_resumed(mail):
    await mail.add("x")
    for part in mail.partitions:
        await part.obliterate(force=True)

    assert await mail.obliterate() == 0

    assert await mail._connection.run(partitioning.read(mail.keys)) == Numbers()


async def test_an_obliterate_leaves_the_numbers_of_a_queue_that_begins_to_grow(mail):
    await mail.add("x")
    begun = Numbers((), 4, 8, "g1")
    connection, swaps = mail._connection, partitioning.swap(mail.keys, Numbers((), 4), begun)
    growth: list[asyncio.Task[Numbers]] = []

    await mail.obliterate(
        force=True,
        on_progress=lambda done: growth.append(asyncio.ensure_future(connection.run(swaps))),
    )

    assert [await one for one in growth] == [begun]
    assert await connection.run(partitioning.read(mail.keys)) == begun


async def test_obliterating_the_plain_queue_leaves_the_number_of_partitions(mail, make_queue):
    await mail.add("x")
    beside = make_queue("mail")
    await beside.add("y")

    await beside.obliterate(force=True)

    assert await mail._connection.run(partitioning.read(mail.keys)) == Numbers((), 4)
    assert await mail.get_waiting_count() == 1
