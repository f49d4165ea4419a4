"""``toril monitor``: opens the screen, or prints one look as JSON."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click

from toril.cli.printing import echo, print_json
from toril.cli.server import Server, complete_queue, with_server
from toril.cli.values import DURATION, counted, refuse_given
from toril.client.connection import Connection
from toril.protocol.command import plain


@click.command("monitor")
@click.option(
    "-q",
    "--queue",
    "queue_names",
    metavar="QUEUE",
    multiple=True,
    shell_complete=complete_queue,
    help="Only this queue; may be repeated.  [default: all that are found]",
)
@click.option(
    "-i", "--interval", type=DURATION, default="1s", show_default=True, help="How often to refresh."
)
@with_server
def monitor(server: Server, queue_names: tuple[str, ...], interval: int) -> None:
    """Watch queues live, full screen.

    It shows counts, throughput and times of every queue, and running jobs, lanes, groups, dead
    letters and events of the selected one.  '?' shows the keys.  Each refresh costs the server the
    same number of commands, however many jobs there are.  With --json the current state is printed
    once, for programs.

    \b
    Examples:
      toril monitor
      toril monitor --queue orders --url redis://localhost:6379 --interval 2s
    """
    if server.as_json:
        refuse_given("interval", because="--json prints one look")
    server.connection.run(plain("PING", parse=lambda reply: None, near=f"{server.prefix}:"))
    if server.as_json:
        asyncio.run(_print_one_look(server, queue_names))
        return
    if not sys.stdout.isatty():
        raise click.UsageError(
            "the monitor needs a terminal; --json prints one snapshot without it"
        )
    asyncio.run(_open(server, queue_names, max(interval / 1000, 0.05)))


async def _open(server: Server, queue_names: tuple[str, ...], interval_s: float) -> None:
    from toril.cli.monitor.app import MonitorApp
    from toril.cli.monitor.watcher import Watcher

    connection = Connection(server.url, patience_s=0.0)
    try:
        watcher = Watcher(connection, server.prefix, queue_names, time.monotonic)
        app = MonitorApp(watcher, connection, label=server.label, interval_s=interval_s)
        await app.run_async()
        await watcher.close()
    finally:
        await connection.close()


async def _print_one_look(server: Server, queue_names: tuple[str, ...]) -> None:
    from toril.cli.monitor.watcher import Watcher

    connection = Connection(server.url, patience_s=1.0)
    try:
        watcher = Watcher(connection, server.prefix, queue_names, time.monotonic)
        is_searched = False
        while not is_searched:
            is_searched = not watcher.is_searching
            await watcher.tick()
        await watcher.tick()  # what the groups need is asked of queues that are known to have some
        await watcher.close()
    finally:
        await connection.close()
    looks: list[dict[str, Any]] = []
    for watch in watcher.queues.values():
        assert watch.glance is not None
        facts = {field: getattr(watch.glance, field) for field in watch.glance.__struct_fields__}
        facts.pop("events")
        facts["groups_needing_a_person"] = watch.needing_a_person
        if watch.label != watch.name:
            facts["is_beside_partitions"] = True
        looks.append({"queue": watch.name, "total": watch.glance.total, **facts})
    print_json(looks)
    if watcher.left_out:
        more = counted(watcher.left_out, "more queue")
        echo(f"toril: {more} left out; choose with --queue", err=True)
