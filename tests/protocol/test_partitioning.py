"""Which job goes where, and how parts make a whole: without a server."""

from __future__ import annotations

import random

import pytest

from toril.client.ids import new_job_id
from toril.errors import InvalidOptionError, PartitionMismatchError
from toril.options import NewJob, Parent, RateLimit
from toril.protocol import partitioning
from toril.protocol.keys import Keys, check_queue_name, hash_tag, slot
from toril.protocol.measuring import Metrics
from toril.protocol.partitioning import (
    Numbers,
    deal,
    home_of,
    home_of_job,
    name_of,
    page,
    whole_of,
)


@pytest.mark.parametrize(
    ("name", "third"),
    [("mail", "{mail-3}"), ("{mail}", "{mail-3}"), ("{mail}-dlq", "{mail-3}-dlq")],
)
def test_the_number_goes_into_the_hash_tag(name, third):
    assert name_of(name, 3) == third
    assert hash_tag(third) == "mail-3"
    assert whole_of(third) == (name.replace("{mail}", "mail") if name == "{mail}" else name, 3)
    check_queue_name(third)


@pytest.mark.parametrize("name", ["mail", "{mail}", "mail-3", "{mail-03}", "{-}", "{mail-x}-dlq"])
def test_other_names_are_no_partitions(name):
    assert whole_of(name) is None


def test_an_id_of_our_own_names_its_partition():
    job_id = f"{new_job_id()}-7"

    assert partitioning.named_in(job_id, 8) == 7
    assert partitioning.named_in(job_id, 7) is None
    assert partitioning.named_in(new_job_id(), 8) is None
    assert partitioning.named_in("order-7", 8) is None


def test_the_lane_decides_then_the_deduplication_then_the_id_then_the_parent():
    parent = Parent(id="p", queue_name="{mail-5}")
    job = NewJob("x", lane="l", deduplication="d", job_id="i")

    assert home_of_job(job, 16, "mail") == home_of("l", 16)
    job = NewJob("x", deduplication="d", job_id="i")
    assert home_of_job(job, 16, "mail") == home_of("d", 16)
    assert home_of_job(NewJob("x", job_id="i"), 16, "mail") == home_of("i", 16)
    assert home_of_job(NewJob("x", parent=parent), 16, "mail") == 5
    assert home_of_job(NewJob("x", parent=parent), 4, "mail") is None
    assert home_of_job(NewJob("x"), 16, "mail") is None


def test_lanes_are_spread_evenly():
    for stem in ("user:", "tenant-", ""):
        counts = [0] * 48
        for number in range(10_000):
            counts[home_of(f"{stem}{number}", 48)] += 1
        assert max(counts) <= 1.25 * 10_000 / 48


def test_a_page_is_dealt_from_all_parts():
    counts = [3, 0, 1, 2]
    whole = deal(page(counts, 0, -1), [["a0", "a1", "a2"], [], ["c0"], ["d0", "d1"]])

    assert whole == ["a0", "c0", "d0", "a1", "d1", "a2"]


@pytest.mark.parametrize("seed", range(20))
def test_pages_follow_each_other_without_a_gap(seed):
    dice = random.Random(seed)
    parts = [[(p, n) for n in range(dice.choice([0, 1, 5, 40]))] for p in range(5)]
    counts = [len(part) for part in parts]

    def read(start, end):
        pages = page(counts, start, end)
        assert sum(map(len, pages)) <= max(0, end - start + 1) or end < 0
        shown = [[part[n] for n in places] for part, places in zip(parts, pages, strict=True)]
        return deal(pages, shown)

    whole = read(0, -1)
    assert sorted(whole) == sorted(item for part in parts for item in part)
    for size in (1, 3, 7):
        pieces = [read(start, start + size - 1) for start in range(0, len(whole) + size, size)]
        assert [item for piece in pieces for item in piece] == whole
    assert read(-3, -1) == whole[-3:]


def test_limits_are_shared_out():
    assert partitioning.share(18, 4, "concurrency") == [5, 5, 4, 4]
    with pytest.raises(InvalidOptionError, match="concurrency=3 cannot be divided among 4"):
        partitioning.share(3, 4, "concurrency")

    few = partitioning.share_rate(RateLimit(5, 1000), 16)
    many = partitioning.share_rate(RateLimit(100, 1000), 16)

    assert few == [RateLimit(1, 3200)] * 16
    assert sum(limit.max for limit in many) == 100
    assert partitioning.sum_of_rates(many) == RateLimit(100, 1000)


def test_minutes_of_metrics_are_added_where_they_belong():
    ahead = Metrics(count=6, data=[1, 2, 3], points=3, last_at=10 * 60_000)
    behind = Metrics(count=9, data=[9], points=1, last_at=8 * 60_000)
    never = Metrics(count=0, data=[], points=0, last_at=None)

    whole = partitioning.add_up_metrics([ahead, behind, never], 0, -1)

    assert (whole.count, whole.data, whole.points) == (15, [1, 2, 12], 3)
    assert partitioning.add_up_metrics([ahead, behind], 1, 1).data == [2]


def test_partitions_fold_into_one_row():
    names = ["{mail-0}", "{mail-1}", "{mail-1}-dlq", "{other-1}", "plain"]

    rows = partitioning.fold(names, {"mail": 3, "other": 0})

    assert [row.name for row in rows] == ["mail", "plain", "{mail-1}-dlq", "{other-1}"]
    assert rows[0].queues == ("{mail-0}", "{mail-1}", "{mail-2}")


@pytest.mark.parametrize("names", [["mail", "{mail-0}"], ["{mail-1}", "mail"]])
def test_a_plain_queue_takes_no_place_of_the_partitions_of_its_name(names):
    rows = partitioning.fold([*names, "other"], {"mail": 2})

    assert [(row.label, row.queues) for row in rows] == [
        ("mail", ("{mail-0}", "{mail-1}")),
        ("mail: plain", ("mail",)),
        ("other", ("other",)),
    ]


def test_a_wrong_number_is_refused_with_both():
    keys = Keys("bull", "mail")
    with pytest.raises(PartitionMismatchError, match=r"has 16 partitions .* was told 8") as error:
        Numbers((4,), 16).refuse(keys, 8)
    assert (error.value.given, error.value.known) == (8, 16)
    Numbers().refuse(keys, 8)
    Numbers((), 8, 16).refuse(keys, 8)
    with pytest.raises(PartitionMismatchError, match="grows from 8 to 16"):
        Numbers((), 8, 16).refuse(keys, 8, writes=True)


@pytest.mark.parametrize(
    "numbers", [Numbers((), 4), Numbers((4, 8), 16), Numbers((4,), 8, 16), Numbers((), 4, 8, "j1")]
)
def test_the_numbers_are_read_as_they_are_written(numbers):
    read = partitioning.read(Keys("bull", "mail")).parse

    assert read(str(numbers).encode()) == numbers
    assert read(None) == Numbers()
    assert read(b"what is this") == Numbers()


def test_a_prefix_with_a_hash_tag_would_undo_the_spreading():
    with pytest.raises(InvalidOptionError, match="hash tag"):
        partitioning.check(Keys("{bull}", "mail"), 2)
    partitioning.check(Keys("{bull}", "mail"), 1)


def test_partitions_lie_in_different_slots():
    slots = {slot(Keys("bull", name_of("mail", number)).wait) for number in range(48)}
    assert len(slots) == 48
    thirds = [0, 0, 0]
    for number in slots:
        thirds[number * 3 // 16384] += 1
    assert max(thirds) <= 20, thirds
