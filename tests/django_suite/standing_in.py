"""Runs Django's ``tests/tasks`` with Toril's backend in the place of Django's two.

::

    python -m tests.django_suite.standing_in FOLDER_OF_TASKS ENQUEUE

Prints one JSON object: how each test ended, "passed" or the last line of what it said.  It runs in
an environment of `environments`, on a server of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import unittest
from typing import Any

import django
from django.conf import settings

from tests.servers import Server

QUEUES = ["default", "queue_1"]
PREFIX = "suite"
PASSED = "passed"
PATIENCE_S = 60.0


def configure() -> None:
    """Settings as small as Django's own suite has them for these tests."""
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(
        SECRET_KEY="not secret",
        USE_TZ=True,
        INSTALLED_APPS=["toril.contrib.django"],
        DATABASES={"default": memory, "other": memory},
    )
    django.setup()


def stand_in(url: str, moment: str) -> None:
    """Put backends of ours where Django's tests import theirs from.

    They say what the tests leave out, the server, the prefix, the moment and the queues, and they
    have the two things that Django's have for tests: `results` and running at once.
    """
    from django.tasks.backends import dummy, immediate

    from toril.contrib.django import TorilBackend
    from toril.sync import Queue

    ours = {"URL": url, "PREFIX": PREFIX, "ENQUEUE": moment}

    class StandIn(TorilBackend):
        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            given = params.get("OPTIONS", {})
            super().__init__(alias, {**params, "OPTIONS": {**ours, **given}})
            self.options = given

        @property
        def known_queues(self) -> list[str]:
            return sorted(self.queues or QUEUES)

    class DummyBackend(StandIn):
        """Keeps what was enqueued: no worker runs."""

        @property
        def results(self) -> list[Any]:
            found = []
            for name in self.known_queues:
                with Queue(name, connection=url, prefix=PREFIX) as queue:
                    found += queue.get_jobs(["waiting", "prioritized", "delayed"])
            return [self.get_result(job.id) for job in found]

        def clear(self) -> None:
            for name in self.known_queues:
                with Queue(name, connection=url, prefix=PREFIX) as queue:
                    queue.obliterate(force=True)

    class ImmediateBackend(StandIn):
        """Runs a worker after each call, until the task has ended."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self._work(result)
            return result

        async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            if moment != "now":
                return await super().aenqueue(task, args, kwargs)  # calls `enqueue` in a thread
            result = await super().aenqueue(task, args, kwargs)
            await asyncio.to_thread(self._work, result)
            return result

        def _work(self, result: Any) -> None:
            thread = threading.Thread(target=asyncio.run, args=(self._run(result),))
            thread.start()
            thread.join()

        async def _run(self, result: Any) -> None:
            if await self._afind(result.id) is None:
                return  # its transaction is not committed: no worker can know of it
            worker = self.make_worker(result.task.queue_name)
            await worker.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while not result.is_finished:
                        await result.arefresh()
                        await asyncio.sleep(0.005)
            finally:
                await worker.close()

    dummy.DummyBackend = DummyBackend
    immediate.ImmediateBackend = ImmediateBackend


class Noting(unittest.TestResult):
    """Notes for each test how it ended; of parts, the first that fell."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, words: str) -> None:
        name = test.id().removeprefix("tasks.")
        if self.ended.get(name, PASSED) == PASSED:
            self.ended[name] = words

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's names)
        self._note(test, PASSED)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._note(test, _last_line(err))

    addFailure = addError  # noqa: N815

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, f"skipped: {reason}")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self._note(test, _last_line(err))


def _last_line(err: Any) -> str:
    kind, value, _ = err
    words = str(value).strip().splitlines()
    return f"{kind.__name__}: {words[0] if words else ''}"[:300]


def run(folder: str, moment: str) -> dict[str, str]:
    """How each test of the folder ended."""
    from django.test import SimpleTestCase
    from django.test.utils import get_runner

    sys.path.insert(0, folder)
    # "commit" asks the connection whether there is a transaction, and these tests may not.
    SimpleTestCase.databases = "__all__" if moment == "commit" else frozenset()
    runner = get_runner(settings, "django.test.runner.DiscoverRunner")(verbosity=0)
    runner.setup_test_environment()
    suite = runner.build_suite(["tasks"])
    databases = runner.setup_databases()
    noting = Noting()
    try:
        suite.run(noting)
    finally:
        runner.teardown_databases(databases)
    return noting.ended


def main() -> None:
    folder, moment = sys.argv[1:]
    configure()
    with Server(tcp=True) as server:
        stand_in(server.url, moment)
        ended = run(folder, moment)
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
