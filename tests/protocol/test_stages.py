"""Groups that cannot be are refused before anything is sent, with the member's name."""

from __future__ import annotations

from typing import Any

import pytest

from toril import Compensation, GroupJob, GroupSignal
from toril.errors import (
    GroupExistsError,
    GroupNotFoundError,
    GroupValidationError,
    InvalidNameError,
    InvalidOptionError,
)
from toril.protocol import groups, starting
from toril.protocol.groups import GroupInfo, GroupMember, GroupState, GroupStep
from toril.protocol.keys import Keys
from toril.protocol.new_group import NewGroup, check_group_id, may_be_group_id, new_group
from toril.protocol.stages import Gate


def job(name: str, *after: str, **options: Any) -> GroupJob:
    return GroupJob(name, options.pop("data", None), queue_name="q", after=after, **options)


def group(*members: Any, compensation: Any = None, **options: Any) -> NewGroup:
    return new_group("order", members, compensation, **options)


SAGA = (
    job("reserve"),
    job("charge", "reserve"),
    GroupSignal("approval", after=["reserve"], timeout=1000),
    job("ship", "charge", "approval", inputs={"receipt": "charge"}, pivot=True),
    job("mail", "ship"),
)


def test_members_that_wait_for_the_same_share_a_gate():
    made = group(*SAGA)

    assert made.graph.gates == (Gate((0,), (1, 2)), Gate((1, 2), (3,)), Gate((3,), (4,)))
    assert made.graph.gates_behind(0) == [1]
    assert made.graph.inputs[3] == {"receipt": 1}
    assert made.graph.pivot == 3
    assert made.order == "graph"


def test_nobody_waits_for_what_is_done_anyway():
    made = group(job("a"), job("b", "a"), job("c", "b", "a", "b"))

    assert made.graph.after == ((), (0,), (1,))
    assert made.graph.comes_before(0, 2)


def test_a_group_without_stages_is_as_before():
    made = group(job("a"), job("a"), job("b"))

    assert not made.graph.is_staged
    assert made.graph.labels == (None, None, "b")
    assert made.order == "parallel"
    assert group(job("a"), order="graph").order == "parallel"


def test_five_hundred_after_five_hundred_are_one_gate():
    first = [job(f"a{n}") for n in range(500)]
    second = [job(f"b{n}", *(one.name for one in first)) for n in range(500)]

    assert len(group(*first, *second).graph.gates) == 1


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([job("a", "b"), job("b", "a")], r"wait for each other: 'a' after 'b' after 'a'"),
        ([job("a", "c"), job("b"), job("c", "d"), job("d", "c")], r"'c' after 'd' after 'c'"),
        ([job("a", "a")], r"member 'a' waits for itself"),
        ([job("a"), job("b", "x")], r"member 'b' waits for 'x', which is not a member .*'a', 'b'"),
        ([job("a"), job("a"), job("b", "a")], r"member 'b' waits for 'a', and several .* key="),
        ([job("a", key="k"), job("b", key="k")], r"'a' and 'b' have the key 'k'"),
        ([job("a"), job("b", key="a")], r"'a' and 'b' have the key 'a'"),
        (
            [job("a"), job("b", inputs={"x": "a"})],
            r"member 'b' takes the result of 'a', which may",
        ),
        (
            [job("a"), job("b", "a", inputs={"x": "y"})],
            r"member 'b' takes the result of 'y', which",
        ),
        ([job("a", pivot=True), job("b", "a", pivot=True)], r"'a' and 'b' are both pivots"),
        ([job("a"), job("b", pivot=True)], r"member 'a' is neither before nor after the pivot 'b'"),
        ([GroupSignal("a")], r"signals only; give it a queue_name"),
        ([job(f"j{n}") for n in range(1001)], r"1001 jobs, and 1000 is the most \('j1000'"),
        ([object()], r"neither a GroupJob, a GroupSignal"),
    ],
)
def test_what_cannot_be_is_refused(members: list[Any], words: str):
    with pytest.raises(GroupValidationError, match=words):
        group(*members)


def test_a_graph_with_too_many_edges_is_refused():
    members = [job(f"a{n}") for n in range(200)]
    members += [job(f"b{n}", *(f"a{m}" for m in range(200) if m != n)) for n in range(200)]

    with pytest.raises(GroupValidationError, match=r"in 40000 ways, and 10000 is the most"):
        group(*members)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: job("a", after=7), "multiple values"),
        (lambda: GroupJob("a", queue_name="q", after="b"), r"member 'a' must be a list of members"),
        (
            lambda: GroupJob("a", queue_name="q", after=[1]),
            r"member 'a' names 1, which is not a string",
        ),
        (lambda: GroupJob("a", queue_name="q", key=""), r"key='' of member 'a'"),
        (lambda: GroupJob("a", queue_name="q", inputs=["b"]), r"inputs=.* of member 'a' must be a"),
        (lambda: job("a", "b", data=[1], inputs={"x": "b"}), r"member 'a' has inputs, so its data"),
        (
            lambda: job("a", "b", data={"x": 1}, inputs={"x": "b"}),
            r"member 'a' has 'x' in its data",
        ),
        (lambda: GroupSignal(""), r"signal name ''"),
        (lambda: GroupSignal("a", default=1), r"signal 'a' has a default and no timeout"),
    ],
)
def test_a_member_that_cannot_be_is_refused(make: Any, words: str):
    with pytest.raises((GroupValidationError, TypeError), match=words):
        make()


@pytest.mark.parametrize("make", [{"pivot": 1}, {"inputs": {1: "a"}}, {"inputs": {"a": 1}}])
def test_wrong_types_are_refused(make: dict[str, Any]):
    with pytest.raises(InvalidOptionError):
        job("a", "b", **make)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compensation": {"ship": Compensation("x")}}, r"member 'ship' has a compensation"),
        ({"compensation": {"mail": Compensation("x")}}, r"member 'mail' has a compensation"),
        (
            {"compensation": {"approval": Compensation("x")}},
            r"signal 'approval' has a compensation",
        ),
        ({"order": "parallel"}, r"has the pivot 'ship'"),
        ({"late": False}, r"has the pivot 'ship'"),
        ({"on_completed": job("x", "a")}, r"on_completed: job 'x' .* not a member"),
        ({"on_completed": job("x", data={"group": 1})}, r"object without 'group'"),
        ({"on_failed": job("x", data=[1])}, r"on_failed: the data of job 'x' must be an object"),
        ({"on_failed": "x"}, r"must be a job with a queue"),
        ({"order": "sideways"}, r"is not one of"),
        ({"undo_timeout": 0}, r"undo_timeout=0"),
    ],
)
def test_options_that_do_not_fit_the_stages_are_refused(options: dict[str, Any], words: str):
    with pytest.raises((GroupValidationError, InvalidOptionError), match=words):
        group(*SAGA, **options)


def test_a_mapping_may_describe_a_stage():
    made = group({"name": "a", "queueName": "q"}, {"name": "b", "queue_name": "q", "after": ["a"]})

    assert made.graph.after == ((), (0,))


@pytest.mark.parametrize("group_id", ["", "a b", "a:b", "{a}", "x" * 256, 42, "\ud800"])
def test_an_id_that_a_group_cannot_have_is_refused(group_id: Any):
    with pytest.raises((InvalidNameError, InvalidOptionError)):
        check_group_id(group_id)


def test_a_number_may_be_the_id_of_a_group():
    assert check_group_id("42") == "42"
    assert may_be_group_id("42")
    assert not may_be_group_id("a:b")
    with pytest.raises(GroupNotFoundError):
        groups.record_key(Keys("bull", "q"), "a:b")


def create(*members: Any, reply: Any, **options: Any) -> Any:
    made = group(*members, **options)
    ids = starting.ids_of(made, "j0")
    return starting.create("bull", made, "g", ids, seed="j0").parse(reply)


def test_the_node_of_the_first_call_is_found_again():
    new = create(*SAGA, reply=1000)
    again = create(*SAGA, reply=[900, b"j9"])

    assert (new.is_new, [one.id for one in new.jobs]) == (True, ["j0-0", "j0-1", "j0-3", "j0-4"])
    assert (again.is_new, again.jobs[0].id) == (False, "j9-0")


def definition(*members: Any, **options: Any) -> str:
    made = group(*members, **options)
    command = starting.create("bull", made, "g", starting.ids_of(made, "j0"), seed="j0")
    return command.args["definition"]


@pytest.mark.parametrize(
    ("members", "options", "differences"),
    [
        ([job("a", data={"n": 2}), job("b", "a")], {}, ["member 'a'"]),
        ([job("a", data={"n": 1}), job("b")], {}, ["compensation_order", "member 'b'"]),
        ([job("a", data={"n": 1})], {}, ["compensation_order", "member 'b' (missing)"]),
        ([job("a", data={"n": 1}), job("b", "a")], {"timeout": 5}, ["timeout"]),
        (
            [job("a", data={"n": 1}), job("b", "a")],
            {"compensation": {"a": Compensation("x")}},
            ["compensation"],
        ),
        (
            [job("a", data={"n": 1}), job("b", "a")],
            {"on_failed": job("x")},
            ["on_failed (new)"],
        ),
        (
            [job("a", data={"n": 1}), job("b", "a", compensation=Compensation("x"))],
            {},
            ["compensation", "member 'b'"],
        ),
    ],
)
def test_another_group_under_the_id_is_told_by_its_differences(
    members: list[Any], options: dict[str, Any], differences: list[str]
):
    stored = definition(job("a", data={"n": 1}), job("b", "a"))

    with pytest.raises(GroupExistsError) as refused:
        create(*members, reply=[-133, stored.encode()], **options)

    assert refused.value.differences == differences
    assert differences[0] in str(refused.value)


def test_a_trace_does_not_make_another_group():
    one, other = (
        definition(job("a", telemetry=trace), GroupSignal("s", timeout=1, default=None))
        for trace in ("{}", '{"traceparent":"x"}')
    )

    assert one == other


def test_a_group_without_a_definition_is_another_one():
    with pytest.raises(GroupExistsError, match="made without a group_id"):
        create(job("a"), reply=[-133, b""])


def test_the_timeline_is_put_together_from_what_is_kept():
    info = GroupInfo(
        id="g",
        name="order",
        state=GroupState.FAILED,
        created_at=1,
        updated_at=9,
        total_jobs=2,
        completed_count=1,
        failed_count=1,
        cancelled_count=0,
    )
    done = GroupMember(
        job_id="1", job_key="bull:q:1", status="completed", queue_name="q", key="a",
        started_at=2, finished_at=3, compensation_status="completed", compensation_finished_at=8,
    )  # fmt: skip
    failed = GroupMember(
        job_id="2", job_key="bull:q:2", status="failed", queue_name="q", key="b",
        finished_at=4, reason="no", compensation_status="failed", compensation_finished_at=7,
    )  # fmt: skip

    steps = groups.told(info, [done, failed], [GroupStep(5, "compensating", "b", "no")])

    assert [(step.at, step.what, step.member) for step in steps] == [
        (1, "created", None),
        (2, "started", "a"),
        (3, "completed", "a"),
        (4, "failed", "b"),
        (5, "compensating", "b"),
        (7, "undoing failed", "b"),
        (8, "undone", "a"),
        (9, "FAILED", None),
    ]
