"""``toril`` as a person uses it: the program runs, and the server shows what it did."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys

import httpx
import pytest

from tests.cli.conftest import Toril
from tests.cli.terminal import Terminal
from tests.helpers import not_run, wait_until, wait_until_sync
from toril import NewJob, Queue, Worker
from toril.cli.main import run
from toril.cli.printing import fitted
from toril.sync import Queue as BlockingQueue

NOBODY = "redis://127.0.0.1:1"


@pytest.fixture
def queue_name() -> str:
    return "payments"


def test_jobs_are_added_listed_and_shown(toril: Toril, queue):
    added = toril(
        *("add", "payments", "charge", '{"order": 123}', "--id", "order-123"),
        *("--attempts", "5", "--backoff", "1m30s", "--priority", "2"),
    )
    delayed = toril("add", "payments", "mail", "--delay", "2h", "--json").json
    again = toril("add", "payments", "charge", "--id", "order-123")

    assert added.out == "order-123: added\n"
    assert again.out == "order-123: was there already\n"
    job = queue.get_job("order-123")
    assert job.data == {"order": 123}
    assert job.opts.attempts == 5
    assert job.opts.backoff.delay == 90_000
    assert job.priority == 2
    assert queue.get_job(delayed["id"]).delay == 7_200_000

    listed = toril("jobs", "payments", "--json").json
    assert {(job["id"], job["state"]) for job in listed} == {
        ("order-123", "prioritized"),
        (delayed["id"], "delayed"),
    }
    table = toril("jobs", "payments", "-s", "prioritized").out
    assert "order-123" in table
    assert delayed["id"] not in table

    shown = toril("job", "order-123").out
    assert '"order": 123' in shown
    assert "worker" in shown.partition("why")[2].splitlines()[0], "nobody runs it"
    facts = toril("job", "order-123", "--queue", "payments", "--json").json
    assert facts["state"] == "prioritized"
    assert facts["opts"]["attempts"] == 5

    queues = toril("queues", "--json").json
    assert [(row["queue"], row["prioritized"], row["delayed"]) for row in queues] == [
        ("payments", 1, 1)
    ]
    assert "payments" in toril("queues").out
    assert "No worker is connected" in toril("queues", "payments").out


async def test_a_completed_job_that_failed_before_does_not_say_that_it_failed(
    toril: Toril, url: str, prefix: str
):
    async def handler(job):
        if job.attempts_started == 1:
            raise ValueError("no such card")

    async with Queue("payments", connection=url, prefix=prefix) as queue:
        job = await queue.add("charge", attempts=2)
        async with Worker("payments", handler, connection=url, prefix=prefix):
            await queue.wait_for(job.id, timeout=60_000)

        shown = toril("job", job.id).out
        assert re.search(r"^last failure +ValueError: no such card$", shown, re.MULTILINE), shown
        assert not re.search(r"^failed +", shown, re.MULTILINE)


async def test_a_failed_job_shows_its_log_and_traces_and_is_retried(
    toril: Toril, url: str, prefix: str
):
    async def handler(job):
        await job.log(f"attempt {job.attempts_started}")
        if job.name == "bad":
            raise ValueError("no such card")
        return {"receipt": 7}

    async with Queue("payments", connection=url, prefix=prefix) as queue:
        bad = await queue.add("bad", attempts=2)
        good = await queue.add("good")
        async with Worker("payments", handler, connection=url, prefix=prefix, worker_name="w1"):
            await wait_until(lambda: queue.get_failed_count())
            await wait_until(lambda: queue.get_completed_count())

        shown = toril("job", bad.id).out
        attempts = toril("job", bad.id, "--json").json["attempt_history"]
        assert [(one["number"], one["worker"]) for one in attempts] == [(1, "w1"), (2, "w1")]
        assert all(one["started_on"] <= one["ended_on"] for one in attempts)
        assert "Attempts" in shown
        assert "no such card" in shown
        assert "attempt 1\nattempt 2" in shown
        assert "Failed attempt 2" in shown
        assert "w1" in shown
        assert re.search(r"^failed +ValueError: no such card$", shown, re.MULTILINE)
        assert '{"receipt": 7}' in toril("job", good.id).out

        assert toril("retry", bad.id, good.id, "-q", "payments").code == 0
        assert (await queue.get_job_counts("waiting"))["waiting"] == 2
        refused = toril("retry", bad.id, "missing", "-q", "payments")
        assert refused.code == 1
        assert len(refused.err.splitlines()) == 2, refused
        assert "Traceback" not in refused.err


def test_pausing_promoting_cancelling_and_emptying(toril: Toril, queue):
    queue.add_bulk([NewJob("n", {"n": n}, job_id=f"j-{n}") for n in range(5)])
    queue.add("later", delay=3_600_000, job_id="late")

    assert toril("pause", "payments").out == "Queue 'payments' is paused.\n"
    assert queue.is_paused()
    assert toril("resume", "payments", "--json").json == {"queue": "payments", "is_paused": False}
    assert not queue.is_paused()

    assert toril("promote", "late").out == "late: promoted\n"
    assert queue.get_state("late") == "waiting"
    cancelled = toril("cancel", "j-0", "--reason", "the customer left", "--json").json
    assert cancelled == [{"id": "j-0", "done": True, "queue": "payments", "how": "ended"}]
    assert queue.get_job("j-0").failed_reason == "cancelled: the customer left"
    assert toril("retry", "--all", "-q", "payments").out == "Retried 1 failed job.\n"
    assert queue.get_state("j-0") == "waiting"
    assert toril("remove", "j-0", "--yes").out == "j-0: removed\n"
    assert queue.get_job("j-0") is None


@pytest.fixture
def other(url: str, prefix: str):
    """Another queue, which has a job "j-1" too."""
    with BlockingQueue("other", connection=url, prefix=prefix) as other:
        other.add("n", job_id="j-1")
        yield other


def test_a_slip_in_one_of_several_ids_changes_nothing(toril: Toril, queue, other):
    """The jobs before it were changed, those after it were not, and no answer told which."""
    queue.add_bulk([NewJob("n", job_id=f"j-{n}") for n in range(3)])

    for line, words in (
        (("remove", "j-0", "j-1", "j-2", "--yes"), "exists in the queues"),
        (("remove", "j-0", "wait", "j-2", "--yes", "-q", "payments"), "cannot be the id"),
        (("cancel", "nobody", "j-0", "wait", "-q", "payments"), "cannot be the id"),
        (("cancel", "j-0", "j-2", "-q", "a:b"), "cannot be used"),
    ):
        for more in ((), ("--json",)):
            refused = toril(*line, *more)
            assert (refused.code, refused.out) == (2, ""), refused
            assert words in refused.err
    assert queue.get_job_counts("waiting", "failed") == {"waiting": 3, "failed": 0}


def test_a_job_that_is_refused_does_not_stop_the_others(toril: Toril, queue):
    queue.add_bulk([NewJob("n", job_id=f"j-{n}") for n in range(2)])

    done = toril("cancel", "j-0", "nobody", "j-1", "--json")

    assert done.code == 1
    first, refused, last = json.loads(done.out)
    told = {"done": True, "queue": "payments", "how": "ended"}
    assert [first, last] == [{"id": "j-0", **told}, {"id": "j-1", **told}]
    assert list(refused) == ["id", "done", "error"]
    assert "nobody" in refused["error"]
    assert queue.get_failed_count() == 2


@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_that_is_lost_half_way_takes_no_answers_along(
    as_json: bool, cli_env, monkeypatch, capsys, start_server
):
    """Which jobs had been changed was told only behind the last of them."""
    server = start_server(tcp=True)
    with BlockingQueue("payments", connection=server.url) as payments:
        payments.add_bulk([NewJob("n", job_id=f"j-{n}", delay=60_000) for n in range(3)])
    promote = BlockingQueue.promote

    def kill_after_the_first(queue: BlockingQueue, job_id: str) -> None:
        if job_id == "j-1":
            server.kill()
        promote(queue, job_id)

    monkeypatch.setattr(BlockingQueue, "promote", kill_after_the_first)
    line = ["--url", server.url, "promote", "j-0", "j-1", "j-2", "-q", "payments"]

    assert run([*line, "--json"] if as_json else line) == 3

    printed = capsys.readouterr()
    told = {"id": "j-0", "done": True, "queue": "payments", "how": "promoted"}
    assert printed.out == "j-0: promoted\n" if not as_json else json.loads(printed.out) == [told]
    assert len(printed.err.splitlines()) == 1, printed.err


def test_nothing_is_destroyed_before_somebody_said_yes(toril: Toril, queue):
    queue.add_bulk([NewJob("n") for _ in range(3)])
    job_id = queue.get_job_ids("waiting")["waiting"][0]

    for command in (
        ("drain", "payments"),
        ("clean", "payments", "--state", "waiting"),
        ("obliterate", "payments", "--force"),
        ("remove", job_id),
    ):
        for answer in ("", "n\n"):
            done = toril(*command, typed=answer)
            assert done.code == 1, done
            assert "nothing was done" in done.err
        assert toril(*command).err.splitlines()[-1].startswith("toril: "), "on a line of its own"
    assert queue.get_waiting_count() == 3

    assert toril("remove", job_id, typed="y\n").code == 0
    assert queue.get_waiting_count() == 2
    assert toril("clean", "payments", "-s", "waiting", "--older-than", "1h", "-y").code == 0
    assert queue.get_waiting_count() == 2
    assert toril("drain", "payments", typed="y\n").out.endswith("Removed 2 jobs.\n")
    refused = toril("obliterate", "payments", "--yes")
    assert (refused.code, "toril pause payments" in refused.err) == (1, True)
    assert toril("obliterate", "payments", "--yes", "--force", "--json").json["removed"] == 0


def test_many_jobs_come_from_a_file_and_bad_lines_add_nothing(toril: Toril, queue):
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1500))

    assert toril("add", "payments", "n", "--from", "-", typed=lines).out == "Added 1,500 jobs.\n"
    assert queue.get_waiting_count() == 1500
    assert queue.get_waiting(1499, 1499)[0].data == {"n": 1499}

    bad = toril("add", "payments", "n", "--from", "-", typed='{"n": 1}\n{"n"\n')
    assert (bad.code, "line 2 is not JSON" in bad.err) == (2, True)
    assert queue.get_waiting_count() == 1500


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["queues", "--url", NOBODY], 3, "is the server up"),
        (["--url", NOBODY, "events", "payments"], 3, "is the server up"),
        (["queues", "--url", "http://x"], 2, "is not understood"),
        (["queues", "--url", "{password}"], 3, "does not accept the user or the password"),
        (["pause", "a:b"], 2, "cannot be used"),
        (["add", "payments", "n", "{no"], 2, "DATA is not JSON"),
        (["add", "payments", "n", "--delay", "soon"], 2, "is no duration"),
        (["add", "payments", "n", "--delay", "²"], 2, "is no duration"),
        (["add", "payments", "n", "--delay", "٣s"], 2, "is no duration"),
        (["add", "payments", "n", "--delay", "9" * 5000], 2, "longer than a hundred years"),
        (["add", "payments", "n", "--delay", "9" * 400 + "d"], 2, "longer than a hundred years"),
        (["dlq", "purge", "q", "--since", "1000000000d"], 2, "longer than a hundred years"),
        (["add", "payments", "n", "@missing.json"], 2, "cannot read"),
        (["add", "payments", "n", "--id", "41"], 2, "is a number"),
        (["jobs", "payments", "--state", "lost"], 2, "lost"),
        (["job", "nobody-knows"], 1, "no queue"),
        (["retry", "--all"], 2, "--all needs --queue"),
        (["quues"], 2, "did you mean 'queues'"),
        (["worker", "nowhere:worker"], 2, "no module 'nowhere'"),
        (["worker", "json:loads"], 2, "--queue"),
        (["worker", "json:loads", "--queue", "payments:²"], 2, "cannot be used"),
        (["worker", "json:loads", "--queue", f"payments:{'9' * 5000}"], 2, "cannot be used"),
        (["worker", "json"], 2, "module:object"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    cli_env, monkeypatch, capsys, arguments, code, words
):
    monkeypatch.setenv("TORIL_URL", cli_env["TORIL_URL"])
    monkeypatch.setenv("TORIL_PREFIX", cli_env["TORIL_PREFIX"])

    wrong = cli_env["TORIL_URL"].replace("://", "://:wrong@")
    assert run([wrong if word == "{password}" else word for word in arguments]) == code

    printed = capsys.readouterr()
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1, printed.err
    assert printed.out == ""


def test_the_program_itself_ends_with_that_code_and_no_traceback(cli_env):
    done = subprocess.run(
        [sys.executable, "-m", "toril", "queues", "--url", NOBODY],
        capture_output=True,
        text=True,
        env=cli_env,
    )

    assert done.returncode == 3
    assert done.stderr.startswith("toril: ")
    assert len(done.stderr.splitlines()) == 1, done


@pytest.mark.no_audit("the log is damaged on purpose")
def test_a_log_of_events_that_cannot_be_read_is_said_in_a_line(toril: Toril, queue, server):
    queue.add("first")
    with server.client() as client:
        client.delete(queue.keys.events)
        client.sadd(queue.keys.events, "no stream")

    for since in ([], ["--since", "0"]):
        done = toril("events", "payments", *since)

        assert done.code == 3
        assert "of another kind" in done.err
        assert len(done.err.splitlines()) == 1, done


def test_events_are_tailed_as_they_happen(cli_env, queue, tmp_path):
    queue.add("first", job_id="first")
    command = [sys.executable, "-m", "toril", "events", "payments", "--since", "0"]
    with subprocess.Popen(
        [*command, "--json", "-e", "waiting", "-n", "2"],
        env=cli_env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())]
        queue.add("second", job_id="second")
        seen.append(json.loads(process.stdout.readline()))
        assert process.wait(60) == 0
    assert [(event["event"], event["job_id"]) for event in seen] == [
        ("waiting", "first"),
        ("waiting", "second"),
    ]

    with subprocess.Popen(
        command, env=cli_env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "added" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_dev_serves_until_it_is_told_to_stop(cli_env, tmp_path):
    command = [sys.executable, "-m", "toril", "dev", "--json", "--directory", "data"]
    with subprocess.Popen(
        command, env=cli_env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        prefix = cli_env["TORIL_PREFIX"]
        with BlockingQueue("payments", connection=told["url"], prefix=prefix) as queue:
            queue.add("charge")
            waiting = queue.get_waiting_count()
            # A page does not wait for long for the names of queues that it is looking for.
            page = told["dashboard"]
            wait_until_sync(lambda: ">payments</a>" in httpx.get(page, timeout=30).text)
        process.terminate()
        assert process.wait(60) == 0
    assert waiting == 1
    wait_until_sync(lambda: not (tmp_path / "data" / "valkey.sock").exists())


def test_dev_opens_the_dashboard(cli_env, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "toril", "dev", "--temporary", "--open", "--json"]
    with subprocess.Popen(
        command,
        env={**cli_env, "BROWSER": f"{browser} %s"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        opened = tmp_path / "opened"
        wait_until_sync(lambda: opened.exists() and opened.read_text(), timeout=60)
        assert opened.read_text() == f"{told['dashboard']}\n"
        process.terminate()
        assert process.wait(60) == 0


def test_dev_opens_a_port_for_other_programs(cli_env, tmp_path):
    from tests.servers import free_port

    port = str(free_port())
    command = [sys.executable, "-m", "toril", "dev", "--temporary", "--port", port]
    command.append("--no-dashboard")
    with subprocess.Popen(
        command, env=cli_env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert "toril dashboard" in lines[-1], "there is none yet"
        assert f"  export TORIL_URL=redis://127.0.0.1:{port}\n" in lines
        with BlockingQueue("payments", connection=f"redis://127.0.0.1:{port}") as queue:
            assert queue.get_waiting_count() == 0
        process.terminate()
        assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def test_bench_measures_and_leaves_nothing_behind(toril: Toril):
    measured = toril("bench", "-n", "300", "-c", "7", "--json").json

    assert measured["concurrency"] == 7

    assert measured["drain_per_s"] > 0
    assert measured["pick_up_p50_ms"] <= measured["pick_up_p99_ms"]
    assert toril("queues", "--json").json == []


def test_completion_is_printed_for_programs_too(toril: Toril):
    for shell in ("bash", "zsh", "fish"):
        found = toril("completion", shell, "--json").json
        assert found["script"] == toril("completion", shell).out.removesuffix("\n")
        assert "_TORIL_COMPLETE" in found["script"]


def test_the_shell_completes_commands_and_queues(toril: Toril, queue):
    queue.add("n")

    assert "_toril_completion" in toril("completion", "bash").out
    words = {"_TORIL_COMPLETE": "bash_complete", "COMP_WORDS": "toril pau", "COMP_CWORD": "1"}
    assert toril(env=words).out == "plain,pause\n"
    words |= {"COMP_WORDS": "toril pause pay", "COMP_CWORD": "2"}
    assert toril(env=words).out == "plain,payments\n"


def test_long_work_moves_a_bar_on_a_terminal_and_prints_none_elsewhere(cli_env, queue, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("{}\n" * 5000)
    command = [sys.executable, "-m", "toril", "add", "payments", "n", "--from", str(lines)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        env=cli_env | {"TERM": "xterm-256color"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        written = b""  # a piece may end in the middle of a character
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while piece := os.read(ours, 65536):
                written += piece
        out, _ = process.communicate(timeout=30)
    os.close(ours)
    drawn = written.decode()

    assert out == "Added 5,000 jobs.\n"
    assert "adding" in drawn
    assert re.search(r"\b\d000/", drawn), drawn


def test_a_queue_that_is_not_there_is_no_empty_queue(toril: Toril, queue):
    """A misspelt name must not look like a queue that has nothing to do."""
    queue.add("n")

    assert "There is no queue 'paymnets'" in toril("queues", "paymnets").out
    assert re.search(r"waiting +1\n", toril("queues", "payments").out)
    assert toril("queues", "paymnets", "--json").json["waiting"] == 0


def test_a_table_fits_the_terminal_and_keeps_what_one_copies(cli_env, queue):
    """At 80 columns every row is one line with its id in full; a pipe gets all of it."""
    if not Terminal.is_available():
        not_run("tmux is missing, so no real terminal was driven")
    job = queue.add("a-job-with-a-long-name", {"text": "x" * 100}, priority=3)
    names = ("TORIL_URL", "TORIL_PREFIX", "PYTHONPATH")
    env = {name: cli_env[name] for name in names} | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    for arguments, first in ((["jobs", "payments"], job.id), (["queues"], "payments")):
        command = shlex.join([sys.executable, "-m", "toril", *arguments])
        with Terminal(["sh", "-c", f"{command}; sleep 60"], env) as terminal:
            wait_until_sync(lambda first=first: first in terminal.screen(), timeout=30, every=0.1)
            lines = [line for line in terminal.screen().splitlines() if line.strip()]
        assert len(lines) == 3, lines
        assert lines[2].startswith(first)
        assert "priorit" in " ".join(lines)


def test_a_table_is_cut_where_it_hurts_least():
    cells = [["j" * 22, "name", "1,234", "d" * 60, ""], ["j" * 22, "n" * 30, "5", "d", ""]]

    columns, cut = fitted(["id", "name", "#tries", "data", "reason"], cells, 80)

    assert columns == ["id", "name", "#tries", "data"], "nothing is said of reasons"
    assert [row[0] for row in cut] == ["j" * 22] * 2
    assert cut[0][2] == "1,234"
    assert cut[0][3].endswith("d…")
    assert all(sum(map(len, row)) + 6 <= 80 for row in cut)
    assert fitted(["queue"], [["ä☃" * 40]], 40)[1] == [[("ä☃" * 40)[:39] + "…"]]
    group = ["g" * 36, "order-fulfilment", "FAILED_COMPENSATION", "1", "2", "3", "4", "5s ago"]
    names = ["id", "name", "state", "#jobs", "#completed", "#failed", "#cancelled", "created"]
    columns, ((first, *_),) = fitted(names, [group], 80)
    assert (first, columns[:4]) == (group[0], names[:4]), "the last columns go, the id stays"


async def test_an_event_of_a_year_that_no_calendar_has_is_shown(
    toril: Toril, queue, client, prefix
):
    """Another program wrote it; `toril events` and the monitor ended with a ValueError."""
    queue.add("n")
    strange = "300000000000000-0"
    await client.xadd(f"{prefix}:payments:events", {"event": "strange"}, id=strange)

    shown = await asyncio.to_thread(toril, "events", "payments", "--since", "0", "--count", "3")

    assert shown.code == 0, shown
    assert shown.out.splitlines()[2].startswith(f"{strange}  payments  strange"), shown
