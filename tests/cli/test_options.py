"""Every option of every command is honoured or refused, and a test shows it.

``SHOWN`` names the test for each of them, so that an option without one is missed here.
"""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import Toril
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from toril import FlowJob, GroupJob, NewJob, Worker
from toril.cli import main, relay, worker
from toril.sync import FlowProducer, Queue

HERE = Path(__file__).parent
COMMANDS, FEATURES = "test_commands.py", "test_features.py"
LETTERS, OPTIONS, WORKERS = "test_dead_letters.py", "test_options.py", "test_worker.py"

DASHBOARD = "test_dashboard.py"
PRODUCTION = "test_worker_in_production.py"

_MADE = (COMMANDS, "test_jobs_are_added_listed_and_shown")
_CHANGED = (COMMANDS, "test_pausing_promoting_cancelling_and_emptying")
_YES = (COMMANDS, "test_nothing_is_destroyed_before_somebody_said_yes")
_TAILED = (COMMANDS, "test_events_are_tailed_as_they_happen")
_DOCTOR = (FEATURES, "test_doctor_says_what_is_wrong_and_how_bad_it_is")
_LETTERS = (FEATURES, "test_dead_letters_are_listed_grouped_and_shown")
_REPLAYED = (FEATURES, "test_dead_letters_are_replayed_and_purged_after_a_yes")
_LANES = (FEATURES, "test_lanes_are_listed_shown_paused_resumed_and_drained")
_GROUPS = (FEATURES, "test_groups_are_listed_shown_and_cancelled")
_STAGES = (FEATURES, "test_stages_are_drawn_and_signals_given")
_UNDONE = (FEATURES, "test_a_group_that_could_not_be_undone_is_retried_and_resolved")
_GROWN = ("test_partitions.py", "test_what_cannot_grow_is_refused")
_RESCHEDULED = (FEATURES, "test_schedulers_are_paused_changed_run_and_resumed")
_SCHEDULERS = (FEATURES, "test_schedulers_are_set_listed_and_removed")
_ROUTER = (WORKERS, "test_a_router_runs_the_jobs_of_a_queue_until_sigterm")
_RELOAD = (WORKERS, "test_with_reload_a_changed_file_starts_the_worker_anew")
_FORCED = (LETTERS, "test_a_queue_that_is_none_is_emptied_only_by_force_and_its_name")
_NAMED = (LETTERS, "test_every_option_is_obeyed_for_letters_that_are_named")
_RESUMED = (LETTERS, "test_a_replay_with_a_relative_time_is_resumed")
_PAGED = (OPTIONS, "test_pages_are_as_long_as_asked_for")
_FILTERED = (OPTIONS, "test_each_filter_of_dead_letters_is_honoured")
_BACK = (OPTIONS, "test_what_a_replay_is_told_is_kept")
_ADDED = (OPTIONS, "test_what_is_said_of_a_new_job_is_kept")
_SCHEDULED = (OPTIONS, "test_what_is_said_of_a_scheduler_is_kept")
_CREATED = (
    "test_missing_queues.py",
    "test_a_queue_or_a_lane_is_paused_before_its_first_job_on_request",
)
_STARTED = (OPTIONS, "test_what_a_program_is_told_reaches_it")
_EMPTIED = (OPTIONS, "test_what_is_removed_is_what_was_said")
_LOOKED = (OPTIONS, "test_what_is_shown_is_what_was_asked_for")

_FILTERS = dict.fromkeys(
    (
        *("--name", "--reason", "--fingerprint", "--no-fingerprint"),
        *("--source", "--since", "--until"),
    ),
    _FILTERED,
)

SHOWN: dict[str, dict[str, tuple[str, str]]] = {
    "jobs": dict.fromkeys(("--limit", "--skip", "--oldest-first", "--name"), _PAGED)
    | {"--state": _MADE},
    "job": {"--queue": _MADE, "--logs": _LOOKED},
    "events": {"--since": _TAILED, "--event": _TAILED, "--count": _TAILED, "--job": _LOOKED},
    "monitor": {
        "--queue": _LOOKED,
        "--interval": ("test_monitor.py", "test_it_runs_in_a_real_terminal"),
    },
    "dashboard": dict.fromkeys(
        ("--port", "--password", "--read-only", "--allow-host", "--redact"),
        (DASHBOARD, "test_it_is_served_as_it_was_told"),
    )
    | {"--host": (DASHBOARD, "test_it_does_not_start_for_other_machines_without_a_password")},
    "doctor": {"--queue": _DOCTOR, "--no-audit": _DOCTOR, "--most-keys": _LOOKED}
    | {"--explain": (FEATURES, "test_doctor_explains_a_code")}
    | {"--fix": ("../doctor/test_libraries.py", "test_fix_removes_what_nobody_calls")},
    "acl": {"--user": ("test_acl.py", "test_the_line_is_what_the_server_takes")},
    "add": dict.fromkeys(("--delay", "--priority", "--attempts", "--backoff", "--id"), _MADE)
    | {"--lane": _LANES, "--order-ms": _LANES}
    | {"--from": (COMMANDS, "test_many_jobs_come_from_a_file_and_bad_lines_add_nothing")}
    | dict.fromkeys(("--timeout", "--lifo", "--wait", "--wait-timeout"), _ADDED),
    "retry": {
        "--queue": (COMMANDS, "test_a_failed_job_shows_its_log_and_traces_and_is_retried"),
        "--all": _CHANGED,
        "--state": (COMMANDS, "test_a_mistake_is_one_line_and_an_exit_code"),
        "--reset-attempts": _EMPTIED,
    },
    "promote": {"--queue": _CHANGED, "--all": _CHANGED},
    "pause": {"--create": _CREATED},
    "lanes pause": {"--create": _CREATED},
    "schedules prune": {
        "--yes": (PRODUCTION, "test_schedules_of_the_code_are_listed_and_pruned"),
    },
    "cancel": {"--queue": _CHANGED, "--reason": _CHANGED},
    "remove": {"--queue": _CHANGED, "--yes": _CHANGED, "--keep-children": _EMPTIED},
    "drain": {"--yes": _YES, "--delayed": _EMPTIED},
    "clean": {"--state": _YES, "--older-than": _YES, "--yes": _YES, "--limit": _EMPTIED},
    "obliterate": {"--force": _YES, "--yes": _YES},
    "dlq list": {"--limit": _LETTERS, "--skip": _PAGED, "--oldest-first": _PAGED}
    | {"--force": _FORCED},
    "dlq summary": _FILTERS | {"--force": _FORCED},
    "dlq purge": _FILTERS
    | {"--all": _FORCED, "--force": _FORCED, "--dry-run": _FORCED, "--yes": _REPLAYED}
    | {"--resume": _BACK},
    "dlq replay": _FILTERS
    | dict.fromkeys(("--rate", "--max-replays", "--dry-run"), _NAMED)
    | dict.fromkeys(("--by", "--keep-delay", "--all", "--to"), _BACK)
    | dict.fromkeys(
        ("--delay", "--priority", "--attempts", "--backoff", "--timeout", "--lane"),
        (OPTIONS, "test_a_replay_gives_jobs_the_options_it_is_told"),
    )
    | {"--data": _REPLAYED, "--yes": _REPLAYED, "--resume": _RESUMED}
    | {"--force": (LETTERS, "test_letters_of_a_group_that_is_over_are_left_with_words_and_a_code")},
    "groups cancel": {"--reason": _GROUPS, "--yes": _GROUPS},
    "groups complete-member": {"--result": _STAGES},
    "groups fail-member": {"--reason": _STAGES, "--yes": _STAGES},
    "groups list": {"--state": _GROUPS}
    | dict.fromkeys(("--limit", "--skip", "--oldest-first"), _PAGED),
    "groups resolve": {"--note": _UNDONE, "--yes": _UNDONE},
    "lanes list": {"--limit": _PAGED, "--skip": _PAGED, "--state": _LANES},
    "lanes jobs": {"--limit": _LANES, "--skip": _LANES},
    "lanes drain": {"--yes": _LANES, "--delayed": _EMPTIED},
    "schedulers list": {"--limit": _PAGED},
    "schedulers change": dict.fromkeys(("--every", "--cron", "--tz", "--limit"), _RESCHEDULED),
    "schedulers remove": {"--yes": _SCHEDULERS},
    "partitions grow": dict.fromkeys(("--wait", "--stop", "--yes"), _GROWN),
    "schedulers set": dict.fromkeys(("--every", "--cron", "--tz", "--data"), _SCHEDULERS)
    | dict.fromkeys(("--limit", "--immediately", "--name"), _SCHEDULED),
    "worker": {"--queue": _ROUTER, "--concurrency": _ROUTER, "--name": _ROUTER}
    | {"--reload": _RELOAD}
    | dict.fromkeys(
        ("--timeout", "--uvloop", "--verbose", "--reload-dir", "--executor", "--metrics-host"),
        _STARTED,
    )
    | {
        "--burst": (PRODUCTION, "test_a_burst_ends_when_the_queues_are_empty"),
        "--processes": (
            PRODUCTION,
            "test_several_processes_share_the_work_and_the_dead_are_replaced",
        ),
        "--metrics-port": (PRODUCTION, "test_probes_tell_whether_a_worker_can_work"),
        "--log-format": (
            PRODUCTION,
            "test_a_failed_attempt_is_logged_with_all_that_is_needed_to_find_it",
        ),
    },
    "relay": dict.fromkeys(("--timeout", "--verbose", "--metrics-host"), _STARTED)
    | {
        "--metrics-port": (FEATURES, "test_relay_carries_jobs_from_an_outbox_until_sigterm"),
        "--log-format": (
            PRODUCTION,
            "test_a_failed_attempt_is_logged_with_all_that_is_needed_to_find_it",
        ),
    },
    "dev": {
        "--directory": (COMMANDS, "test_dev_serves_until_it_is_told_to_stop"),
        "--temporary": (COMMANDS, "test_dev_opens_a_port_for_other_programs"),
        "--port": (COMMANDS, "test_dev_opens_a_port_for_other_programs"),
        "--no-dashboard": (COMMANDS, "test_dev_opens_a_port_for_other_programs"),
        "--open": (COMMANDS, "test_dev_opens_the_dashboard"),
    },
    "bench": {
        "--jobs": (COMMANDS, "test_bench_measures_and_leaves_nothing_behind"),
        "--concurrency": (COMMANDS, "test_bench_measures_and_leaves_nothing_behind"),
    },
}

EVERYWHERE = {"--url", "--prefix", "--json", "--version"}
"""Options of every command; `test_commands.py` and REFUSED are about them."""

REFUSED = [
    (["retry", "1", "--state", "completed"], "--state"),
    (["add", "q", "n", "--wait-timeout", "1s"], "--wait-timeout"),
    (["add", "q", "n", "--from", "/dev/null", "--wait"], "--wait"),
    (["doctor", "--no-audit", "--most-keys", "5"], "--most-keys"),
    (["monitor", "--json", "--interval", "2s"], "--interval"),
    (["dev", "--temporary", "--directory", "d"], "--directory"),
    (["dev", "--url", "redis://x"], "--url"),
    (["dev", "--open", "--no-dashboard"], "--no-dashboard"),
    (["demo", "--prefix", "p"], "--prefix"),
    (["relay", "json:loads", "--json"], "--json"),
    (["relay", "json:loads", "--metrics-host", "::"], "--metrics-host"),
    (["completion", "bash", "--url", "redis://x"], "--url"),
    (["worker", "json:loads", "-q", "q", "--json"], "--json"),
    (["worker", "json:loads", "-q", "q", "--reload-dir", "."], "--reload-dir"),
    (["worker", "json:loads", "-q", "q", "--metrics-host", "::"], "--metrics-host"),
    (["worker", "shop:single", "--url", "redis://x"], "--url"),
    (["dlq", "replay", "q", "1", "--resume"], "--resume"),
    (["dlq", "replay", "q", "1", "--all"], "ids or filters"),
    (["dlq", "replay", "q", "1", "--name", "n"], "ids or filters"),
    (["dlq", "replay", "q", "1", "2", "--data", "{}"], "--data"),
    (["dlq", "replay", "q", "--all", "--data", "{}"], "--data"),
    (["dlq", "replay", "q", "--all", "--rate", "0"], "--rate"),
    (["dlq", "purge", "q", "--all", "--name", "n"], "--all"),
]


def options() -> Iterator[tuple[str, click.Option]]:
    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Option]]:
        ctx = click.Context(command)
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                found = command.get_command(ctx, name)
                assert found is not None
                yield from walk(found, (*path, name))
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not set(parameter.opts) & EVERYWHERE:
                yield " ".join(path), parameter

    yield from walk(main.toril, ())


@cache
def source_of(file: str, test: str) -> str:
    """The text of one test function, with its decorators."""
    text = (HERE / file).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == test:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise AssertionError(f"{file} has no {test}")


def test_every_option_of_every_command_is_shown_by_a_test():
    """A new option has to be honoured or refused, and somebody has to have looked."""
    known = {(command, option) for command, tests in SHOWN.items() for option in tests}
    there = {(command, option.opts[-1]): option for command, option in options()}

    assert there.keys() - known == set(), "give each of these a test, and name it in SHOWN"
    assert known - there.keys() == set(), "these are gone"
    for (command, name), option in there.items():
        text = source_of(*SHOWN[command][name])
        assert any(f'"{each}"' in text for each in option.opts), (command, name)


@pytest.mark.parametrize(("line", "what"), REFUSED, ids=[" ".join(line) for line, _ in REFUSED])
def test_an_option_that_would_do_nothing_is_refused(
    line: list[str], what: str, toril: Toril, tmp_path: Path
):
    (tmp_path / "shop.py").write_text(
        "class Single:\n    async def run(self): ...\n    async def close(self): ...\n"
        "single = Single()\n"
    )

    refused = toril(*line, env={"PYTHONPATH": f"{HERE.parent.parent / 'src'}:{tmp_path}"})

    assert refused.code == 2, refused
    assert what in refused.err, refused


@pytest.fixture
async def letters(client: Any, prefix: str) -> None:
    """Four letters; the names are "charge" and "refund" in turn."""
    await forge(client, prefix, "dlq", 4, source="q", names=("charge", "refund"))


def ids(answer: Any, key: str = "id") -> list[str]:
    return [row[key] for row in answer.json]


def test_pages_are_as_long_as_asked_for(
    toril: Toril, queue: Queue, letters: None, url: str, prefix: str
):
    for number, name in enumerate("aab"):
        queue.add(name, job_id=f"j{number}")
        queue.add("laned", lane=f"l{number}")
        queue.upsert_job_scheduler(f"s{number}", every=1000 * (number + 1))
    with FlowProducer(connection=url, prefix=prefix) as flow:
        groups = [
            flow.add_group("g", [GroupJob("n", queue_name="grouped")]).group_id for _ in range(3)
        ]

    jobs = ("jobs", "q", "-s", "waiting", "--json")
    everything = ids(toril(*jobs, "--oldest-first", "-n", "3"))
    assert everything[0] == "j0"
    assert ids(toril(*jobs, "--oldest-first", "--limit", "1", "--skip", "1")) == everything[1:2]
    assert ids(toril(*jobs, "--name", "b")) == ["j2"]

    assert ids(toril("dlq", "list", "dlq", "--json", "--skip", "1", "-n", "2")) == ["3", "2"]
    assert ids(toril("dlq", "list", "dlq", "--json", "--oldest-first"))[0] == "1"

    listed = ("groups", "list", "grouped", "--json")
    newest_first = ids(toril(*listed))
    assert sorted(newest_first) == sorted(groups)
    assert ids(toril(*listed, "--oldest-first")) == newest_first[::-1]
    assert ids(toril(*listed, "--skip", "1", "--limit", "1")) == [newest_first[1]]

    lanes = ("lanes", "list", "q", "--json")
    assert len(toril(*lanes).json) == 3
    assert len(toril(*lanes, "--limit", "2").json) == 2
    assert len(toril(*lanes, "--skip", "2").json) == 1
    assert len(toril("schedulers", "list", "q", "--json", "--limit", "2").json) == 2


FILTERS = [
    ("--name", "charge", 2),
    ("--reason", "REFUSED", 4),
    ("--reason", "other", 0),
    ("--fingerprint", "ConnectionError@bank.py:call", 4),
    ("--fingerprint", "x", 0),
    ("--no-fingerprint", None, 0),
    ("--source", "elsewhere", 0),
    ("--since", "1h", 0),
    ("--until", "1h", 4),
]


@pytest.mark.parametrize("verb", ["summary", "purge", "replay"])
def test_each_filter_of_dead_letters_is_honoured(verb: str, toril: Toril, letters: None):
    """Each of "--name", "--reason", "--fingerprint", "--no-fingerprint", "--source", "--since",
    "--until"."""
    for option, value, expected in FILTERS:
        line = ("dlq", verb, "dlq", option, *([] if value is None else [value]), "--json")
        if verb == "summary":
            counted = sum(group["count"] for group in toril(*line).json)
        else:
            (counted,) = toril(*line, "--dry-run").json.values()
        assert counted == expected, (option, value)


async def test_a_replay_gives_jobs_the_options_it_is_told(
    toril: Toril, letters: None, queue: Queue
):
    def act() -> None:
        line = ("dlq", "replay", "dlq", "1", "--json")
        told = ("--attempts", "9", "--backoff", "2s", "--timeout", "3s", "--delay", "1h")
        (answer,) = toril(*line, *told, "--priority", "4").json
        job = queue.get_job(answer["new_id"])
        assert job is not None
        assert job.opts.backoff is not None
        assert (job.opts.attempts, job.opts.backoff.delay, job.opts.timeout) == (9, 2000, 3000)
        assert (queue.get_state(job.id), job.priority) == ("delayed", 4)
        for options in (("--lane", "ana", "--priority", "1"), ("--delay", "1s", "--keep-delay")):
            refused = toril("dlq", "replay", "dlq", "--all", "--yes", *options)
            assert refused.code != 0, options
            assert "Traceback" not in refused.err
        assert toril("dlq", "replay", "dlq", "--all", "--yes", "--lane", "ana").code == 0
        assert [found.name for found in queue.get_lane_jobs("ana")]

    await asyncio.to_thread(act)


async def test_what_a_replay_is_told_is_kept(
    toril: Toril, letters: None, queue: Queue, client: Any, prefix: str
):
    note = await client.hget(f"{prefix}:dlq:1", "x.letter")
    await client.hset(f"{prefix}:dlq:1", "x.letter", note[:-1] + ',"delay":60000}')

    def act() -> None:
        kept = toril("dlq", "replay", "dlq", "1", "--keep-delay", "--by", "ana", "--json")
        (answer,) = kept.json
        assert queue.get_state(answer["new_id"]) == "delayed"
        stored.append(answer["new_id"])
        assert toril("dlq", "replay", "dlq", "2", "--to", "other").code == 0
        done = toril("dlq", "replay", "dlq", "--name", "refund", "--to", "other", "-y", "--json")
        assert done.json["replayed"] == 1
        done = toril("dlq", "replay", "dlq", "--all", "--yes", "--json")
        assert done.json["replayed"] == 1
        assert queue.get_waiting_count() == 1

    stored: list[str] = []
    await asyncio.to_thread(act)

    assert '"by":"ana"' in await client.hget(f"{prefix}:q:{stored[0]}", "x.history")
    await forge(client, prefix, "dlq", 400, source="q", names=("charge", "refund"))

    def stop(now: Any) -> None:
        raise KeyboardInterrupt

    def resume() -> None:
        with (
            Queue("dlq", connection=queue._connection, prefix=prefix) as dlq,
            pytest.raises(KeyboardInterrupt),
        ):
            dlq.purge_dead_letters(name="charge", on_progress=stop)
        line = ("dlq", "purge", "dlq", "--name", "charge", "--yes", "--json")
        assert toril(*line, "--resume").json["removed"] == 200

    await asyncio.to_thread(resume)


async def test_what_is_said_of_a_new_job_is_kept(toril: Toril, queue: Queue, url: str, prefix: str):
    def act() -> None:
        queue.add("first", job_id="first")
        added = toril("add", "q", "n", "--timeout", "5s", "--lifo", "--id", "x")
        assert added.code == 0, added
        assert queue.get_job("x").opts.timeout == 5000
        assert [job.id for job in queue.get_jobs("waiting")] == ["x", "first"]
        late = toril("add", "late", "n", "--wait", "--wait-timeout", "50ms")
        assert (late.code, "n" in late.err) == (1, True), late

    await asyncio.to_thread(act)

    async def answer(job: Any) -> str:
        return f"done {job.name}"

    async with Worker("q", answer, connection=url, prefix=prefix):
        waited = await asyncio.to_thread(toril, "add", "q", "n", "--wait")
    assert waited.json == "done n"


def test_what_is_said_of_a_scheduler_is_kept(toril: Toril, queue: Queue):
    line = ("schedulers", "set", "q", "s", "--cron", "0 9 1 1 *", "--json")
    options_ = ("--limit", "3", "--immediately", "--name", "tick")

    done = toril(*line, *options_)

    assert done.code == 0, done
    (scheduler,) = queue.get_job_schedulers()
    assert (scheduler.name, scheduler.limit) == ("tick", 3)
    assert queue.get_waiting_count() == 1


async def test_what_is_removed_is_what_was_said(toril: Toril, queue: Queue, url: str, prefix: str):
    def empty() -> None:
        for _ in range(2):
            queue.add("n", delay=3_600_000)
            queue.add("n", lane="l", delay=3_600_000)
        assert toril("drain", "q", "--yes", "--json").json["removed"] == 0
        assert toril("lanes", "drain", "q", "l", "-y", "--json").json["removed"] == 0
        lanes = toril("lanes", "drain", "q", "l", "-y", "--json", "--delayed")
        assert lanes.json["removed"] == 2
        assert toril("drain", "q", "--yes", "--json", "--delayed").json["removed"] == 2
        queue.add_bulk([NewJob("n") for _ in range(3)])
        cleaned = toril("clean", "q", "-s", "waiting", "--limit", "2", "-y", "--json")
        assert cleaned.json["removed"] == 2
        queue.drain()
        with FlowProducer(connection=url, prefix=prefix) as flow:
            node = flow.add(
                FlowJob("p", queue_name="q", children=[FlowJob("c", queue_name="children")])
            )
        kept = toril("remove", node.job.id, "-q", "q", "--keep-children", "-y")
        assert kept.code == 0, kept
        with Queue("children", connection=url, prefix=prefix) as children:
            assert children.get_waiting_count() == 1
            children.drain()
        queue.add("fails", job_id="f", attempts=2)

    await asyncio.to_thread(empty)

    async def fail(job: Any) -> None:
        raise ValueError("no")

    async with Worker("q", fail, connection=url, prefix=prefix):

        async def has_failed() -> bool:
            return await asyncio.to_thread(queue.get_failed_count) == 1

        await wait_until(has_failed)

    def retry() -> None:
        done = toril("retry", "f", "-q", "q", "--reset-attempts")
        assert done.code == 0, done
        assert queue.get_job("f").attempts_made == 0

    await asyncio.to_thread(retry)


def test_what_is_shown_is_what_was_asked_for(toril: Toril, queue: Queue, url: str, prefix: str):
    queue.add("n", job_id="a")
    queue.add("n", job_id="b")
    for number in range(3):
        queue.add_log("a", f"row {number}")
    with Queue("other", connection=url, prefix=prefix) as other:
        other.add("n")

    assert toril("job", "a", "-q", "q", "--logs", "2", "--json").json["logs"] == ["row 1", "row 2"]
    told = toril("events", "q", "--since", "0", "--job", "b", "-n", "2", "--json")
    assert told.out.count('"job_id": "b"') == 2
    looks = toril("monitor", "--json", "--queue", "other").json
    assert [look["queue"] for look in looks] == ["other"]
    few = toril("doctor", "--most-keys", "0", "--json").out
    assert few != toril("doctor", "--json").out


def test_what_a_program_is_told_reaches_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
):
    """The loops of `worker` and `relay` are left out: only what they are given is looked at."""
    (tmp_path / "given.py").write_text(
        "async def handler(job): ...\nclass Relay:\n    async def run(self): ...\nrelay = Relay()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given: list[Any] = []
    levels: list[int] = []
    ran: list[Any] = []

    def run(*services: Any, **options_: Any) -> None:
        ran.extend(services)
        given.append(options_)

    monkeypatch.setattr(worker, "run", run)
    monkeypatch.setattr(relay, "run", run)
    monkeypatch.setattr(relay, "Serving", lambda services, *where: where)
    monkeypatch.setattr(worker, "run_and_reload", lambda where, **_: given.append(where) or 0)
    monkeypatch.setattr(worker, "Serving", lambda services, *where: where)
    monkeypatch.setattr(logging, "basicConfig", lambda **options_: levels.append(options_["level"]))
    monkeypatch.setenv("TORIL_URL", url)
    line = ["worker", "given:handler", "-q", "q"]

    told = ["--url", url, "--timeout", "7s", "--uvloop", "--verbose"]
    for more in (told, ["--url", url]):
        assert main.run([*line, *more]) == 0
    served = ["--metrics-port", "0", "--metrics-host", "::1", "--executor", "process"]
    assert main.run([*line, *served]) == 0
    assert main.run([*line, "--reload", "--reload-dir", "a", "--reload-dir", "b"]) == 0
    assert main.run(["relay", "given:relay", "--timeout", "3s", "--verbose"]) == 0
    relayed = len(ran)
    assert main.run(["relay", "given:relay", "--metrics-port", "7", "--metrics-host", "::2"]) == 0
    assert ran[relayed + 1 :] == [("::2", 7)]

    assert given == [
        {"timeout": 7000, "uvloop": True},
        {"timeout": 8000, "uvloop": False},
        {"timeout": 8000, "uvloop": False},
        ("a", "b"),
        {"timeout": 3000},
        {"timeout": 25_000},
    ]
    assert levels == [logging.DEBUG, logging.INFO, logging.INFO, logging.DEBUG, logging.INFO]
    assert ran[3] == ("::1", 0)
    kinds = [type(one._plain._parts.executor).__name__ for one in ran[:3]]
    assert kinds == ["LocalExecutor", "LocalExecutor", "ProcessExecutor"]
