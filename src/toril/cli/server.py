"""The server that a command talks to: its options, and the doors it opens."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toril.errors import RefusedError, ServerError

if TYPE_CHECKING:
    from toril.protocol.partitioning import Row
    from toril.sync.connection import Connection
    from toril.sync.queue import Queue
    from toril.tasks.app import App

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE_S = 1.0
"""A person is waiting: a server that does not answer is reported soon."""

_SLICES_FOR_NEAR_NAMES = 50


class Server:
    """Where the jobs are, and how the answer is to be printed.

    Queues share one connection, which is opened with the first of them.
    """

    def __init__(self, url: str | None, prefix: str | None, as_json: bool) -> None:
        self.is_explicit = url is not None or prefix is not None
        """Did somebody type where the jobs are? The environment may speak of another program."""
        self._typed = url, prefix
        self.url = url or os.environ.get("TORIL_URL")
        self.prefix = prefix or os.environ.get("TORIL_PREFIX") or "bull"
        self.as_json = as_json
        self._connection: Connection | None = None

    def move(self, app: App) -> None:
        """Let an app look where somebody typed that the jobs are; what nobody typed is its own."""
        url, prefix = self._typed
        app.connection, app.prefix = url or app.connection, prefix or app.prefix

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            from toril.sync.connection import Connection

            self._connection = Connection(self.url, patience_s=PATIENCE_S)
        return self._connection

    @property
    def label(self) -> str:
        """The server as a person knows it, without the password."""
        from toril.protocol import address

        return str(address.parse(self.url or address.DEFAULT_URL))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def queue(self, name: str, *, may_be_missing: bool = False) -> Iterator[Queue]:
        """One queue.  If it does not exist it is refused, unless the command looks or makes one."""
        from toril.protocol import reading
        from toril.sync.queue import Queue

        count = self.partitions_of(name)
        queue = Queue(
            name, connection=self.connection, prefix=self.prefix, partitions=max(1, count)
        )
        try:
            if not (may_be_missing or count or self.connection.run(reading.exists(queue.keys))):
                raise self._missing(name)
            yield queue
        finally:
            queue.close()

    def partitions_of(self, name: str) -> int:
        """How many partitions a queue has; 0 for one without."""
        from toril.protocol import partitioning
        from toril.protocol.keys import Keys

        return self.connection.run(partitioning.read(Keys(self.prefix, name))).now

    def rows(self) -> list[Row]:
        """All queues under the prefix, the partitions of one together under its name."""
        from toril.protocol import partitioning
        from toril.sync.agreeing import sizes_of

        names = self.queue_names()
        wholes = partitioning.wholes_of(names)
        return partitioning.fold(names, sizes_of(self.connection, self.prefix, wholes))

    def queue_names(self) -> list[str]:
        """All queues under the prefix; walks through the whole key space."""
        from toril.protocol import discovering

        self.connection.meet()
        plan = discovering.queue_names(self.prefix, is_cluster=self.connection.is_cluster)
        return self.connection.follow(plan)

    def _missing(self, name: str) -> RefusedError:
        import difflib

        from toril.protocol import discovering

        names: set[str] = set()
        cursor = discovering.BEGINNING
        for _ in range(_SLICES_FOR_NEAR_NAMES):
            found = self.connection.run(discovering.look(self.prefix, cursor))
            names.update(found.names)
            if found.is_last:
                break
            cursor = found.cursor
        close = difflib.get_close_matches(name, sorted(names), n=1)
        perhaps = f"; did you mean {close[0]!r}?" if close else ""
        return RefusedError(f"there is no queue {name!r} under the prefix {self.prefix!r}{perhaps}")


def server_options(command: F) -> F:
    """The options of every command: ``--url``, ``--prefix`` and ``--json``."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print JSON, for programs.", default=None
        ),
        click.option(
            "--prefix",
            metavar="TEXT",
            help="The prefix of all keys.  [TORIL_PREFIX, else bull]",
        ),
        click.option(
            "--url",
            metavar="URL",
            help="The server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster://"
            " or embedded:./directory.  [TORIL_URL, else redis://127.0.0.1:6379]",
        ),
    ):
        command = option(command)
    return command


def with_server(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the server, and the server itself as its first argument.

    They may stand before the command as well: ``toril --url … queues``.
    """

    @functools.wraps(function)
    def command(
        *args: Any, url: str | None, prefix: str | None, as_json: bool | None, **kwargs: Any
    ) -> Any:
        before = click.get_current_context().find_root().params
        server = Server(
            url or before.get("url"),
            prefix or before.get("prefix"),
            as_json=bool(as_json or before.get("as_json")),
        )
        try:
            return function(server, *args, **kwargs)
        finally:
            server.close()

    return server_options(command)


def complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The queues whose names begin like this; none when no server answers."""
    before = ctx.find_root().params
    server = Server(
        ctx.params.get("url") or before.get("url"),
        ctx.params.get("prefix") or before.get("prefix"),
        as_json=False,
    )
    try:
        names = (name for name in server.queue_names() if name.isprintable())
        return [name for name in names if name.startswith(incomplete)]
    except ServerError:
        return []
    finally:
        server.close()


def queue_argument(command: F) -> F:
    """The argument QUEUE, which the shell completes."""
    return click.argument("queue_name", metavar="QUEUE", shell_complete=complete_queue)(command)


def queue_option(command: F) -> F:
    """The option ``--queue`` of commands on single jobs."""
    return click.option(
        "-q",
        "--queue",
        "queue_name",
        metavar="QUEUE",
        help="The queue of the job.  [default: searched for]",
        shell_complete=complete_queue,
    )(command)


def create_option(command: F) -> F:
    """The option ``--create`` of commands that make sense before a queue's first job."""
    return click.option(
        "--create",
        is_flag=True,
        help="Even if the queue does not exist yet.",
    )(command)
