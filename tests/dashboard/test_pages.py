"""Every page, as it is sent: what is on it, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor
from tests.dashboard.world import World
from toril import Queue
from toril.dashboard import dashboard


async def test_every_page_is_served_whole(visit: Callable[..., Visitor], shop: World):
    visitor = visit()

    for path in shop.paths:
        answer = await visitor.get(path)

        assert answer.status_code == 200, (path, answer.text[-400:])
        assert answer.text.rstrip().endswith("</html>"), path
        assert "<script>" not in answer.text
        assert "style=" not in answer.text, path
        assert " onclick" not in answer.text, path


ODD = [
    "", " ", "a:b", "\x00", "\ud800", "\u202e", "../..", "%00", "-1", "9" * 400, "٣", "1e9", "*",
    "<script>", "x" * 3000, "repeat:nightly:1", "pay:compensation", "{a}", "\r\nX: y", "null", "[]",
]  # fmt: skip


async def test_odd_questions_have_answers(visit: Callable[..., Visitor], shop: World):
    """Whatever stands in an address: a page, or a page that says what is wrong."""
    visitor = visit()
    pages = sorted({path.partition("?")[0] for path in shop.paths} | {"/nothing", "/do/pause"})
    names = ("queue", "id", "state", "start", "lane", "minutes", "q", "since", "said", "said_of")
    for page in pages:
        for number, odd in enumerate(ODD):
            text = odd.encode("utf-8", "replace").decode()
            query = dict.fromkeys(names, text)
            if number % 2:
                query["queue"] = query["said_of"] = "pay"
            answer = await visitor.get(page, params=query)
            assert answer.status_code in (200, 303, 400, 404, 409), (page, odd, answer.text)
    for path in ("/%00", "/static/", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
        assert (await visitor.http.request("GET", path)).status_code in (404, 405), path
    assert (await visitor.http.head("/")).status_code == 200


@pytest.mark.no_audit("a broken job is written by hand")
async def test_a_job_that_another_program_broke_is_shown(
    visit: Callable[..., Visitor], shop: World, client: Any, prefix: str
):
    visitor = visit()
    broken = {"name": b"\xff\xfe", "data": b"{no json", "opts": b"{}", "timestamp": "soon"}
    broken |= {"returnvalue": b"[", "progress": b"{", "stacktrace": b"no list", "finishedOn": "-"}
    await client.hset(f"{prefix}:pay:broken", mapping=broken)
    await client.zadd(f"{prefix}:pay:failed", {"broken": 9e15})
    deep = b"[" * 500 + b"]" * 500
    await client.hset(f"{prefix}:pay:deep", mapping={**broken, "data": deep, "timestamp": "9" * 18})
    await client.zadd(f"{prefix}:pay:failed", {"deep": 9e15})

    for path in (
        "/queue?queue=pay&state=failed",
        "/job?queue=pay&id=broken",
        "/job?queue=pay&id=deep",
    ):
        answer = await visitor.get(path)
        assert answer.status_code == 200, (path, answer.text[-300:])


async def test_a_server_that_lets_the_doctor_see_nothing_is_shown_all_the_same(
    visit: Callable[..., Visitor], shop: World, url: str, prefix: str, client: Any
):
    rights = [
        "on",
        ">secret",
        "~*",
        "&*",
        "+@all",
        "-info",
        "-config",
        "-acl",
        "-cluster",
    ]
    await client.execute_command("ACL", "SETUSER", "small", *rights)
    app: Any = dashboard(connection=url.replace("redis://", "redis://small:secret@"), prefix=prefix)
    visitor = Visitor(app)
    try:
        answer = await visitor.get("/queue?queue=pay")
        page = await visitor.get("/")
    finally:
        await visitor.http.aclose()
        await app.close()
        await client.execute_command("ACL", "DELUSER", "small")

    assert page.status_code == 200, page.text[-500:]
    assert answer.status_code == 200, answer.text[-500:]
    assert "pay" in page.text


async def test_a_page_says_when_the_server_is_gone(start_server: Any):
    server = start_server(tcp=True)
    async with Queue("pay", connection=server.url) as queue:
        await queue.add("one")
    app: Any = dashboard(connection=server.url)
    visitor = Visitor(app)
    assert (await visitor.get("/queue?queue=pay")).status_code == 200
    server.stop()
    answer = await visitor.get("/queue?queue=pay&state=failed")
    assert answer.status_code == 503
    assert "does not serve" in answer.text
    assert "Traceback" not in answer.text
    server.start()
    assert (await visitor.get("/")).status_code == 200
    await visitor.http.aclose()
    await app.close()
