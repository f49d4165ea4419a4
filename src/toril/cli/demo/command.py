"""The show: a server of its own, five acts, what happened, and what to try next."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from toril.cli.demo import burst, lanes, letters, saga
from toril.cli.demo.stage import Stage
from toril.cli.printing import print_json
from toril.cli.server import Server, with_server
from toril.cli.values import refuse_given
from toril.logs import get_logger


@click.command("demo")
@with_server
def demo(server: Server) -> None:
    """Show what Toril does, on a temporary server.

    An order that succeeds, one that fails and is undone, lanes in order, dead letters that are
    replayed, and how fast it is.  Nothing is left behind.  With --json only the facts are printed.
    """
    refuse_given("url", "prefix", because="the demo has its own server")
    get_logger("toril.jobs").setLevel(logging.CRITICAL)  # what fails here fails on purpose
    facts = asyncio.run(show(Console(quiet=server.as_json)))
    if server.as_json:
        print_json(facts)


async def show(console: Console) -> dict[str, str]:
    """Run the show, and leave nothing behind; returns what happened."""
    stage = Stage(console)
    with tempfile.TemporaryDirectory(prefix="toril-demo-") as directory:
        url = f"embedded:{directory}"
        console.print("[bold]Toril[/] starts a Valkey of its own. What you see is really done.")
        facts = {
            **await saga.order_that_succeeds(stage, url),
            **await saga.order_that_fails(stage, url),
            **await lanes.in_order(stage, url),
            **await letters.dead_and_back(stage, url),
            **await burst.as_fast_as_it_goes(stage, url),
        }
    console.print(_summary(facts))
    _say_what_is_next(console)
    return facts


def _summary(facts: dict[str, str]) -> Table:
    table = Table(title="\nWhat happened", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for what, value in facts.items():
        table.add_row(what, value)
    return table


def _say_what_is_next(console: Console) -> None:
    tool = _tool()
    console.print(
        f"\n[bold]Try next[/], with your own server:\n"
        f"  export TORIL_URL=embedded:.toril\n"
        f"  {tool} add payments charge '{{\"order\": 1}}'\n"
        f"  {tool} queues\n"
        f"  {tool} monitor\n"
        f"[bold]examples/[/] has small programs, [bold]README.md[/] the first five minutes,"
        f" [bold]docs/guides/[/] the rest.\nNothing of this show is left on your machine.",
        highlight=False,
        soft_wrap=True,
    )


def _tool() -> str:
    """How the person who ran this can call ``toril``, as it can be typed here."""
    script = Path(sys.executable).with_name("toril")
    if script.exists():
        return "toril" if shutil.which("toril") == str(script) else _typed(script)
    is_at_hand = shutil.which("python") == sys.executable
    return f"{'python' if is_at_hand else _typed(Path(sys.executable))} -m toril"


def _typed(path: Path) -> str:
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
