"""``toril events``: what happens in queues, as it happens."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from toril import Event, QueueEvents
from toril.cli.monitor.pace import time_of
from toril.cli.printing import EVENT_COLOURS, Styled, echo, local, print_json, shortened
from toril.cli.server import Server, complete_queue, with_server
from toril.client.connection import Connection
from toril.protocol import partitioning
from toril.protocol.command import plain
from toril.protocol.keys import Keys


@click.command("events")
@click.argument("queue_names", metavar="[QUEUE]...", nargs=-1, shell_complete=complete_queue)
@click.option("--since", metavar="ID", help="After this event; 0 starts with the oldest.")
@click.option("-e", "--event", "names", multiple=True, help="Only events of this name.")
@click.option("--job", "job_id", help="Only events of this job.")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many.")
@with_server
def events(
    server: Server,
    queue_names: tuple[str, ...],
    since: str | None,
    names: tuple[str, ...],
    job_id: str | None,
    count: int | None,
) -> None:
    """Print events as they happen, until Ctrl-C.

    Without QUEUE, it prints events of all queues that exist now.
    With --json each event is one line.

    \b
    Examples:
      toril events payments
      toril events payments -e failed -e stalled
      toril events --since 0 --job order-123
    """
    wanted = queue_names or tuple(server.queue_names())
    if not wanted:
        raise click.UsageError(
            f"there is no queue under the prefix {server.prefix!r} yet; name one"
        )
    server.connection.run(plain("PING", parse=lambda reply: None, near=f"{server.prefix}:"))
    printer = _Printer(server, names, job_id, count, max(len(name) for name in wanted))
    try:
        asyncio.run(_listen(server, wanted, since, printer))
    except ExceptionGroup as group:  # the first queue that cannot be read ends it
        raise group.exceptions[0] from None


async def _listen(
    server: Server, queue_names: tuple[str, ...], since: str | None, printer: _Printer
) -> None:
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        async def follow(name: str) -> None:
            connection = Connection(server.url, patience_s=1.0)
            numbers = await connection.run(partitioning.read(Keys(server.prefix, name)))
            listener = QueueEvents(
                name,
                connection=connection,
                prefix=server.prefix,
                last_event_id=since,
                partitions=max(1, numbers.now),
            )
            async with listener:
                async for event in listener:
                    if printer.print(name, event):
                        for task in tasks:
                            task.cancel()
                        return

        tasks += [group.create_task(follow(name)) for name in queue_names]


class _Printer:
    """Prints the events that are wanted, and knows when it is enough."""

    def __init__(
        self,
        server: Server,
        names: tuple[str, ...],
        job_id: str | None,
        count: int | None,
        width: int,
    ) -> None:
        self._as_json = server.as_json
        self._names = frozenset(names)
        self._job_id = job_id
        self._left = count
        self._width = width

    def print(self, queue_name: str, event: Event) -> bool:
        """Print it if it is wanted; True when there is no more to print."""
        if self._left == 0:
            return True
        if self._names and event.name not in self._names:
            return False
        if self._job_id is not None and event.job_id != self._job_id:
            return False
        if self._as_json:
            facts: dict[str, Any] = {"queue": queue_name, "event": event.name, "id": event.id}
            facts |= {"job_id": event.job_id, "data": event.data}
            is_read = print_json(facts, indent=None)
        else:
            is_read = echo(*self._line(queue_name, event))
        if self._left is not None:
            self._left -= 1
        return self._left == 0 or not is_read

    def _line(self, queue_name: str, event: Event) -> tuple[str | Styled, ...]:
        moment = local(time_of(event))
        name = Styled(f"{event.name:<14}", EVENT_COLOURS.get(event.name))
        data = shortened(event.data, 100) if event.data else ""
        stamp = event.id if moment is None else f"{moment:%H:%M:%S.%f}"[:-3]
        head = f"{stamp}  {queue_name:<{self._width}}  "
        return head, name, f"  {event.job_id or '':<24}  {data}"
