"""LISTEN on PostgreSQL: a hint that there is something to relay, never the delivery itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from toril.logs import get_logger

logger = get_logger("toril.outbox")

_LOOK_EVERY_S = 0.5
_PAUSE_S = 5.0


async def listen(engine: Engine | AsyncEngine, channel: str, wake: Callable[[], None]) -> None:
    """Call ``wake`` at every notification, until cancelled; without a driver for it, return."""
    hear = _listener_for(engine)
    if hear is None:
        return
    while True:
        try:
            await hear(engine, channel, wake)
        except Exception as error:  # noqa: BLE001 (polling continues whatever happens here)
            logger.warning("cannot listen for new outbox rows, continuing to poll: %s", error)
        await asyncio.sleep(_PAUSE_S)


def _listener_for(engine: Engine | AsyncEngine) -> Any:
    if engine.dialect.name != "postgresql":
        return None
    is_async = isinstance(engine, AsyncEngine)
    match engine.dialect.driver:
        case "asyncpg":
            return _hear_by_asyncpg
        case "psycopg" | "psycopg_async":
            return _hear_by_async_psycopg if is_async else _hear_in_thread
    return None


def _quoted(channel: str) -> str:
    return '"' + channel.replace('"', '""') + '"'


async def _hear_by_asyncpg(engine: AsyncEngine, channel: str, wake: Callable[[], None]) -> None:
    async with engine.connect() as connection:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        closed = asyncio.Event()
        raw.add_termination_listener(lambda _: closed.set())
        await raw.add_listener(channel, lambda *_: wake())
        wake()
        try:
            await closed.wait()
        finally:
            await connection.invalidate()


async def _hear_by_async_psycopg(
    engine: AsyncEngine, channel: str, wake: Callable[[], None]
) -> None:
    async with engine.connect() as connection:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        try:
            await raw.set_autocommit(True)
            await raw.execute(f"LISTEN {_quoted(channel)}")
            wake()
            async for _ in raw.notifies():
                wake()
        finally:
            # The connection has listened and must not go back to the pool.
            await connection.invalidate()


async def _hear_in_thread(engine: Engine, channel: str, wake: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    has_ended = threading.Event()

    def hear() -> None:
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            try:
                raw.autocommit = True
                raw.execute(f"LISTEN {_quoted(channel)}")
                loop.call_soon_threadsafe(wake)
                while not has_ended.is_set():
                    for _ in raw.notifies(timeout=_LOOK_EVERY_S):
                        loop.call_soon_threadsafe(wake)
            finally:
                connection.invalidate()

    thread = asyncio.ensure_future(asyncio.to_thread(hear))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        has_ended.set()
        await asyncio.gather(thread, return_exceptions=True)
        raise
