"""Fixtures: one real Valkey per process, a prefix per test, and an audit after it."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import re
import secrets
import signal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis.asyncio

from tests.helpers import NOT_RUN
from tests.keyspace import audit, dump, keys_under, reader_of
from tests.ordering import in_order
from tests.servers import Cluster, Server
from toril import Queue

GARBAGE = (10_000, 20, 50)
"""How many new objects there are before those that refer to each other are looked for."""


def pytest_configure(config: pytest.Config) -> None:
    """Let a run that is told to end stop its servers first, as it does on Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # A shell without job control starts what runs in the background deaf to Ctrl-C, and the
        # programs that the tests start would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # redis-py reads its own version from the disk for every connection.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    # A collection in the middle of a rewritten module confuses CPython 3.11 now and then ("AST
    # constructor recursion depth mismatch"), and finds next to nothing while tests are read.
    gc.disable()


def pytest_collection_finish() -> None:
    # The tests themselves stay to the end: no collection need look through them again.
    gc.freeze()
    gc.enable()
    # A test makes thousands of objects and few cycles: one in sixteen seconds went into the search.
    gc.set_threshold(*GARBAGE)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of this test process; with ``-n`` each process has its own."""
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    """The URL of the server."""
    return server.url


@pytest.fixture
def redis_url(url: str) -> str:
    """Another name of `url`."""
    return url


@pytest.fixture
async def client(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A raw client that decodes text, for what a test wants to see or to break."""
    async with redis.asyncio.Redis.from_url(
        url, decode_responses=True, encoding_errors="backslashreplace"
    ) as client:
        yield client


@pytest.fixture
async def prefix(request: pytest.FixtureRequest, url: str) -> AsyncIterator[str]:
    """A prefix of this test's own; what the test left under it is audited, then deleted."""
    prefix = f"t{secrets.token_hex(5)}"
    yield prefix
    reader = reader_of(url)
    problems: list[str] = []
    if request.node.get_closest_marker("no_audit") is None:
        problems += await audit(reader, prefix)
    if problems:
        problems.append("what is there:\n" + await dump(reader, prefix))
    reader.delete(await keys_under(reader, prefix))
    strays = await keys_under(reader, "")
    problems += [f"the test wrote {key!r}, outside its prefix" for key in strays[:20]]
    if strays:
        reader.client.flushall()
    if problems:
        pytest.fail("the keyspace audit found:\n" + "\n".join(problems), pytrace=False)


@pytest.fixture
def queue_name() -> str:
    """What `queue` is called; a folder or a file whose tests speak of another one overrides it."""
    return "q"


@pytest.fixture
async def queue(url: str, prefix: str, queue_name: str) -> AsyncIterator[Queue]:
    """A queue under the test's prefix, closed after it."""
    async with Queue(queue_name, connection=url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own (the arguments are Server's), gone after the test."""
    servers: list[Server] = []

    def start(options: dict[str, str] | None = None, *, tcp: bool = False) -> Server:
        server = Server(options, tcp=tcp)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters, shared by the tests that need a cluster."""
    with Cluster() as cluster:
        yield cluster


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what was not run, and why: a skipped test proves nothing.

    One line for each reason, so that nothing that matters is pushed off the screen; ``-v`` names
    the tests.
    """
    reasons: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        reasons[_reason(report)].append(report.nodeid)
    if not reasons:
        return
    terminalreporter.section("NOT RUN", yellow=True)
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{len(tests):4}  {reason}")
        if terminalreporter.verbosity > 0:
            for test in tests:
                terminalreporter.write_line(f"          {test}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return re.sub(r"^Skipped: ", "", text).removeprefix(NOT_RUN)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test must have the same name in every process that runs a part of them."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} is named by an address; use ids=name_of")
    if (given := getattr(config, "workerinput", None)) is not None:
        items[:] = in_order(items, given["workercount"])
