"""Requests that come twice are answered once: the work is done once, the answer is given again."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from tests.helpers import let_pass, wait_until
from tests.sql.program import Tables
from toril.errors import ClaimRefusedError, InvalidOptionError, MissingKeyError
from toril.idempotency import RedisStore, SqlStore, idempotent


@pytest.fixture
def tables(engine, table_name):
    tables = Tables(table_name)
    tables.metadata.create_all(engine)
    yield tables
    tables.metadata.drop_all(engine)


class Shop:
    """A service with one webhook, which writes an effect and a job."""

    def __init__(self, engine, tables):
        self.app = FastAPI()
        self.fails = False
        self.held = threading.Event()
        self.held.set()
        self.begun = 0
        store = SqlStore(engine, table=tables.records)

        @self.app.post("/webhooks/{kind}")
        @idempotent(store, header="Event-Id")
        def receive(kind: str, request: Request, session: Session) -> dict[str, str]:
            session.execute(tables.effects.insert().values(key=kind))
            job = tables.outbox.add(session, "payments", kind)
            self.begun += 1
            assert self.held.wait(60)
            if self.fails:
                raise HTTPException(500, "not now")
            return {"job": job}

        @self.app.post("/others")
        @idempotent(store, header="Event-Id")
        def receive_other(request: Request, session: Session) -> str:
            return "other"

        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.api = httpx.AsyncClient(transport=transport, base_url="http://a")

    async def post(self, event, path="/webhooks/paid"):
        return await self.api.post(path, headers={"event-id": event} if event else {})


def counts(engine, tables):
    with engine.connect() as connection:
        return tuple(
            connection.execute(select(func.count()).select_from(table)).scalar()
            for table in (tables.effects, tables.outbox.table, tables.records)
        )


async def test_the_first_answer_is_given_again_and_the_work_is_done_once(engine, tables):
    shop = Shop(engine, tables)

    first, again = await shop.post("evt-1"), await shop.post("evt-1")
    other = await shop.post("evt-2")

    assert first.status_code == again.status_code == 200
    assert first.json() == again.json() != other.json()
    assert counts(engine, tables) == (2, 2, 2), "effects, jobs, records"
    assert (await shop.post("evt-1", "/others")).json() == "other", "a key is one of its view"


async def test_what_failed_is_done_when_it_comes_again(engine, tables):
    shop = Shop(engine, tables)
    shop.fails = True
    assert (await shop.post("evt-1")).status_code == 500
    assert counts(engine, tables) == (0, 0, 0)

    shop.fails = False

    assert (await shop.post("evt-1")).status_code == 200
    assert counts(engine, tables) == (1, 1, 1)


def _first(session, request, event):
    return [isinstance(session, Session), request, event]


def _between(request, session, event="none"):
    return [isinstance(session, Session), request, event]


def _by_name(request, event="none", *, session):
    return [isinstance(session, Session), request, event]


@pytest.mark.parametrize("view", [_first, _between, _by_name])
@pytest.mark.parametrize("given", [(("r", "e"), {}), ((), {"request": "r", "event": "e"})])
def test_a_view_takes_its_session_at_any_place(view, given, engine, tables):
    store = SqlStore(engine, table=tables.records)
    guarded = idempotent(store, key=lambda *_, **__: "evt-1")(view)
    arguments, named = given

    assert guarded(*arguments, **named) == [True, "r", "e"]


async def test_two_at_the_same_time_get_one_answer(server_url, table_name):
    """The second waits for the first to commit, and is told what that said."""
    engine = create_engine(server_url)
    tables = Tables(table_name)
    tables.metadata.create_all(engine)
    shop = Shop(engine, tables)
    shop.held.clear()
    first = asyncio.create_task(shop.post("evt-1"))
    await wait_until(lambda: shop.begun == 1)
    second = asyncio.create_task(shop.post("evt-1"))
    await let_pass(0.1, "the second comes to the lock of the first")
    shop.held.set()

    assert (await first).json() == (await second).json()
    assert shop.begun == 1
    tables.metadata.drop_all(engine)
    engine.dispose()


async def test_async_views(tmp_path, table_name):
    plain = create_engine(f"sqlite:///{tmp_path}/x.db")
    tables = Tables(table_name)
    tables.metadata.create_all(plain)
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    app = FastAPI()

    @app.post("/")
    @idempotent(SqlStore(engine, table=tables.records), header="Event-Id")
    async def receive(request: Request, session) -> dict[str, int]:
        await session.execute(tables.effects.insert().values(key="k"))
        found = await session.execute(select(func.count()).select_from(tables.effects))
        return {"n": found.scalar()}

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as api:
        answers = [await api.post("/", headers={"Event-Id": key}) for key in ("a", "a", "b")]

    assert [one.json() for one in answers] == [{"n": 1}, {"n": 1}, {"n": 2}]
    await engine.dispose()
    plain.dispose()


async def test_without_a_database_the_server_remembers(url, prefix):
    store = RedisStore(url, prefix=prefix)
    ran = []

    @idempotent(store, key=lambda event: event["id"])
    async def receive(event):
        ran.append(event["id"])
        if len(ran) == 1:
            with pytest.raises(ClaimRefusedError):
                await receive(event)  # the same event, while this one is at it
        return {"n": len(ran)}

    assert [await receive({"id": one}) for one in ("a", "a", "b")] == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert ran == ["a", "b"]
    await store.close()


async def test_what_cannot_be_guarded_is_refused(engine, tables, url):
    store = SqlStore(engine, table=tables.records)
    shop = Shop(engine, tables)

    with pytest.raises(InvalidOptionError, match="parameter 'session'"):
        idempotent(store, header="Event-Id")(lambda request: None)
    with pytest.raises(InvalidOptionError, match="give one"):
        idempotent(store, header="Event-Id", key=lambda: "k")
    with pytest.raises(InvalidOptionError, match="headers"):
        idempotent(store, header="Event-Id")(lambda body, session: None)({})
    with pytest.raises(MissingKeyError, match="no idempotency key"):
        idempotent(store, key=lambda body: "")(lambda body, session: None)({})
    assert (await shop.post("")).status_code == 500
    assert counts(engine, tables) == (0, 0, 0)
