"""``toril worker`` as it is run in production: an app, several processes, probes, logs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Toril
from tests.forked import Forked
from tests.helpers import wait_until_sync
from tests.servers import Server
from toril import App
from toril.cli.loading import RunningApp, Wishes, services_of
from toril.cli.server import Server as Place
from toril.cli.worker import workers_of
from toril.sync import Queue
from toril.worker.health import trouble_of

MODULE = """
import os, time
from toril import App, Worker

app = App(
    prefix=os.environ["TORIL_PREFIX"],
    worker_options={"lock_duration": 2000, "stalled_interval": 500, "max_stalled_count": 10},
)

@app.task
def whose() -> int:
    return os.getpid()

@app.task(queue="other")
async def other() -> str:
    return "other"

@app.task(attempts=2)
async def broken(word: str) -> None:
    raise ValueError(f"a bad word: {word}")

@app.task
def slow() -> int:
    time.sleep(0.3)
    return os.getpid()

@app.task
def held() -> int:
    while not os.path.exists("go"):
        time.sleep(0.01)
    return os.getpid()

@app.task
def timed() -> list:
    began = time.monotonic()
    time.sleep(0.1)
    return [os.getpid(), began, time.monotonic()]

def make():
    return app

worker = Worker("default", app.router, prefix=os.environ["TORIL_PREFIX"])
if os.environ.get("BREAK"):
    os._exit(7)
"""

Start = Callable[..., Forked]
COMMANDS = ("toril.cli.main", "toril.cli.worker")


@pytest.fixture
def start(cli_env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts ``toril worker`` with these arguments; its output goes to the file ``log``."""
    (tmp_path / "shop.py").write_text(MODULE)
    running: list[Forked] = []

    def start(*arguments: str, **env: str) -> Forked:
        with (tmp_path / "log").open("a") as log:
            words = ("-m", "toril", "worker", *arguments)
            env = cli_env | {"PYTHONDONTWRITEBYTECODE": "1"} | env
            running.append(
                Forked(*words, cwd=tmp_path, env=env, stderr=log.fileno(), needs=COMMANDS)
            )
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.terminate()
        process.wait(30)


@pytest.fixture
def queue_name() -> str:
    return "default"


@pytest.fixture
def log(tmp_path: Path) -> Callable[[], str]:
    return lambda: (tmp_path / "log").read_text()


def port_of(log: Callable[[], str]) -> int:
    """The port that the worker says it serves on."""
    line = wait_until_sync(
        lambda: next((at for at in log().splitlines() if "metrics on http" in at), ""), timeout=30
    )
    return int(line.rpartition(":")[2])


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_an_app_runs_on_all_its_queues_until_sigterm(
    start: Start, queue: Queue, url: str, prefix: str, log: Callable[[], str]
):
    process = start("shop:app")

    assert isinstance(queue.wait_for(queue.add("whose").id, timeout=30_000), int)
    with Queue("other", connection=url, prefix=prefix) as other:
        assert other.wait_for(other.add("other").id, timeout=30_000) == "other"
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    assert "running jobs then have 8 s" in log()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ((None, None), ("redis://own", "own")),
        (("redis://typed", None), ("redis://typed", "own")),
        ((None, "typed"), ("redis://own", "typed")),
        (("redis://typed", "typed"), ("redis://typed", "typed")),
    ],
)
def test_an_app_looks_where_it_says_except_for_what_somebody_typed(
    monkeypatch: pytest.MonkeyPatch,
    typed: tuple[str | None, str | None],
    found: tuple[str, str],
):
    """Regression: --url alone gave it another prefix, where its workers found nothing."""
    monkeypatch.setenv("TORIL_URL", "redis://environment")
    monkeypatch.setenv("TORIL_PREFIX", "environment")
    app = App(connection="redis://own", prefix="own")
    app.task(other)
    monkeypatch.setitem(sys.modules, "a_shop", SimpleNamespace(app=app))

    services_of(Place(*typed, as_json=False), "a_shop:app", Wishes())

    assert (app.connection, app.prefix) == found


def other() -> None: ...


def test_a_factory_gives_what_is_to_run_and_queues_may_be_chosen(start: Start, queue: Queue):
    start("shop:make", "--queue", "default:3", "--name", "anna")

    job = queue.add("whose")

    queue.wait_for(job.id, timeout=30_000)
    found = queue.get_job(job.id)
    assert found is not None
    assert found.processed_by == "anna"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("shop:app", "--queue", "typo"), "no task of the app goes to queue 'typo'"),
        (("shop:worker", "--url", "redis://127.0.0.1:1"), "already has its own server"),
        (("shop:worker", "--executor", "process"), "already has its own options"),
        (("shop:app", "--reload", "--burst"), "--reload cannot be combined"),
        (("shop:app", "--reload-dir", "."), "--reload-dir needs --reload"),
        (("shop:app", "--queue", "default:0"), "give at least 1"),
        (("shop:nothing",), "has no 'nothing'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    toril: Toril, tmp_path: Path, arguments: tuple[str, ...], says: str
):
    (tmp_path / "shop.py").write_text(MODULE)

    done = toril("worker", *arguments)

    assert done.code == 2
    assert says in done.err


def test_a_burst_ends_when_the_queues_are_empty(start: Start, queue: Queue, prefix: str):
    jobs = queue.add_bulk([_new("whose") for _ in range(50)])
    queue.add("whose", delay=3_600_000)

    assert start("shop:app", "--burst").wait(60) == 0

    assert {queue.get_state(job.id) for job in jobs} == {"completed"}
    assert queue.get_job_counts()["delayed"] == 1


def test_several_processes_share_the_work_and_the_dead_are_replaced(
    start: Start, queue: Queue, log: Callable[[], str]
):
    process = start("shop:app", "--processes", "4", "--queue", "default:2")
    pids: set[int] = set()

    def all_four() -> bool:
        jobs = queue.add_bulk([_new("slow") for _ in range(12)])
        pids.update(queue.wait_for(job.id, timeout=60_000) for job in jobs)
        return len(pids) >= 4

    wait_until_sync(all_four, timeout=60, every=0)
    known, victim = set(pids), pids.pop()
    jobs = queue.add_bulk([_new("slow") for _ in range(24)])
    os.kill(victim, signal.SIGKILL)
    done = {queue.wait_for(job.id, timeout=60_000) for job in jobs}
    wait_until_sync(lambda: "it is started again" in log())
    if done <= known:
        wait_until_sync(lambda: _runs_anew(queue, known), every=0)
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    assert "died after" in log()
    assert "SIGKILL" in log()
    assert wait_until_sync(lambda: queue.get_workers() == [])


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no signals without a name")
def test_a_process_that_died_of_a_signal_without_a_name_is_replaced(
    start: Start, queue: Queue, log: Callable[[], str]
):
    """Most real-time signals have none: a traceback ended the parent, and with it all others."""
    process = start("shop:app", "--processes", "2")
    victim = queue.wait_for(queue.add("whose").id, timeout=60_000)
    os.kill(victim, signal.SIGRTMIN + 1)
    wait_until_sync(lambda: "it is started again" in log() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    assert f"signal {signal.SIGRTMIN + 1}" in log()


def test_concurrency_is_kept_over_four_processes_although_children_are_killed(
    start: Start, queue: Queue, log: Callable[[], str]
):
    process = start("shop:app", "--processes", "4", "--queue", "default:2")
    runs: list[list[float]] = []
    killed: set[int] = set()

    def work(count: int) -> None:
        jobs = queue.add_bulk([_new("timed") for _ in range(count)])
        if len(runs) in (32, 64):  # two children die with what they run
            victim = next(int(pid) for pid, _, _ in reversed(runs) if pid not in killed)
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)
        runs.extend(queue.wait_for(job.id, timeout=100_000) for job in jobs)

    for _ in range(4):
        work(32)
    wait_until_sync(lambda: log().count("it is started again") == 2, timeout=60)
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    assert len(runs) == 128
    assert queue.get_job_counts()["active"] == 0
    assert 2 < _most_at_once(runs) <= 8
    for pid in {run[0] for run in runs}:
        assert _most_at_once([run for run in runs if run[0] == pid]) <= 2


def _most_at_once(runs: list[list[float]]) -> int:
    """How many ran at the same time, at most; an end counts before a beginning."""
    turns = sorted([(end, -1) for _, _, end in runs] + [(began, 1) for _, began, _ in runs])
    return max(itertools.accumulate(change for _, change in turns))


def test_children_end_when_their_parent_is_killed(start: Start, queue: Queue, tmp_path: Path):
    """Regression: after ``kill -9`` of the parent nobody could tell them to stop any more."""
    process = start("shop:app", "--processes", "2")
    pids: set[int] = set()

    def both() -> bool:
        jobs = queue.add_bulk([_new("slow") for _ in range(6)])
        pids.update(queue.wait_for(job.id, timeout=60_000) for job in jobs)
        return len(pids) >= 2

    wait_until_sync(both, timeout=60, every=0)
    under_way = queue.add("held")
    wait_until_sync(lambda: queue.get_state(under_way.id) == "active")
    os.kill(process.pid, signal.SIGKILL)
    (tmp_path / "go").touch()

    assert queue.wait_for(under_way.id, timeout=60_000) in pids
    wait_until_sync(lambda: not any(_is_alive(pid) for pid in pids))
    assert wait_until_sync(lambda: queue.get_workers() == [])


def test_a_reloading_worker_ends_when_its_parent_is_killed(start: Start, queue: Queue):
    process = start("shop:app", "--reload")
    child = queue.wait_for(queue.add("whose").id, timeout=60_000)
    os.kill(process.pid, signal.SIGKILL)

    wait_until_sync(lambda: not _is_alive(child))


def _is_alive(pid: int) -> bool:
    """A process that ended and that nobody has asked after is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _runs_anew(queue: Queue, known: set[int]) -> bool:
    """Has a process run a job that was not there before?"""
    jobs = queue.add_bulk([_new("slow") for _ in range(12)])
    return not {queue.wait_for(job.id, timeout=60_000) for job in jobs} <= known


def test_a_child_that_cannot_start_ends_it_all(start: Start, log: Callable[[], str]):
    process = start("shop:app", "--processes", "2", BREAK="1")

    assert process.wait(120) == 4
    assert "giving up" in log()
    assert "exit code 7" in log()


def test_probes_tell_whether_a_worker_can_work(
    start: Start,
    log: Callable[[], str],
    start_server: Callable[..., Server],
    prefix: str,
):
    server = start_server(tcp=True)
    start("shop:app", "--metrics-port", "0", TORIL_URL=server.url)
    port = port_of(log)

    wait_until_sync(lambda: fetch(port, "/readyz")[0] == 200, timeout=30)
    with Queue("default", connection=server.url, prefix=prefix) as queue:
        queue.wait_for(queue.add("whose").id, timeout=30_000)
    attempts = 'toril_attempts_total{name="whose",outcome="completed",queue="default"}'
    # Whoever waits for a job may hear of its end before its worker does.
    status, metrics = wait_until_sync(
        lambda: attempts in (answer := fetch(port, "/metrics"))[1] and answer
    )

    assert status == 200
    assert f"{attempts} 1.0" in metrics
    assert fetch(port, "/healthz") == (200, "ok\n")
    assert fetch(port, "/else")[0] == 404

    server.close()
    status, why = wait_until_sync(
        lambda: (answer := fetch(port, "/readyz"))[0] == 503 and answer, timeout=60, every=0.2
    )
    assert "cannot reach its server" in why
    assert fetch(port, "/healthz")[0] == 200


async def test_an_app_that_has_no_workers_is_not_ready(prefix: str):
    """Whatever runs beside it is."""
    app = App(prefix=prefix)
    app.task(lambda: None, name="nothing")
    service = RunningApp(app, Wishes())

    (found,) = workers_of([service])

    assert found is service
    assert trouble_of(service) == "<App of 1 task on queues default> is not running"


def test_probes_answer_before_the_server_does(
    start: Start, log: Callable[[], str], start_server: Callable[..., Server], prefix: str
):
    server = start_server({"appendonly": "yes"}, tcp=True)
    with Queue("spread", connection=server.url, prefix=prefix, partitions=4) as queue:
        jobs = queue.add_bulk([_new("whose") for _ in range(12)])
    server.stop()
    words = ("shop:app.router", "--queue", "default", "--queue", "spread", "--metrics-port", "0")
    process = start(*words, TORIL_URL=server.url)
    port = port_of(log)

    assert fetch(port, "/healthz") == (200, "ok\n")
    _, why = wait_until_sync(
        lambda: (answer := fetch(port, "/readyz"))[1].count("cannot reach") == 2 and answer,
        timeout=60,
    )
    assert "queue 'default'" in why
    assert "queue 'spread'" in why
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0

    start(*words, TORIL_URL=server.url)
    wait_until_sync(lambda: log().count("waits for its server") == 4, timeout=60)
    server.start()
    with Queue("spread", connection=server.url, prefix=prefix, partitions=4) as queue:
        assert len({queue.wait_for(job.id, timeout=60_000) for job in jobs}) == 1


def test_a_failed_attempt_is_logged_with_all_that_is_needed_to_find_it(
    start: Start, queue: Queue, log: Callable[[], str]
):
    start("shop:app", "--log-format", "json", "--metrics-port", "0")
    job = queue.add("broken", {"word": "x\x1b[2J"}, attempts=2)

    wait_until_sync(lambda: log().count("a bad word") >= 2, timeout=30)
    wait_until_sync(lambda: queue.get_state(job.id) == "failed")
    entries = [json.loads(line) for line in log().splitlines()]  # one object per line, all of them
    told = [entry for entry in entries if entry.get("job_id") == job.id]

    assert [(one["level"], one["attempt"], one["attempts"]) for one in told] == [
        ("warning", 1, 2),
        ("error", 2, 2),
    ]
    assert {(one["queue"], one["job_name"], one["logger"]) for one in told} == {
        ("default", "broken", "toril.jobs")
    }
    assert "ValueError" in told[0]["exception"]
    assert "Traceback" in told[1]["exception"]
    assert "\x1b" not in log()


def _new(name: str):  # type: ignore[no-untyped-def]
    from toril import NewJob

    return NewJob(name)


def test_schedules_of_the_code_are_listed_and_pruned(toril: Toril, tmp_path: Path, queue: Queue):
    (tmp_path / "clock.py").write_text(
        "import os\nfrom toril import App, every\n"
        'app = App(prefix=os.environ["TORIL_PREFIX"])\n'
        "@app.task(schedule=every(minutes=5))\ndef often() -> None: ...\n"
    )
    queue.upsert_job_scheduler("task.gone", every=60_000)
    queue.upsert_job_scheduler("by-hand", every=60_000)

    listed = toril("schedules", "list", "clock:app", "--json")
    pruned = toril("schedules", "prune", "clock:app", "--yes")

    assert {one["id"]: (one["declared"], one["stored"]) for one in json.loads(listed.out)} == {
        "task.often": (True, False),
        "task.gone": (False, True),
    }
    assert "Removed 1 schedule" in pruned.out
    assert [one.id for one in queue.get_job_schedulers()] == ["by-hand"]


def test_schedules_that_come_while_somebody_is_asked_are_kept(
    cli_env: dict[str, str], tmp_path: Path, queue: Queue
):
    """A newer version of the code is deployed meanwhile; its schedule was removed unasked."""
    (tmp_path / "clock.py").write_text(
        "import os\nfrom toril import App\n"
        'app = App(prefix=os.environ["TORIL_PREFIX"])\n'
        "@app.task\ndef often() -> None: ...\n"
    )
    queue.upsert_job_scheduler("task.gone", every=60_000)
    with subprocess.Popen(
        [sys.executable, "-m", "toril", "schedules", "prune", "clock:app"],
        cwd=tmp_path,
        env=cli_env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asked:
        assert asked.stderr is not None
        question = asked.stderr.read(len("Remove 1 schedule (task.gone)?"))
        assert question == b"Remove 1 schedule (task.gone)?"
        queue.upsert_job_scheduler("task.new", every=60_000)
        out, _ = asked.communicate(b"y\n", timeout=60)

    assert out == b"Removed 1 schedule.\n"
    assert [one.id for one in queue.get_job_schedulers()] == ["task.new"]
