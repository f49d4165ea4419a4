"""Somebody works on the dashboard while a program with BullMQ changes the same jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.dashboard.conftest import Visitor
from tests.helpers import wait_until
from toril.dashboard import dashboard


async def test_node_changes_jobs_between_page_and_button(peer, url, prefix, client):
    """Each button does what it says, or says why not; the counts are those BullMQ sees."""
    app: Any = dashboard(connection=url, prefix=prefix)
    visitor = Visitor(app)
    ids = [await peer.add("q", f"n{number}", {"n": number}) for number in range(12)]
    later = await peer.add("q", "later", delay=3_600_000)
    assert f"id={ids[0]}" in (await visitor.get("/queue?queue=q&state=waiting")).text

    await peer.call("queue.remove", queue="q", args=[ids[0]])
    await peer.call("queue.pause", queue="q")
    assert (await visitor.do("remove", queue="q", id=ids[0])).status_code in (303, 404, 409)
    assert (await visitor.do("cancel", queue="q", id=ids[1])).status_code == 303
    assert (await visitor.do("promote", queue="q", id=later)).status_code == 303
    assert (await visitor.do("resume", queue="q")).status_code == 303
    assert await peer.call("queue.isPaused", queue="q") is False
    assert await peer.state("q", ids[1]) == "failed"
    assert await peer.state("q", later) == "waiting"

    adding = asyncio.gather(*(peer.add("q", "more") for _ in range(30)))
    removing = visitor.do("remove-all", queue="q", state="waiting")
    cleaning = peer.call("queue.drain", queue="q")
    _, answer, _ = await asyncio.gather(adding, removing, cleaning)
    assert answer.status_code == 303

    async def is_over() -> bool:
        return "of about" not in (await visitor.get("/log")).text

    await wait_until(is_over)
    retried = await visitor.do("retry", queue="q", id=ids[1], reset="yes")
    assert retried.status_code == 303
    worker = await peer.work("q", {"*": [["echo"]]})
    await wait_until(lambda: _is_empty(peer))
    await peer.stop_working(worker)
    for state in ("waiting", "completed", "failed", "delayed", "active"):
        assert (await visitor.get(f"/queue?queue=q&state={state}")).status_code == 200
    page = (await visitor.get(f"/job?queue=q&id={ids[1]}")).text
    assert "completed</span>" in page
    await visitor.http.aclose()
    await app.close()


async def _is_empty(peer: Any) -> bool:
    counts = await peer.counts("q")
    return not (counts.get("waiting") or counts.get("wait") or counts["active"])
