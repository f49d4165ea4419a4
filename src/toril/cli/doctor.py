"""``toril doctor``: what is wrong with a running system, why it hurts, and what to do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from toril.cli.loading import load
from toril.cli.printing import Styled, echo, echo_lines, print_json
from toril.cli.server import Server, complete_queue, with_server
from toril.cli.values import refuse_given
from toril.client.connection import Connection
from toril.doctor import Finding, Report, Severity, codes, examine
from toril.doctor.libraries import remove_unused_libraries
from toril.doctor.parcels import offer_refused
from toril.doctor.presence import find_queues
from toril.doctor.reader import ConnectionReader
from toril.doctor.wording import counted

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@click.command("doctor")
@click.argument("targets", metavar="[MODULE:OBJECT]...", nargs=-1)
@click.option(
    "-q",
    "--queue",
    "queue_names",
    metavar="QUEUE",
    multiple=True,
    shell_complete=complete_queue,
    help="Only this queue; may be repeated.  [default: all that are found]",
)
@click.option("--no-audit", is_flag=True, help="Skip the audit of the keyspace.")
@click.option(
    "--most-keys",
    type=click.IntRange(0),
    default=200_000,
    show_default=True,
    help="Skip the audit if there are more keys.",
)
@click.option(
    "--fix", is_flag=True, help="Remove unused function libraries, and offer refused parcels again."
)
@click.option("--explain", metavar="CODE", help="Explain a code, such as D201, and exit.")
@with_server
def doctor(
    server: Server,
    targets: tuple[str, ...],
    queue_names: tuple[str, ...],
    no_audit: bool,
    most_keys: int,
    fix: bool,
    explain: str | None,
) -> int:
    """Find problems in a running system, and say what to do.

    It checks the server, the queues, their workers, and the keyspace; and the configuration of the
    workers, consumers, queues and relays that are given as MODULE:OBJECT.  It only reads, unless
    you ask for --fix.  Exit code: 0 when nothing is wrong, 1 with warnings, 2 with errors.

    \b
    Examples:
      toril doctor
      toril doctor shop.workers:payments --json
      toril doctor --explain D201
    """
    if explain is not None:
        refuse_given("fix", because="--explain asks no server")
        return _explain(explain, server)
    if fix:
        asyncio.run(_fix(server))
    if no_audit:
        refuse_given("most_keys", because="--no-audit leaves the audit out")
    found = [load(target) for target in targets]
    objects = [
        one for each in found for one in (each if isinstance(each, (list, tuple, set)) else (each,))
    ]

    report = asyncio.run(_examine(server, queue_names, objects, no_audit, most_keys))
    if server.as_json:
        print_json(json.loads(report.to_json()))
    else:
        _print(report.findings)
    return report.exit_code


def _explain(code: str, server: Server) -> int:
    text = codes.explain(code)
    if server.as_json:
        known = codes.CODES[code.strip().upper()]
        print_json({"code": code.strip().upper(), **known._asdict()})
    else:
        echo_lines(text)
    return 0


async def _fix(server: Server) -> None:
    connection = Connection(server.url, patience_s=1.0)
    try:
        for name in await remove_unused_libraries(connection):
            if not server.as_json:
                echo(f"removed the library {name}")
        reader = await ConnectionReader.open(connection)
        names, _ = await find_queues(reader, server.prefix)
        offered = await offer_refused(connection, server.prefix, names)
        if offered and not server.as_json:
            echo(f"offered {counted(offered, 'refused parcel')} again; workers deliver them")
    finally:
        await connection.close()


async def _examine(
    server: Server,
    queue_names: tuple[str, ...],
    objects: list[Any],
    no_audit: bool,
    most_keys: int,
) -> Report:
    connection = Connection(server.url, patience_s=1.0)
    try:
        return await examine(
            connection,
            prefix=server.prefix,
            queues=queue_names,
            objects=objects,
            audit=not no_audit,
            most_keys=most_keys,
        )
    finally:
        await connection.close()


def _print(findings: list[Finding]) -> None:
    for one in findings:
        mark = Styled(f"{one.severity.value:<8}", _COLOURS[one.severity], is_bold=True)
        echo(mark, f" {one.code}  {one.subject}: {one.problem}")
        echo(f"         {one.harm}")
        echo(f"         → {one.remedy}")
        echo(f"         more: toril doctor --explain {one.code}")
        echo()
    counts = [
        f"{number} {severity.value}{'s' if number != 1 else ''}"
        for severity in Severity
        if (number := sum(one.severity is severity for one in findings))
    ]
    echo(", ".join(counts) or "Nothing is wrong.")
