"""The FastAPI service of the outbox guide runs as it stands there."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.orm import Session

from tests.helpers import wait_until
from toril import Queue
from toril.outbox import Relay

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "outbox.md"


@pytest.fixture
def lifespan(engine, outbox, url, prefix):
    """What the guide has under "In a FastAPI service", with this test's server for localhost."""
    section = GUIDE.read_text().partition("## In a FastAPI service")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert 'connection="redis://localhost"' in code
    code = code.replace("redis://localhost", url)
    names = {"engine": engine, "outbox": outbox, "Relay": partial(Relay, prefix=prefix)}
    exec(code, names)
    return names["lifespan"]


async def test_a_relay_in_the_lifespan_of_a_service(lifespan, engine, outbox, url, prefix):
    """An endpoint that commits has its job; one that fails has none; the relay ends with it."""
    app = FastAPI()

    @app.post("/orders/{number}")
    def order(number: int) -> str:
        with Session(engine) as session, session.begin():
            job_id = outbox.add(session, "payments", "charge", {"order": number})
            if number == 13:
                raise ValueError("not that one")
        return job_id

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    api = httpx.AsyncClient(transport=transport, base_url="http://a")
    async with Queue("payments", connection=url, prefix=prefix) as queue:
        async with lifespan(app), api:
            assert (await api.post("/orders/13")).status_code == 500
            kept = (await api.post("/orders/14")).json()
            await wait_until(queue.get_waiting_count, 30)
        others = asyncio.all_tasks() - {asyncio.current_task()}

        assert [(job.id, job.data) for job in await queue.get_waiting()] == [(kept, {"order": 14})]
        assert not [task for task in others if "Relay" in repr(task)], "the relay outlived it"
