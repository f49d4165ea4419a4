"""The examples for web frameworks serve requests, and their tasks run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from toril.testing import running, running_sync

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_shop_on_fastapi(url):
    pytest.importorskip("fastapi")
    shop = load("fastapi_shop")
    transport = httpx.ASGITransport(shop.api)
    async with (
        running(shop.app, url=url) as rig,
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        shop.lifespan(shop.api),
    ):
        answers = [await client.post("/orders/7") for _ in range(2)]
        assert [answer.json() for answer in answers] == [{"job": "charge-7"}] * 2
        assert (await client.get("/jobs/charge-7")).json()["state"] == "waiting"

        ran = await rig.drain()

        assert sorted(job.result for job in ran) == ["order 7 is paid", "receipt of order 7"]
        assert (await client.get("/jobs/charge-7")).json() == {
            "state": "completed",
            "result": "order 7 is paid",
        }
        assert (await client.get("/jobs/other")).status_code == 404


def test_the_shop_on_flask(url):
    pytest.importorskip("flask")
    shop = load("flask_shop")
    client = shop.web.test_client()
    with running_sync(shop.app, url=url) as rig:
        answers = [client.post("/orders/7") for _ in range(2)]
        assert [answer.json for answer in answers] == [{"job": "charge-7"}] * 2

        assert [job.result for job in rig.sync.drain()] == ["order 7 is paid"]

        assert client.get("/jobs/charge-7").json == {
            "state": "completed",
            "result": "order 7 is paid",
        }
        assert client.get("/jobs/other").status_code == 404
