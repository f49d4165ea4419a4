"""Django's tasks on Toril: as Django describes them, and with a worker that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.forked import Forked
from tests.helpers import not_run

try:
    import django
except ImportError:
    not_run("Django is not installed: run make setup")
SETTINGS = "tests.contrib.django_site.settings"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", SETTINGS)
django.setup()

from django.conf import settings  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

from tests.contrib.django_site import tasks  # noqa: E402
from tests.servers import SAFE_ON_DISK  # noqa: E402
from tests.sql.conftest import mariadb_server, postgres  # noqa: E402, F401
from toril import DeadLetterOptions, GroupJob, NewJob  # noqa: E402
from toril.contrib.django import TorilBackend  # noqa: E402
from toril.contrib.django.names import (  # noqa: E402
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from toril.errors import PayloadError, PayloadTooLargeError, UnrecoverableError  # noqa: E402
from toril.outbox import Outbox, table_sql  # noqa: E402

ROOT = Path(__file__).parents[2]


def configured(url: str, prefix: str, **options: Any) -> dict[str, Any]:
    return {
        "default": {
            "BACKEND": "toril.contrib.django.TorilBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"URL": url, "PREFIX": prefix, **options},
        }
    }


@pytest.fixture
def backend(url: str, prefix: str) -> Iterator[TorilBackend]:
    with override_settings(TASKS=configured(url, prefix, JOB_OPTIONS={"attempts": 2})):
        yield task_backends["default"]


@contextlib.contextmanager
def working(backend: TorilBackend) -> Iterator[None]:
    """Workers for all queues, in a thread."""
    loop, end = asyncio.new_event_loop(), asyncio.Event()

    async def main() -> None:
        workers = [backend.make_worker(name, concurrency=4) for name in sorted(backend.queues)]
        for worker in workers:
            await worker.start()
        await end.wait()
        await asyncio.gather(*(worker.close() for worker in workers))

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(30)
        loop.close()


def wait_for(predicate: Callable[[], Any], patience_s: float = 60) -> Any:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if value := predicate():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def finished(result: Any) -> Any:
    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_for(is_finished)
    return result


def test_every_capability_is_there(backend):
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_a_result_goes_from_ready_to_successful(backend):
    heard: list[tuple[str, str]] = []

    def hear(name: str) -> Callable[..., None]:
        def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
            heard.append((name, task_result.status))

        return receive

    receivers = {
        "enqueued": task_enqueued,
        "started": task_started,
        "finished": task_finished,
    }
    kept = {name: hear(name) for name in receivers}
    for name, one in receivers.items():
        one.connect(kept[name])
    try:
        result = tasks.add.enqueue(1, b=2)
        assert (result.status, result.attempts) == (TaskResultStatus.READY, 0)
        assert result.enqueued_at is not None
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        with working(backend):
            finished(result)
    finally:
        for name, one in receivers.items():
            one.disconnect(kept[name])

    assert (result.return_value, result.attempts, result.errors) == (3, 1, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert heard == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    again = tasks.add.get_result(result.id)
    assert (again.args, again.kwargs, again.task) == ([1], {"b": 2}, tasks.add)
    assert again == result


def test_async_tasks_and_calls(backend):
    async def program() -> Any:
        result = await tasks.send.aenqueue("ann")
        for _ in range(3000):
            await result.arefresh()
            if result.is_finished:
                return result
            await asyncio.sleep(0.02)
        raise AssertionError(result)

    with working(backend):
        results = [asyncio.run(program()) for _ in range(2)]

    assert [one.return_value for one in results] == [{"to": "ann"}] * 2
    assert (results[0].task.priority, results[0].task.queue_name) == (5, "mail")


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_errors_and_attempts_are_told(backend, how):
    task = tasks.attempts.enqueue(9) if how == "blocking" else tasks.explode.enqueue()
    with working(backend):
        result = finished(task)

    error = KeyError if how == "blocking" else ValueError
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [one.exception_class for one in result.errors] == [error, error]
    assert "Traceback" in result.errors[0].traceback
    assert result.started_at <= result.last_attempted_at
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_an_attempt_after_a_failure_succeeds_and_remembers_it(backend):
    with working(backend):
        result = finished(tasks.attempts.enqueue(2))

    assert result.return_value == [2, result.id]
    assert [one.exception_class for one in result.errors] == [KeyError]
    assert len(result.worker_ids) == 2


def test_what_cannot_be_tried_again_or_stored_fails(backend):
    with working(backend):
        refused, unfit = finished(tasks.refuse.enqueue()), finished(tasks.bad_value.enqueue())

    assert (refused.attempts, unfit.errors[-1].exception_class) == (1, TypeError)
    assert refused.errors[0].exception_class.__name__ == "UnrecoverableError"


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_a_task_that_must_not_run_again_does_not_because_its_error_cannot_be_recorded(
    prefix, start_server, monkeypatch, how
):
    """The error of the record took the place of the task's own, and the task was tried again."""
    server, is_back = start_server(SAFE_ON_DISK), threading.Event()
    monkeypatch.setattr(tasks, "meanwhile", server.stop)

    def bring_back(sender: Any, task_result: Any, **more: Any) -> None:
        server.start()
        is_back.set()

    task_finished.connect(bring_back)
    try:
        options = configured(server.unix_url, prefix, JOB_OPTIONS={"attempts": 3})
        with override_settings(TASKS=options), working(task_backends["default"]):
            task = tasks.refuse_meanwhile if how == "blocking" else tasks.refuse_meanwhile_async
            result = task.enqueue()
            if not is_back.wait(30):
                server.start()  # or the workers could not end
            finished(result)
    finally:
        task_finished.disconnect(bring_back)

    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert [one.exception_class for one in result.errors] == [UnrecoverableError]
    assert "card declined" in result.errors[0].traceback


def test_what_a_receiver_raises_is_not_the_tasks_error(backend):
    def fail(sender: Any, **more: Any) -> None:
        raise ValueError("the receiver is broken")

    task_finished.connect(fail)
    try:
        with working(backend):
            refused, done = finished(tasks.refuse.enqueue()), finished(tasks.add.enqueue(1))
    finally:
        task_finished.disconnect(fail)

    assert [one.exception_class for one in refused.errors] == [UnrecoverableError]
    assert (refused.attempts, done.attempts, done.return_value) == (1, 1, 2)


def test_a_task_past_its_time_limit_says_so(url, prefix):
    settings = configured(url, prefix, JOB_OPTIONS={"timeout": 50})
    with override_settings(TASKS=settings), working(task_backends["default"]):
        result = finished(tasks.hang.enqueue())

    assert [one.exception_class.__name__ for one in result.errors] == ["HandlerTimeoutError"]
    assert result.attempts == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_a_task_that_became_a_dead_letter_has_a_result_if_its_job_is_kept(url, prefix, keeps):
    letters = DeadLetterOptions("letters", keep_source=keeps)
    settings = configured(url, prefix, WORKER_OPTIONS={"dead_letter_queue": letters})
    with override_settings(TASKS=settings), working(task_backends["default"]):
        if keeps:
            assert finished(tasks.explode.enqueue()).status == TaskResultStatus.FAILED
        else:
            with pytest.raises(TaskResultDoesNotExist):
                finished(tasks.explode.enqueue())


def test_attempts_that_left_no_word_are_counted(backend, url, prefix):
    """A worker took it and died; the next one raised."""
    from toril.sync import ManualWorker

    result = tasks.explode.enqueue()
    with ManualWorker("default", connection=url, prefix=prefix, lock_duration=200) as taker:
        assert taker.get_next_job().id == result.id
    with (
        override_settings(
            TASKS=configured(
                url,
                prefix,
                WORKER_OPTIONS={"stalled_interval": 100},
            )
        ),
        working(task_backends["default"]),
    ):
        finished(result)

    assert result.worker_ids[0] == "unknown"
    assert len(result.worker_ids) == len(result.errors) + 1
    assert {one.exception_class for one in result.errors} == {ValueError}


def test_tasks_run_after_their_time_and_the_urgent_first(backend, url, prefix):
    later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    order: list[Any] = []

    def note(sender: Any, task_result: Any, **kwargs: Any) -> None:
        order.append(task_result.args[0])

    for number, priority in enumerate((0, -100, 100, 1)):
        tasks.add.using(priority=priority).enqueue(number)
    task_finished.connect(note)
    try:
        with override_settings(TASKS=configured(url, prefix)):
            worker = task_backends["default"].make_worker("default", concurrency=1)

            async def main() -> None:
                running = asyncio.create_task(worker.run())
                while len(order) < 4:
                    await asyncio.sleep(0.01)
                await worker.close()
                await running

            asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        task_finished.disconnect(note)

    assert order == [2, 3, 0, 1]
    stored = tasks.add.get_result(later.id)
    assert stored.status == TaskResultStatus.READY
    assert stored.task.run_after == later.task.run_after


@pytest.fixture
def database(tmp_path: Path) -> Iterator[None]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS note (what TEXT)")
    yield
    connection.close()


def test_a_task_is_enqueued_when_the_transaction_is_committed(backend, database):
    with transaction.atomic():
        result = tasks.add.enqueue(1)
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(result.id)
    assert backend.get_result(result.id).status == TaskResultStatus.READY

    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        lost = tasks.add.enqueue(1)
        _ = 1 / 0
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(lost.id)


@pytest.mark.parametrize("when", ["commit", "now"])
def test_arguments_that_cannot_be_sent_are_refused_by_enqueue(url, prefix, database, when):
    """Regression: they were refused after the commit, and later tasks and hooks were lost."""
    hooks: list[str] = []
    given = {"n": 1}
    options = {"ENQUEUE": when, "JOB_OPTIONS": {"size_limit": 100}}
    with override_settings(TASKS=configured(url, prefix, **options)):
        with transaction.atomic():
            with pytest.raises(PayloadError, match="nan"):
                tasks.add.enqueue(float("nan"))
            with pytest.raises(PayloadTooLargeError):
                tasks.add.enqueue("x" * 100)
            result = tasks.add.enqueue(given)
            given["n"] = 2
            transaction.on_commit(lambda: hooks.append("later"))

        assert hooks == ["later"]
        assert tasks.add.get_result(result.id).args == [{"n": 1}]


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_now_does_not_wait_for_the_transaction(url, prefix, database, how):
    with override_settings(TASKS=configured(url, prefix, ENQUEUE="now")):
        if how == "async":
            result = asyncio.run(tasks.add.aenqueue(1))
        else:
            with transaction.atomic():
                result = tasks.add.enqueue(1)
                assert tasks.add.get_result(result.id).args == [1]
        assert tasks.add.get_result(result.id).status == TaskResultStatus.READY


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_tasks_go_to_the_partitions_of_their_queue(url, prefix, how):
    with override_settings(TASKS=configured(url, prefix, PARTITIONS={"mail": 4}, ENQUEUE="now")):
        backend = task_backends["default"]
        if how == "async":
            results = [asyncio.run(tasks.send.aenqueue(f"u{n}")) for n in range(6)]
        else:
            results = [tasks.send.enqueue(f"u{n}") for n in range(6)]
        queue = backend._blocking_queue("mail")
        assert sum(bool(part.get_waiting_count()) for part in queue.partitions) == 0
        assert sum(bool(part.get_prioritized_count()) for part in queue.partitions) > 1
        with working(backend):
            values = [finished(result).return_value for result in results]
        assert values == [{"to": f"u{n}"} for n in range(6)]


@pytest.mark.parametrize(
    ("options", "number", "words"),
    [
        ({"URI": "x"}, "toril.E001", "'URI', which is not known"),
        ({"ENQUEUE": "later"}, "toril.E002", "'later'"),
        ({"DATABASE": "other"}, "toril.E003", "not in DATABASES"),
        ({"URL": "http://x"}, "toril.E005", "not understood"),
        ({"JOB_OPTIONS": {"atempts": 2}}, "toril.E006", "attempts"),
        ({"JOB_OPTIONS": {"priority": 2}}, "toril.E006", "priority"),
        ({"WORKER_OPTIONS": {"size": 2}}, "toril.E007", "size"),
        ({"RELAY_OPTIONS": {"size": 2}}, "toril.E010", "size"),
        ({"PARTITIONS": {"mail": 0}}, "toril.E005", "partitions"),
    ],
)
def test_settings_are_checked(url, prefix, options, number, words):
    tasks_setting = configured(url, prefix)
    tasks_setting["default"]["OPTIONS"].update(options)
    with override_settings(TASKS=tasks_setting):
        found = list(task_backends["default"].check())

    assert [one.id for one in found] == [number]
    assert words in found[0].msg


def test_good_settings_pass_and_queues_must_be_named(url, prefix):
    with override_settings(TASKS=configured(url, prefix)):
        call_command("check", verbosity=0)
    nameless = configured(url, prefix)
    nameless["default"]["QUEUES"] = []
    with override_settings(TASKS=nameless):
        assert [one.id for one in task_backends["default"].check()] == ["toril.E004"]


def test_the_command_refuses_a_queue_that_is_not_there(backend):
    with pytest.raises(CommandError, match="not in the QUEUES"):
        call_command("toril_worker", queues=["other"])


def test_the_outbox_needs_its_app_and_a_database_that_can(url, prefix, monkeypatch):
    with override_settings(TASKS=configured(url, prefix, ENQUEUE="outbox")):
        assert list(task_backends["default"].check()) == []
        monkeypatch.setattr(type(connections["default"]), "vendor", "oracle")
        assert [one.id for one in task_backends["default"].check()] == ["toril.E009"]
    monkeypatch.undo()
    names = [app for app in settings.INSTALLED_APPS if app != "toril.contrib.django"]
    with (
        override_settings(TASKS=configured(url, prefix, ENQUEUE="outbox"), INSTALLED_APPS=names),
    ):
        assert [one.id for one in task_backends["default"].check()] == ["toril.E008"]


class Site:
    """A site with a database of its own, which is the default one of its processes."""

    def __init__(self, environment: dict[str, str], database: dict[str, Any]) -> None:
        self.environment = environment
        self.database = f"site-{secrets.token_hex(4)}"  # threads of others keep their connections
        connections.databases[self.database] = {**connections.databases["default"], **database}
        with connections[self.database].cursor() as cursor:
            cursor.execute("CREATE TABLE done (what TEXT)")

    def close(self) -> None:
        call_command("migrate", "toril", "zero", database=self.database, verbosity=0)
        with connections[self.database].cursor() as cursor:
            cursor.execute("DROP TABLE done")
            cursor.execute("DROP TABLE django_migrations")
        connections[self.database].close()
        del connections[self.database], connections.databases[self.database]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with connections[self.database].cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def start(self, command: str, url: str, prefix: str, *arguments: str) -> Forked:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": str(ROOT),
            "SITE_PREFIX": prefix,
            "SITE_URL": url,
            **self.environment,
        }
        return Forked("-m", "django", command, *arguments, env=environment, cwd=ROOT)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        path = str(tmp_path / "site.db")
        site = Site({"SITE_DATABASE": path}, {"NAME": path})
    elif request.param == "mariadb":
        socket = f"{request.getfixturevalue('mariadb_server').directory}/mariadb.sock"
        engine = "django.db.backends.mysql"
        where = {"ENGINE": engine, "HOST": socket, "NAME": "toril", "USER": "root"}
        site = Site({"SITE_MARIADB": socket}, {**where, "OPTIONS": {}})
    else:
        host = request.getfixturevalue("postgres").partition("host=")[2]
        engine = "django.db.backends.postgresql"
        where = {"ENGINE": engine, "HOST": host, "NAME": "postgres", "USER": "postgres"}
        site = Site({"SITE_POSTGRES": host}, {**where, "OPTIONS": {}})
    call_command("migrate", database=site.database, verbosity=0)
    yield site
    site.close()


@contextlib.contextmanager
def killed(process: Forked) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait(30)


@contextlib.contextmanager
def ended(process: Forked) -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 0


def end_lock(url: str, prefix: str, result: Any) -> None:
    """Let the time of a lock be over that nobody renews any more.

    A short one would also end while a slow machine keeps a worker waiting that lives.
    """
    with redis.Redis.from_url(url) as client:
        client.delete(f"{prefix}:default:{result.id}:lock")


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_a_killed_worker_loses_nothing(url, prefix, tmp_path, site):
    flag = tmp_path / "flag"
    with override_settings(TASKS=configured(url, prefix, JOB_OPTIONS={"attempts": 2})):
        result = tasks.slow.enqueue(str(flag))
        with killed(site.start("toril_worker", url, prefix, "--concurrency", "2")):
            wait_for(flag.exists)
            result.refresh()
            assert (result.status, result.attempts) == (TaskResultStatus.RUNNING, 1)
        end_lock(url, prefix, result)
        second = site.start("toril_worker", url, prefix, "--concurrency", "2")
        with ended(second):
            finished(result)

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, second.pid)
    assert len(set(result.worker_ids)) == 2
    assert site.query("SELECT count(*) FROM done") == [(1,)]


def test_a_task_is_written_with_the_order_and_survives_every_kill(url, prefix, tmp_path, site):
    """``ENQUEUE = "outbox"``: Redis is not asked, and a relay and a worker die in the middle."""
    flag = tmp_path / "flag"
    enqueued: list[str] = []

    def note(sender: Any, task_result: Any, **kwargs: Any) -> None:
        enqueued.append(task_result.id)

    options = {"ENQUEUE": "outbox", "DATABASE": site.database, "JOB_OPTIONS": {"attempts": 2}}
    task_enqueued.connect(note)
    try:
        with override_settings(TASKS=configured("redis://127.0.0.1:1", prefix, **options)):
            with transaction.atomic(using=site.database):
                result = tasks.slow.enqueue(str(flag))
                assert enqueued == []
            with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=site.database):
                lost = tasks.add.enqueue(1)
                _ = 1 / 0
        assert enqueued == [result.id]
    finally:
        task_enqueued.disconnect(note)

    with override_settings(TASKS=configured(url, prefix, **options)):
        result.refresh()
        assert (result.status, result.args) == (TaskResultStatus.READY, [str(flag)])
        assert asyncio.run(tasks.slow.aget_result(result.id)).enqueued_at is not None
        with (
            killed(site.start("toril_relay", url, prefix)),
            killed(site.start("toril_worker", url, prefix)),
        ):
            wait_for(flag.exists)
        end_lock(url, prefix, result)
        # As if the relay had died before it wrote down that it sent the row.
        with connections[site.database].cursor() as cursor:
            cursor.execute("UPDATE toril_outbox SET status = 'pending', due_at = 0")
        second = site.start("toril_worker", url, prefix)
        with ended(site.start("toril_relay", url, prefix)), ended(second):
            finished(result)
            wait_for(lambda: site.query("SELECT status FROM toril_outbox") == [("dispatched",)])

        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, second.pid)
        assert site.query("SELECT what FROM done") == [("slow",)]
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(lost.id)


def test_async_code_writes_to_the_outbox_too(url, prefix, site):
    options = {"ENQUEUE": "outbox", "DATABASE": site.database}
    with override_settings(TASKS=configured(url, prefix, **options)):
        result = asyncio.run(tasks.send.aenqueue("ann"))

        assert tasks.send.get_result(result.id).status == TaskResultStatus.READY
        rows = site.query("SELECT id, queue, status FROM toril_outbox")
        assert rows == [(result.id, "mail", "pending")]


def test_the_table_is_a_migration_that_can_be_shown_and_taken_back(site):
    """And it is that of the outbox everywhere, which other migrations may have made already."""
    shown = io.StringIO()
    call_command("migrate", "toril", "zero", database=site.database, verbosity=0)
    call_command("sqlmigrate", "toril", "0001", database=site.database, stdout=shown)
    assert "CREATE TABLE" in shown.getvalue()
    assert "ix_toril_outbox_lane" in shown.getvalue()
    for statement in table_sql(connections[site.database].vendor):
        with connections[site.database].cursor() as cursor:
            cursor.execute(statement)

    call_command("migrate", database=site.database, verbosity=0)
    call_command("makemigrations", "--check", verbosity=0)

    assert site.query("SELECT count(*) FROM toril_outbox") == [(0,)]


def test_a_job_of_ones_own_goes_with_djangos_transaction(url, prefix, site):
    """The outbox takes Django's connection and its cursors, whatever writes tasks."""
    outbox = Outbox()
    with transaction.atomic(using=site.database):
        first = outbox.add(connections[site.database], "mail", "send", {"to": "ann"})
        with connections[site.database].cursor() as cursor:
            second = outbox.add(cursor, "mail", "send", {"to": "bob"})
        third = outbox.add_group(
            connections[site.database], "order", [GroupJob("send", queue_name="mail")]
        )
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=site.database):
        outbox.add_bulk(connections[site.database], "mail", [NewJob("send")])
        _ = 1 / 0

    assert site.query("SELECT id FROM toril_outbox ORDER BY seq") == [(first,), (second,), (third,)]
