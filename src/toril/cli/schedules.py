"""``toril schedules``: what the code of an app declares, beside what the server has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import click

from toril import App
from toril.cli.catalogue import CommandGroup
from toril.cli.loading import load
from toril.cli.printing import age, print_json, print_table, say, span
from toril.cli.server import Server, with_server
from toril.cli.values import confirm, counted, yes_option
from toril.tasks import Declared


@click.group("schedules", cls=CommandGroup)
def schedules() -> None:
    """Compare the schedules of an app's code with those of the server.

    Workers of the app declare its schedules when they start.

    \b
    Examples:
      toril schedules list shop.tasks:app
      toril schedules prune shop.tasks:app
    """


@schedules.command("list")
@click.argument("target", metavar="MODULE:APP")
@with_server
def list_schedules(server: Server, target: str) -> None:
    """List what the code declares, and what the server has."""
    found = _ask(server, target, App.schedules)
    if server.as_json:
        print_json([_facts(one) for one in found])
        return
    print_table(
        ["id", "queue", "when", "next", "is"],
        [[one.id, one.queue_name, _rhythm(one), _next(one), _standing(one)] for one in found],
        empty=f"{target} declares no schedules.",
    )


@schedules.command("prune")
@click.argument("target", metavar="MODULE:APP")
@yes_option
@with_server
def prune(server: Server, target: str, yes: bool) -> None:
    """Remove schedules that the code no longer declares.

    Schedulers that were made by hand are kept.
    """
    gone = [one for one in _ask(server, target, App.schedules) if one.schedule is None]
    if gone:
        names = ", ".join(one.id for one in gone)
        confirm(f"Remove {counted(len(gone), 'schedule')} ({names})?", yes=yes)
        gone = _ask(server, target, partial(_prune, asked=gone))
    say(
        server,
        f"Removed {counted(len(gone), 'schedule')}.",
        removed=[one.id for one in gone],
    )


async def _prune(app: App, asked: list[Declared]) -> list[Declared]:
    """Remove those that somebody was asked about; others may have come meanwhile."""
    known = {(one.queue_name, one.id) for one in asked}
    return [
        one
        for one in await app.schedules()
        if one.schedule is None
        and (one.queue_name, one.id) in known
        and await app.queue(one.queue_name).remove_job_scheduler(one.id)
    ]


def _ask(
    server: Server, target: str, question: Callable[[App], Awaitable[list[Declared]]]
) -> list[Declared]:
    app = load(target)
    if not isinstance(app, App):
        raise click.UsageError(f"{target!r} is not an App: {app!r}")
    server.move(app)

    async def ask() -> list[Declared]:
        async with app:
            return await question(app)

    return asyncio.run(ask())


def _rhythm(one: Declared) -> str:
    if one.schedule is not None:
        every_ms, pattern, zone = one.schedule.every_ms, one.schedule.cron, one.schedule.tz
    elif one.stored is not None:
        every_ms, pattern, zone = one.stored.every, one.stored.cron, one.stored.tz
    else:
        return ""
    return f"{pattern} {zone or 'UTC'}" if every_ms is None else f"every {span(every_ms)}"


def _next(one: Declared) -> str:
    return "" if one.stored is None else age(one.stored.next_at)


def _standing(one: Declared) -> str:
    if one.schedule is None:
        return "no longer declared"
    if one.stored is None:
        return "not on the server yet"
    standing = "current" if one.is_current else "changed in the code"
    return f"{standing}, paused" if one.stored.is_paused else standing


def _facts(one: Declared) -> dict[str, Any]:
    return {
        "id": one.id,
        "queue": one.queue_name,
        "when": _rhythm(one),
        "next_at": None if one.stored is None else one.stored.next_at,
        "declared": one.schedule is not None,
        "stored": one.stored is not None,
        "current": one.is_current,
        "paused": one.stored is not None and one.stored.is_paused,
    }
