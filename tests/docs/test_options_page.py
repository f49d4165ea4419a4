"""What the page of options says about defaults, ranges and Node is what the code does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine

from tests.docs.test_reference import reference
from toril import App, FlowJob, GroupJob, Keep, Parent, Queue, Worker
from toril.errors import InvalidInputError
from toril.options import (
    LANE_ATTEMPTS,
    LANE_BACKOFF,
    ON_EXHAUSTED,
    ON_RETRY,
    OPTION_NAMES,
    NewJob,
)
from toril.outbox import Outbox, Relay
from toril.protocol import codec

ROOT = Path(__file__).parents[2]
texts = reference.texts
NOWHERE = "redis://127.0.0.1:1"
TABLES = (
    ("Queue", Queue.__init__, texts.QUEUE),
    ("Worker", Worker.__init__, texts.WORKER),
    ("App", App.__init__, texts.APP),
    ("@app.task", App.task, texts.TASK),
    ("Relay", Relay.__init__, texts.RELAY),
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def test_every_row_of_a_table_has_the_cells_of_its_head():
    """The tables of the options had six columns and rows of four."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for table in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
            counts = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            if len(counts) != 1:
                wrong.append(f"{page.relative_to(ROOT)}: {table.splitlines()[0]}")

    assert wrong == []


@pytest.mark.parametrize(("title", "target", "rows"), TABLES, ids=lambda value: str(value)[:20])
def test_a_default_in_words_is_that_of_the_code(
    title: str, target: Callable[..., Any], rows: dict[str, Any]
):
    """Words may explain a default that the signature has; they cannot replace it."""
    for name, row in rows.items():
        default = inspect.signature(target).parameters[name].default
        if row.default and default not in (None, (), inspect.Parameter.empty):
            assert re.match(rf"{re.escape(str(default))}\b", row.default), f"{title}: {name}"


def test_the_defaults_of_a_job_are_those_of_the_code():
    said = {name: row.default for name, row in texts.JOB_OPTIONS.items()}
    plain, in_lane = NewJob("a"), NewJob("a", lane="x")
    stored = codec.decode(codec.encode_options(in_lane))

    assert {getattr(plain, name) for name in OPTION_NAMES} == {None}
    assert stored["attempts"] == LANE_ATTEMPTS == 3
    assert said["attempts"] == "1; 3 in a lane"
    assert f"{LANE_BACKOFF.type} from {LANE_BACKOFF.delay} ms" in said["backoff"]
    assert f"with {LANE_BACKOFF.jitter:.0%} jitter".replace("%", " %") in said["backoff"]
    assert said["on_retry"].strip('`"') == ON_RETRY[0]
    assert said["on_exhausted"].strip('`"') == ON_EXHAUSTED[0]


SHORT = {
    "keepLogs": "kl",
    "deduplication": "de",
    "telemetry.metadata": "tm",
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
    "removeDependencyOnFailure": "rdof",
}
"""BullMQ stores these options under a short name."""

VALUES: dict[str, Any] = {
    "job_id": "a-1",
    "delay": 5,
    "run_at": datetime(2030, 1, 1, tzinfo=UTC),
    "priority": 1,
    "lifo": True,
    "attempts": 2,
    "backoff": 10,
    "remove_on_complete": Keep(age=2_000),
    "remove_on_fail": 4,
    "keep_logs": 5,
    "stack_trace_limit": 6,
    "size_limit": 1_000,
    "timeout": 7,
    "expires": 8,
    "idempotency_key": "k",
    "timestamp": 9,
    "deduplication": "d",
    "telemetry": "{}",
    "parent": Parent("p", "q"),
    "lane": "x",
    "order_ms": 1,
    "ordering_delay": 2,
    "on_retry": "skip",
    "on_exhausted": "halt",
    "max_lane_size": 3,
    **dict.fromkeys((name for name in OPTION_NAMES if name.endswith("_on_failure")), True),
}


IN_LANES = frozenset({"order_ms", "ordering_delay", "on_retry", "on_exhausted", "max_lane_size"})


@pytest.mark.parametrize("name", sorted(OPTION_NAMES))
def test_node_finds_an_option_under_the_name_that_the_page_says(name: str):
    said = re.findall(r"`([\w.]+)`", texts.JOB_OPTIONS[name].node)[0]
    job = NewJob("a", **{**({"lane": "x"} if name in IN_LANES else {}), name: VALUES[name]})
    parent = ("p", "bull:q") if name == "parent" or name.endswith("_on_failure") else None

    if name == "run_at":
        assert said == "delay"  # adding computes it from the server's time
    else:
        assert SHORT.get(said, said) in codec.decode(codec.encode_options(job, parent))


def test_node_counts_the_age_of_finished_jobs_in_seconds():
    stored = codec.decode(codec.encode_options(NewJob("a", remove_on_complete=Keep(age=2_000))))

    assert "its `age` is in seconds" in texts.JOB_OPTIONS["remove_on_complete"].node
    assert stored["removeOnComplete"]["age"] == 2


def relay(**options: Any) -> None:
    engine = create_engine("sqlite://")
    Relay(engine, Outbox(MetaData()), connection=NOWHERE, **options)


async def handler(job: Any) -> None:
    pass


def worker(**options: Any) -> None:
    Worker("q", handler, connection=NOWHERE, **options)


def queue(**options: Any) -> None:
    Queue(**{"name": "q", "connection": NOWHERE, **options})


def job(**options: Any) -> None:
    Queue("q", connection=NOWHERE).adder.prepare(NewJob("a", **options))


@pytest.mark.parametrize(
    ("rows", "make", "name", "unit", "allowed", "refused"),
    [
        (texts.JOB_OPTIONS, job, "priority", "1 to 2,097,151", 2_097_151, 2_097_152),
        (texts.JOB_OPTIONS, job, "lane", "up to 1,024 characters", "x" * 1_024, "x" * 1_025),
        (texts.JOB_OPTIONS, job, "job_id", "text, not only digits", "a1", "12"),
        (texts.QUEUE, queue, "name", "up to 256 characters", "x" * 256, "x" * 257),
        (texts.QUEUE, queue, "name", "without `:`", "a-b", "a:b"),
        (texts.QUEUE, queue, "partitions", "1 to 1024", 1_024, 1_025),
        (texts.QUEUE, queue, "replicas_timeout", "at least 1", 1, 0),
        (texts.WORKER, worker, "lock_duration", "at least 50", 50, 49),
        (texts.WORKER, worker, "stalled_interval", "at least 20", 20, 19),
        (texts.RELAY, relay, "batch_size", "up to 5,000", 5_000, 5_001),
        (texts.RELAY, relay, "lease", "at least 1,000", 1_000, 999),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_a_range_that_the_page_gives_is_the_range_of_the_code(
    rows: dict[str, Any],
    make: Callable[..., None],
    name: str,
    unit: str,
    allowed: Any,
    refused: Any,
):
    assert unit in rows[name].unit
    make(**{name: allowed})
    with pytest.raises(InvalidInputError):
        make(**{name: refused})


def test_every_range_on_the_page_is_tried():
    mark = next(
        one
        for one in test_a_range_that_the_page_gives_is_the_range_of_the_code.pytestmark  # type: ignore[attr-defined]
        if one.name == "parametrize"
    )
    tried = {(name, unit) for _rows, _make, name, unit, *_ in mark.args[1]}
    stated = {
        (name, row.unit)
        for _title, _target, rows in (*TABLES, ("job", None, texts.JOB_OPTIONS))
        for name, row in rows.items()
        if re.search(r"\d|without|not only", row.unit) and "each" not in row.unit
    }

    assert [
        pair for pair in stated if not any(pair[0] == n and u in pair[1] for n, u in tried)
    ] == []


@pytest.mark.parametrize("name", sorted(OPTION_NAMES))
def test_an_option_can_be_set_wherever_the_page_says(name: str):
    """And is honoured there: the job that is added has it."""
    given = {**({"lane": "x"} if name in IN_LANES else {}), name: VALUES[name]}
    by_queue = Queue("q", connection=NOWHERE, default_job_options=given)
    places = {
        "NewJob": NewJob("a", **given),
        "FlowJob": FlowJob("a", queue_name="q", **given),
        "GroupJob": GroupJob("a", queue_name="q", **given),
        "Queue(default_job_options=…)": by_queue._with_defaults(NewJob("a")),
        "App(…)": App(connection=NOWHERE, **given).task(empty).call(),
        "@app.task(…)": App(connection=NOWHERE).task(**given)(empty).call(),
        "task.using(…)": App(connection=NOWHERE).task(empty).using(**given).call(),
    }

    said = reference.make()["options.md"].split("## Options of a job")[1].split("| option |")[0]
    for place, made in places.items():
        assert f"`{place}`" in said, place
        assert getattr(made, name) == VALUES[name], place


def empty() -> None:
    pass
