"""What Django's backend is asked with odd ids, foreign jobs, wrong settings and rude tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contrib.test_django import (  # noqa: F401
    backend,
    configured,
    finished,
    wait_for,
    working,
)

# isort: split
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from tests.contrib.django_site import tasks
from toril.contrib.django.names import TaskResultDoesNotExist, TaskResultStatus, task_backends
from toril.contrib.django.records import KEPT, LONGEST_TRACE
from toril.sync import Queue

ADD = "tests.contrib.django_site.tasks.add"
ODD_IDS = ["", "meta", "wait", "\0", "\ud800", "x" * 100_000, "a:b", "*", None, 123, b"x", [], 1.5]


@pytest.mark.parametrize("odd", ODD_IDS, ids=lambda odd: repr(odd)[:20])
def test_an_odd_id_has_no_result(backend, odd):  # noqa: F811
    """Regression: some raised errors of the queue, and 10 MB of an id stood in the error."""
    with pytest.raises(TaskResultDoesNotExist) as told:
        backend.get_result(odd)
    with pytest.raises(TaskResultDoesNotExist):
        asyncio.run(backend.aget_result(odd))

    assert len(str(told.value).encode()) <= 1000


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("foreign", {"x": 1}),
        ("..", {"args": [], "kwargs": {}}),
        ("os.path", {"args": [], "kwargs": {}}),
        (ADD, {"x": 1}),
        (ADD, [1]),
        (ADD, None),
        (ADD, {"args": 1, "kwargs": {}}),
        (ADD, {"args": [1], "kwargs": {}, "run_after": "tomorrow"}),
    ],
)
def test_a_job_that_is_no_task_fails_alone_and_has_no_result(backend, url, prefix, name, data):  # noqa: F811
    with Queue("default", connection=url, prefix=prefix) as queue:
        job = queue.add(name, data)
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(job.id)
        good = tasks.add.enqueue(1)
        with working(backend):
            assert finished(good).return_value == 2
            wait_for(lambda: queue.get_state(job.id) == "failed")

        reason = queue.get_job(job.id).failed_reason
        assert "is not a Django task" in reason or "there is no task" in reason


def test_a_task_whose_priority_was_changed_in_the_queue_still_runs(backend, url, prefix):  # noqa: F811
    """Regression: Django refused the priority, and the task could neither run nor be read."""
    result = tasks.add.enqueue(1)
    with Queue("default", connection=url, prefix=prefix) as queue:
        queue.change_priority(result.id, priority=5000)
    assert backend.get_result(result.id).task.priority == -100

    with working(backend):
        assert finished(result).return_value == 2


@pytest.mark.parametrize(
    ("task", "words", "error"),
    [
        (tasks.leave, ["exit"], SystemExit),
        (tasks.leave, ["interrupt"], KeyboardInterrupt),
        (tasks.leave, ["close"], GeneratorExit),
        (tasks.leave_async, [], SystemExit),
    ],
)
def test_a_task_that_wants_to_end_the_program_only_fails(backend, task, words, error):  # noqa: F811
    """Regression: SystemExit was told as an error of Toril, KeyboardInterrupt ended the worker."""
    with working(backend):
        result = finished(task.enqueue(*words))
        assert finished(tasks.add.enqueue(1)).return_value == 2

    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [one.exception_class_path for one in result.errors] == [f"builtins.{error.__name__}"] * 2
    assert f"{error.__name__}: " in result.errors[0].traceback


def test_the_records_of_failed_attempts_have_a_bound(url, prefix):
    """Regression: a task that failed 1,000 times carried 1,000 tracebacks to every next attempt."""
    attempts, size = KEPT + 10, 2 * LONGEST_TRACE
    settings = configured(url, prefix, JOB_OPTIONS={"attempts": attempts})
    with override_settings(TASKS=settings), working(task_backends["default"]):
        result = finished(tasks.rant.enqueue(size))

        with Queue("default", connection=url, prefix=prefix) as queue:
            left = queue.get_job(result.id).progress
    assert result.attempts == attempts
    assert len(result.errors) == KEPT
    assert len(result.errors[-1].traceback) < LONGEST_TRACE + 100
    assert "characters left out" in result.errors[-1].traceback
    kept = [one["attempt"] for one in left["django_attempts"]]
    assert kept == [1, *range(attempts - KEPT + 2, attempts + 1)]
    assert result.started_at <= result.last_attempted_at
    assert "unknown" in result.worker_ids


@pytest.mark.parametrize(
    "progress", [50, "half", {"django_attempts": 5}, {"django_attempts": [{"class": 1}]}]
)
def test_a_progress_of_somebody_else_is_no_record(backend, url, prefix, progress):  # noqa: F811
    result = tasks.add.enqueue(1)
    with Queue("default", connection=url, prefix=prefix) as queue:
        queue.update_progress(result.id, progress)
    assert backend.get_result(result.id).errors == []

    with working(backend):
        assert finished(result).return_value == 2


@pytest.mark.no_audit("the job is damaged on purpose")
def test_a_damaged_count_of_attempts_is_not_believed_without_end(backend, url, prefix):  # noqa: F811
    import redis

    result = tasks.add.enqueue(1)
    with redis.Redis.from_url(url) as client:
        client.hset(f"{prefix}:default:{result.id}", "ats", 10**12)

    assert backend.get_result(result.id).attempts <= 100_000


WRONG: list[tuple[str, Any]] = [
    ("URL", 5),
    ("URL", b"redis://"),
    ("PREFIX", None),
    ("ENQUEUE", ["now"]),
    ("DATABASE", []),
    ("JOB_OPTIONS", 5),
    ("JOB_OPTIONS", "attempts"),
    ("WORKER_OPTIONS", None),
    ("WORKER_OPTIONS", [("concurrency", 5)]),
    ("RELAY_OPTIONS", 5),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_setting_of_the_wrong_type_is_told_by_checks_and_on_use(url, prefix, name, value):
    """Regression: most of them were a TypeError of Python wherever the backend was first used."""
    settings = configured(url, prefix)
    settings["default"]["OPTIONS"][name] = value
    with override_settings(TASKS=settings):
        backend = task_backends["default"]
        assert [one.id for one in backend.check()] == ["toril.E011"]
        for use in (
            lambda: tasks.add.enqueue(1),
            lambda: asyncio.run(tasks.add.aenqueue(1)),
            lambda: backend.make_worker("default"),
            backend.make_relay,
        ):
            with pytest.raises(ImproperlyConfigured, match=name):
                use()


@pytest.mark.parametrize(
    "wrong", [{"OPTIONS": None}, {"OPTIONS": 5}, {"QUEUES": 5}, {"QUEUES": "mail"}]
)
def test_a_backend_of_the_wrong_shape_is_told(url, prefix, wrong):
    settings = {"default": {**configured(url, prefix)["default"], **wrong}}
    with override_settings(TASKS=settings):
        assert [one.id for one in task_backends["default"].check()] == ["toril.E011"]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"WORKER_OPTIONS": {"concurrency": "many"}}, "toril.E007"),
        ({"WORKER_OPTIONS": {"lock_duration": -1}}, "toril.E007"),
        ({"RELAY_OPTIONS": {"batch_size": 0}}, "toril.E010"),
    ],
)
def test_values_of_options_are_checked_too(url, prefix, options, number):
    with override_settings(TASKS=configured(url, prefix, **options)):
        assert [one.id for one in task_backends["default"].check()] == [number]
