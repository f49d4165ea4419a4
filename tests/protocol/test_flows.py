"""Flows and families without a server: what is sent, and how answers become trees."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from toril import FlowJob, Parent
from toril.errors import InvalidOptionError, ParentConflictError
from toril.protocol import families, flows
from toril.protocol.adding import Added
from toril.protocol.job import Job
from toril.protocol.keys import Keys, split_job_key


def ids():
    numbers = itertools.count(1)
    return lambda: f"j{next(numbers)}"


def job(name, *children, queue="c", **options):
    return FlowJob(name, queue_name=queue, children=children, **options)


TREE = job("root", job("a", job("a1")), job("b"), queue="p")


def test_parents_stand_before_their_children():
    nodes = flows.prepare([TREE, job("other")], "bull", ids())

    assert [(node.job.entry["name"], node.above) for node in nodes] == [
        ("root", None),
        ("a", 0),
        ("a1", 1),
        ("b", 0),
        ("other", None),
    ]
    assert [node.keys.base for node in nodes] == ["bull:p", *["bull:c"] * 4]


def test_a_child_knows_its_parent_and_its_policy():
    flow = job("root", job("a", ignore_dependency_on_failure=True), queue="p")
    _, child = flows.prepare([flow], "bull", ids())

    assert child.job.entry["parent_key"] == "bull:p:j1"
    assert msgspec.json.decode(child.job.entry["parent"]) == {
        "id": "j1",
        "queueKey": "bull:p",
        "idof": True,
    }
    options = msgspec.json.decode(child.job.opts)
    assert options == {"attempts": 0, "parent": {"id": "j1", "queue": "bull:p"}, "idof": True}


def test_a_tree_that_is_added_once_is_remembered_by_its_root():
    flow = job("root", job("a"), queue="p", idempotency_key="k")

    root, child = flows.prepare([flow], "bull", ids(), once_ms=1000)

    assert root.job.entry["once"] == {"key": "k", "ms": 1000}
    assert "once" not in child.job.entry


def test_the_call_names_every_queue_once():
    nodes = flows.prepare([TREE], "bull", ids())
    command = flows.add(nodes)

    assert command.args["queues"] == ["bull:p", "bull:c"]
    assert [entry["queue"] for entry in command.args["nodes"]] == [1, 2, 2, 2]
    assert [entry.get("above") for entry in command.args["nodes"]] == [None, 1, 2, 1]
    assert [bool(entry.get("has_children")) for entry in command.args["nodes"]] == [
        True,
        True,
        False,
        False,
    ]
    assert len(command.payloads) == 8


def test_answers_tell_what_was_added_and_what_was_left_out():
    command = flows.add(flows.prepare([TREE], "bull", ids()))

    assert command.parse([7, 0, 1, 2, b"owner"]) == [
        Added("j1", 7),
        Added("j2", 7, is_duplicate=True),
        None,
        Added("owner", 7, is_duplicate=True),
    ]
    with pytest.raises(ParentConflictError, match="j3"):
        command.parse([-7, 3])


def test_jobs_grow_into_trees_again():
    nodes = flows.prepare([TREE, job("other")], "bull", ids())
    jobs = [
        Job("bull", n.keys.name, n.job.id, {b"name": n.job.entry["name"].encode()}) for n in nodes
    ]
    jobs[2] = None

    first, second = flows.grow(nodes, jobs)

    assert first.job.name == "root"
    assert [(child.job.name, child.children) for child in first.children] == [("a", ()), ("b", ())]
    assert second.job.name == "other"


def test_the_queue_of_a_parent_outside_belongs_to_the_flow():
    root = job("root", queue="p", parent=Parent("x", "elsewhere", "other"))
    nodes = flows.prepare([root], "bull", ids())

    assert [keys.base for keys in flows.queues_of([root], nodes)] == ["bull:p", "other:elsewhere"]
    with pytest.raises(InvalidOptionError, match="neither a job"):
        job("root", parent=5)


def test_a_tree_may_be_as_deep_as_it_is_large():
    flow = job("leaf")
    for _ in range(900):
        flow = job("above", flow)

    assert len(flows.prepare([flow], "bull", ids())) == 901


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("bull:q:j1", ("bull", "q", "j1")),
        ("a:b:q:j1", ("a:b", "q", "j1")),
        ("bull:q:compensation:j1", ("bull", "q:compensation", "j1")),
        ("bull:q:repeat:s:123", ("bull", "q", "repeat:s:123")),
    ],
)
def test_a_job_key_is_taken_apart(key, parts):
    assert split_job_key(key) == parts
    assert split_job_key(key, parts[0]) == parts


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("bull:q:order:7:pay", ("bull", "q", "order:7:pay")),
        ("bull:q:compensation:a:b", ("bull", "q:compensation", "a:b")),
        ("bull:q:repeat:email:digest:5", ("bull", "q", "repeat:email:digest:5")),
        ("a:b:q:j1", ("a:b", "q", "j1")),
    ],
)
def test_a_prefix_that_is_known_tells_where_an_id_with_colons_begins(key, parts):
    assert split_job_key(key, "bull") == parts


def follow(plan, *answers):
    """Run a plan with these answers; returns its result."""
    replies = iter(answers)
    try:
        step = next(plan)
        while True:
            reply = next(replies)
            if isinstance(step, list):
                reply = [command.parse(answer) for command, answer in zip(step, reply, strict=True)]
            else:
                reply = step.parse(reply)
            step = plan.send(reply)
    except StopIteration as end:
        return end.value


def test_children_are_read_page_by_page():
    values = follow(
        families.children_values(Keys("bull", "p"), "j1"),
        [b"7", [b"bull:c:a", b'{"n":1}']],
        [b"0", [b"bull:c:b", b"null"]],
        b'{"x.children":["bull:c:b","bull:c:a"]}',
    )

    assert list(values.items()) == [("bull:c:b", None), ("bull:c:a", {"n": 1})]


@pytest.mark.parametrize("options", [None, b"no json", b"[]", b'{"x.children":5}'])
def test_children_of_others_come_by_their_ids(options):
    values = follow(
        families.children_values(Keys("bull", "p"), "j1"),
        [b"0", [b"bull:c:b", b"1", b"bull:d:a", b"2"]],
        options,
    )

    assert list(values) == ["bull:d:a", "bull:c:b"]


def test_children_by_what_came_of_them():
    found = follow(
        families.dependencies(Keys("bull", "p"), "j1"),
        [b"0", [b"bull:c:a", b"1"]],
        [b"0", [b"bull:c:b", b"it broke"]],
        [b"0", [b"bull:c:d", b"bull:c:c"]],
        [b"0", [b"bull:c:e", b"123"]],
    )

    assert found == families.Dependencies(
        processed={"bull:c:a": 1},
        ignored={"bull:c:b": "it broke"},
        unprocessed=["bull:c:c", "bull:c:d"],
        failed=["bull:c:e"],
    )


def test_children_are_counted():
    counts = follow(families.dependencies_count(Keys("bull", "p"), "j1"), [1, 2, 3, 4])

    assert (counts.processed, counts.unprocessed, counts.ignored, counts.failed) == (1, 2, 3, 4)
