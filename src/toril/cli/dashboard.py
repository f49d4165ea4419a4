"""``toril dashboard``: serves the dashboard until it is told to stop."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from toril.cli.printing import echo, print_json
from toril.cli.server import Server, with_server
from toril.protocol.command import plain

if TYPE_CHECKING:
    import uvicorn

PORT = 8787
NOT_INSTALLED = 'the dashboard is not installed; install it with: pip install "toril[dashboard]"'


@click.command("dashboard")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True,
    help="The port; 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--password",
    metavar="TEXT",
    help="Ask for this password; required beyond this machine.  [TORIL_DASHBOARD_PASSWORD]",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A host name that browsers use for it; may be repeated.",
)
@click.option(
    "--redact",
    metavar="FIELD",
    multiple=True,
    help="Mask fields with this name in payloads; may be repeated.",
)
@with_server
def dashboard(
    server: Server,
    host: str,
    port: int,
    password: str | None,
    read_only: bool,
    allowed_hosts: tuple[str, ...],
    redact: tuple[str, ...],
) -> None:
    """Serve a dashboard for your browser, until Ctrl-C.

    On this machine it needs no password; on any other address it requires one.

    \b
    Examples:
      toril dashboard
      TORIL_DASHBOARD_PASSWORD=… toril dashboard --host 0.0.0.0 --allow-host jobs.example.com
    """
    try:
        import uvicorn

        from toril.dashboard import dashboard as make
        from toril.dashboard.security import is_loopback
    except ImportError as error:
        raise click.ClickException(NOT_INSTALLED) from error
    password = password or os.environ.get("TORIL_DASHBOARD_PASSWORD") or None
    if password is None and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} can be reached from other machines, so a password is needed;"
            " set TORIL_DASHBOARD_PASSWORD"
        )
    app = make(
        connection=server.url,
        prefix=server.prefix,
        password=password,
        read_only=read_only,
        allowed_hosts=allowed_hosts,
        redact=redact,
    )
    server.connection.run(plain("PING", parse=lambda reply: None, near=f"{server.prefix}:"))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        # Without a password a proxy is refused by what it adds, so that must be seen.
        proxy_headers=password is not None,
        timeout_graceful_shutdown=2,
    )
    listening = _listen_as(config)  # who reads the address below may come before the app is ready
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listening.getsockname()[1]}/"
    _say_where(server, url, is_in_the_clear=password is not None and not is_loopback(host))
    uvicorn.Server(config).run(sockets=[listening])


def _listen_as(config: uvicorn.Config) -> socket.socket:
    listening = config.bind_socket()
    try:
        listening.listen()
    except OSError as error:
        # Several programs can bind a port; the first that listens has it.
        listening.close()
        raise click.ClickException(
            f"the dashboard cannot listen on port {config.port}: {error}; choose another with"
            " --port"
        ) from error
    return listening


def _say_where(server: Server, url: str, *, is_in_the_clear: bool) -> None:
    if server.as_json:
        print_json({"url": url, "server": server.label}, indent=None)
        return
    echo(f"The dashboard of {server.label} is at {url}")
    if is_in_the_clear:
        echo("Passwords are sent in clear text over http: put a proxy with TLS in front of it.")
    echo("Ctrl-C stops it.")


@contextmanager
def beside(url: str, prefix: str) -> Iterator[str | None]:
    """Serve the dashboard on this machine meanwhile: its address, or None if it is not installed.

    It takes a free port if its own is in use.
    """
    try:
        import uvicorn

        from toril.dashboard import dashboard as make
    except ImportError:
        yield None
        return
    listening = _listen()
    app = make(connection=url, prefix=prefix)
    config = uvicorn.Config(
        app, log_level="warning", server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(5)
        listening.close()


def _listen() -> socket.socket:
    for port in (PORT, 0):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # refused if another program has bound it too, and was first
        except OSError:
            listening.close()
            if port == 0:
                raise
        else:
            return listening
    raise AssertionError("unreachable")  # pragma: no cover
