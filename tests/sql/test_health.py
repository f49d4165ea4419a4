"""What a relay says of itself, to a probe and to Prometheus."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import MetaData, create_engine, update

from tests.helpers import wait_until
from toril.contrib.prometheus import RelayCollector
from toril.outbox import Outbox, Relay
from toril.worker.health import trouble_of


def make(tmp_path, **options):
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    outbox = Outbox(MetaData())
    outbox.table.metadata.create_all(engine)
    return engine, outbox, Relay(engine, outbox, **options)


def look_often(monkeypatch):
    """Let a relay look at its rows and its servers many times a second."""
    monkeypatch.setattr("toril.outbox.relay._STATS_EVERY_S", 0.02)
    monkeypatch.setattr("toril.outbox.relay._SHORTEST_PAUSE_S", 0.02)
    monkeypatch.setattr("toril.outbox.relay._LONGEST_PAUSE_S", 0.1)


async def test_a_probe_learns_when_redis_or_the_database_is_away(
    tmp_path, start_server, prefix, monkeypatch
):
    """Also of a relay that has nothing to send, which would not notice otherwise."""
    look_often(monkeypatch)
    server = start_server(tcp=True)
    engine, outbox, relay = make(tmp_path, connection=server.url, prefix=prefix, poll_interval=20)
    relay._connection._patience_s = 0.05
    assert "is not running" in trouble_of(relay)
    running = asyncio.create_task(relay.run())
    await wait_until(lambda: trouble_of(relay) is None)

    server.stop()
    await wait_until(lambda: "cannot reach its server" in (trouble_of(relay) or ""))
    server.start()
    await wait_until(lambda: trouble_of(relay) is None)
    outbox.table.drop(engine)
    await wait_until(lambda: "no such table" in (trouble_of(relay) or ""))
    outbox.table.create(engine)
    await wait_until(lambda: trouble_of(relay) is None)

    await relay.close(timeout=60_000)
    await running
    assert "is not running" in trouble_of(relay)
    engine.dispose()


async def test_prometheus_learns_of_the_lag_and_of_what_is_parked(tmp_path, url, prefix):
    engine, outbox, relay = make(tmp_path, connection=url, prefix=prefix)
    with engine.begin() as connection:
        for job_id in ("a", "b", "c"):
            outbox.add(connection, "payments", "charge", job_id=job_id)
        table = outbox.table
        connection.execute(update(table).where(table.c.id == "a").values(status="parked"))
        later = {"due_at": 2**52, "created_at": table.c.created_at - 90_000}
        connection.execute(update(table).where(table.c.id == "b").values(**later))
    registry = CollectorRegistry()
    collector = RelayCollector(relay, registry=registry)
    await relay.drain()
    await relay.stats()

    def value(name, **labels):
        return registry.get_sample_value(name, {"outbox": "toril_outbox", **labels})

    assert value("toril_outbox_rows_total", outcome="dispatched") == 1
    assert value("toril_outbox_pending_rows") == 1
    assert value("toril_outbox_parked_rows") == 1
    assert 90 <= value("toril_outbox_lag_seconds") < 150
    assert value("toril_relay_errors_total") == 0
    collector.close()
    assert generate_latest(registry) == b""
    await relay.close()
    engine.dispose()


async def test_a_relay_that_has_not_seen_its_outbox_says_nothing_of_it(tmp_path, url, prefix):
    """Regression: it said that nothing waits."""
    engine, outbox, relay = make(tmp_path, connection=url, prefix=prefix)
    outbox.table.drop(engine)
    registry = CollectorRegistry()
    RelayCollector(relay, registry=registry)
    running = asyncio.create_task(relay.run())
    await wait_until(lambda: "no such table" in (trouble_of(relay) or ""))

    told = generate_latest(registry)
    assert b"toril_relay_errors_total" in told
    assert b"toril_outbox_lag_seconds" not in told

    await relay.close(timeout=60_000)
    await running
    engine.dispose()


async def test_the_lag_is_told_while_a_server_is_away(tmp_path, start_server, prefix, monkeypatch):
    """Regression: it was measured after a batch had been sent, so never while none could be."""
    look_often(monkeypatch)
    server = start_server(tcp=True)
    engine, outbox, relay = make(tmp_path, connection=server.url, prefix=prefix, poll_interval=20)
    relay._connection._patience_s = 0.05
    registry = CollectorRegistry()
    RelayCollector(relay, registry=registry)

    def lag_s():
        return registry.get_sample_value("toril_outbox_lag_seconds", {"outbox": "toril_outbox"})

    running = asyncio.create_task(relay.run())
    await wait_until(lambda: trouble_of(relay) is None)
    server.stop()
    with engine.begin() as connection:
        outbox.add(connection, "payments", "charge")
    errors = relay.metrics.errors
    await wait_until(lambda: relay.metrics.errors > errors + 1)  # it has met the row
    with engine.begin() as connection:
        older = outbox.table.c.created_at - 90_000
        connection.execute(update(outbox.table).values(created_at=older))

    await wait_until(lambda: lag_s() >= 90)
    assert relay.metrics.depth == 1
    outbox.table.drop(engine)
    await wait_until(lambda: "no such table" in (trouble_of(relay) or ""))
    relay.metrics.measured_at -= 200
    assert lag_s() >= 200

    outbox.table.create(engine)
    server.start()
    await wait_until(lambda: trouble_of(relay) is None)
    await wait_until(lambda: lag_s() == relay.metrics.depth == 0)
    await relay.close(timeout=60_000)
    await running
    engine.dispose()
