"""Fixtures: a visitor without a browser, a dashboard that is served, and one Chromium."""

from __future__ import annotations

import asyncio
import html
import re
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from tests.dashboard.world import World, world
from tests.helpers import not_run
from toril.client.finder import Finder
from toril.dashboard import dashboard
from toril.dashboard.security import COOKIE, csrf_token

HOST = "127.0.0.1:8787"
SHELL = "chromium-headless-shell"
"""Chromium without its windows: it takes two thirds of the time."""
FLAGS = (
    "--headless", "--no-sandbox", "--num-raster-threads=1", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
FLAGS_OF_WINDOWS = ("--disable-gpu", "--in-process-gpu")
"""The shell draws nothing with them."""


class Visitor:
    """Somebody on this machine who sends what a browser would send."""

    def __init__(self, app: Any, client: tuple[str, int] = ("127.0.0.1", 5000)) -> None:
        self.app = app
        transport = httpx.ASGITransport(app=app, client=client)
        self.http = httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")

    @property
    def token(self) -> str:
        return csrf_token(self.http.cookies.get(COOKIE) or "")

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, **options)

    async def post(
        self, path: str, fields: Any = (), *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        sent = {"token": self.token, **dict(fields), **more}
        return await self.http.post(
            path,
            data=sent,
            headers={"Sec-Fetch-Site": "same-origin"} if headers is None else headers,
        )

    async def do(self, verb: str, *, sure: bool = True, **fields: Any) -> httpx.Response:
        """Make a change; ``sure`` also answers the question whether, again if it is another one."""
        if COOKIE not in self.http.cookies:
            await self.get("/")
        path = f"/do/{verb}"
        answer = await self.post(path, fields, **({"confirmed": "yes"} if sure else {}))
        while sure and (confirmed := confirmed_by(answer.text)):  # yes was not enough
            answer = await self.post(path, fields, confirmed=confirmed)
        return answer


def confirmed_by(page: str) -> str | None:
    """What the form of a question sends if somebody says yes; None if nothing was asked."""
    found = re.search(r'name="confirmed" value="([^"]*)"', page)
    return html.unescape(found[1]) if found else None


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first page shows the queues that were found in a moment; here it waits for all.

    And a button what was done in a second, or a page what was searched for in a moment; here they
    wait for the end.
    """
    monkeypatch.setitem(Finder.names.__kwdefaults__, "patience_s", 60.0)
    monkeypatch.setattr("toril.dashboard.actions.SHORT_S", 60.0)
    monkeypatch.setattr("toril.dashboard.beside.WAIT_S", 60.0)


@pytest.fixture
def queue_name() -> str:
    return "pay"


@pytest.fixture
async def visit(url: str, prefix: str) -> AsyncIterator[Callable[..., Visitor]]:
    """Makes visitors of a dashboard with the given arguments."""
    visitors: list[Visitor] = []

    def make(client: tuple[str, int] = ("127.0.0.1", 5000), **options: Any) -> Visitor:
        app = dashboard(connection=url, prefix=prefix, **options)
        visitors.append(Visitor(app, client))
        return visitors[-1]

    yield make
    for visitor in visitors:
        await visitor.http.aclose()
        await visitor.app.close()


@pytest.fixture
async def shop(url: str, prefix: str) -> AsyncIterator[World]:
    async with world(url, prefix) as made:
        yield made


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an app on a free port of this machine."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    # On a busy machine a page may say nothing for longer than a connection is kept by default.
    config = uvicorn.Config(
        app,
        log_level="error",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listening.close()


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Callable[[Callable[[Any], Any]], Any]]:
    shell = shutil.which(SHELL)
    path = shell or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        not_run(f"there is no Chromium here; install it with: apt install {SHELL}")
    flags = [*FLAGS, *(() if shell else FLAGS_OF_WINDOWS)]
    playwright_api = pytest.importorskip("playwright.sync_api", reason="NOT RUN: no playwright")
    with ThreadPoolExecutor(1) as thread:

        def start() -> tuple[Any, Any]:
            running = playwright_api.sync_playwright().start()
            browser = running.chromium.launch(executable_path=path, args=flags, timeout=100_000)
            return running, browser

        running, browser = thread.submit(start).result(120)
        yield lambda scenario: thread.submit(scenario, browser)
        thread.submit(lambda: (browser.close(), running.stop())).result(120)


@pytest.fixture
def chromium(_chromium: Any) -> Callable[[Callable[[Any], Any]], Awaitable[Any]]:
    """Runs a scenario with the browser, in its own thread, while the test's loop goes on."""

    async def run(scenario: Callable[[Any], Any]) -> Any:
        return await asyncio.wrap_future(_chromium(scenario))

    return run
