"""What commands there are; each is imported when it is asked for, and not before."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """A command: where it stands in the help, what it does, and where it is written."""

    section: str
    summary: str
    target: str


_LOOK, _CHANGE, _FEATURES, _RUN = "Look", "Change", "Features", "Run"

CATALOGUE: dict[str, Entry] = {
    "queues": Entry(_LOOK, "List the queues and their counts.", "queues:queues"),
    "jobs": Entry(_LOOK, "List the jobs of a queue.", "jobs:jobs"),
    "job": Entry(_LOOK, "Show everything about a job, and why it is not running.", "job:job"),
    "events": Entry(_LOOK, "Print events as they happen.", "events:events"),
    "monitor": Entry(_LOOK, "Watch queues live, full screen.", "monitor.command:monitor"),
    "dashboard": Entry(_LOOK, "Serve a dashboard for your browser.", "dashboard:dashboard"),
    "doctor": Entry(
        _LOOK, "Find problems in a running system, and say what to do.", "doctor:doctor"
    ),
    "add": Entry(_CHANGE, "Add a job, or many from a file.", "add:add"),
    "retry": Entry(_CHANGE, "Run failed or completed jobs again.", "changing:retry"),
    "promote": Entry(_CHANGE, "Run delayed jobs now.", "changing:promote"),
    "cancel": Entry(_CHANGE, "Cancel jobs, waiting or running.", "changing:cancel"),
    "remove": Entry(_CHANGE, "Remove jobs.", "changing:remove"),
    "pause": Entry(_CHANGE, "Pause a queue: workers take no more jobs from it.", "pausing:pause"),
    "resume": Entry(_CHANGE, "Resume a paused queue.", "pausing:resume"),
    "drain": Entry(_CHANGE, "Remove waiting jobs.", "emptying:drain"),
    "clean": Entry(_CHANGE, "Remove old jobs in one state.", "emptying:clean"),
    "obliterate": Entry(_CHANGE, "Remove a queue and everything in it.", "emptying:obliterate"),
    "dlq": Entry(_FEATURES, "List, replay and purge dead letters.", "dead_letters:dlq"),
    "groups": Entry(
        _FEATURES,
        "List and cancel groups, and settle those that could not be undone.",
        "groups:groups",
    ),
    "lanes": Entry(_FEATURES, "List, pause, resume and drain lanes.", "lanes:lanes"),
    "schedulers": Entry(
        _FEATURES, "List, create, change, pause and remove schedulers.", "schedulers:schedulers"
    ),
    "schedules": Entry(
        _FEATURES,
        "Compare the schedules of an app's code with those of the server.",
        "schedules:schedules",
    ),
    "partitions": Entry(
        _FEATURES,
        "Show the partitions of a queue, and add more.",
        "partitions:partitions",
    ),
    "worker": Entry(_RUN, "Run workers until SIGTERM or Ctrl-C.", "worker:worker"),
    "relay": Entry(
        _RUN, "Send jobs from an outbox to their queues, until SIGTERM or Ctrl-C.", "relay:relay"
    ),
    "acl": Entry(
        _RUN, "Print the ACL rules that a producer, a worker or an operator needs.", "acl:acl"
    ),
    "dev": Entry(
        _RUN, "Run a server in the foreground, for development, with its dashboard.", "dev:dev"
    ),
    "demo": Entry(_RUN, "Show what Toril does, on a temporary server.", "demo.command:demo"),
    "bench": Entry(_RUN, "Measure how many jobs per second a server can do.", "bench:bench"),
    "completion": Entry(_RUN, "Print the completion script of a shell.", "completion:completion"),
}


class NoCommand(click.ClickException):
    """A group was called alone: its help is wanted, or something was forgotten."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__("no command was given")
        self.ctx = ctx


class CommandGroup(click.Group):
    """A group that is the same alone under every version of click."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise NoCommand(ctx)
        return super().parse_args(ctx, args)


class LazyGroup(CommandGroup):
    """A group whose commands are imported one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(CATALOGUE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = CATALOGUE.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(f"toril.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in CATALOGUE and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{_perhaps(args[0])}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in CATALOGUE.items():
            sections.setdefault(entry.section, []).append((name, entry.summary))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows, col_spacing=4)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names: list[Any] = [
            CompletionItem(name, help=entry.summary)
            for name, entry in CATALOGUE.items()
            if name.startswith(incomplete)
        ]
        return names or click.Command.shell_complete(self, ctx, incomplete)


def _perhaps(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, CATALOGUE, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; see toril --help"
