"""``toril add``: a job from the command line, or many from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

import click

from toril import NewJob
from toril.cli.printing import echo, print_json, progress_bar, say
from toril.cli.server import Server, queue_argument, with_server
from toril.cli.values import DURATION, counted, parse_json, read_json, refuse_given
from toril.errors import InvalidInputError
from toril.options import OPTION_NAMES

JOBS_PER_CALL = 1000


@click.command("add")
@queue_argument
@click.argument("name")
@click.argument("data", required=False)
@click.option("--delay", type=DURATION, help="Run it after this time: 10s, 5m, 2h.")
@click.option("--priority", type=int, help="1 is the most urgent; jobs without one come first.")
@click.option("--attempts", type=int, help="How often to run it at most, the first run included.")
@click.option("--backoff", type=DURATION, help="How long to wait before a retry.")
@click.option("--timeout", type=DURATION, help="How long an attempt may take.")
@click.option("--id", "job_id", help="Its id; nothing is added if a job with it exists.")
@click.option("--lane", help="Run it after the earlier jobs of this lane.")
@click.option("--order-ms", type=int, help="Its place in the lane; the time of adding by default.")
@click.option("--lifo", is_flag=True, default=None, help="Put it at the front of the queue.")
@click.option(
    "--from",
    "lines",
    type=click.File("rb"),
    metavar="FILE",
    help="Add a job for every line of this file, each the JSON of one job's data; - is stdin.",
)
@click.option("--wait", is_flag=True, help="Wait until it has run, and print its result.")
@click.option(
    "--wait-timeout", type=DURATION, default="60s", show_default=True, help="How long to wait."
)
@with_server
def add(
    server: Server,
    queue_name: str,
    name: str,
    data: str | None,
    lines: IO[bytes] | None,
    wait: bool,
    wait_timeout: int,
    **given: Any,
) -> None:
    """Add a job, or many from a file.

    NAME selects the handler; DATA is JSON, or @FILE, or - to read stdin.

    \b
    Examples:
      toril add payments charge '{"order": 123}' --attempts 5 --backoff 1s
      toril add mail digest --delay 2h
      toril add payments charge @order.json --wait
      toril add payments charge --from orders.jsonl
    """
    options = {option: value for option, value in given.items() if value is not None}
    if unknown := sorted(set(options) - set(OPTION_NAMES)):
        raise click.UsageError(f"this version of Toril has no option {unknown[0]!r}")
    if not wait:
        refuse_given("wait_timeout", because="it goes with --wait")
    if lines is not None:
        refuse_given("wait", because="it waits for one job, and --from adds many")
        _add_lines(server, queue_name, name, lines, options, has_data=data is not None)
        return
    payload = None if data is None else read_json(data, "DATA")
    with server.queue(queue_name, may_be_missing=True) as queue:
        job = queue.add(name, payload, **options)
        facts = {"id": job.id, "queue": queue_name, "name": name, "duplicated": job.duplicated}
        if not wait:
            was = "was there already" if job.duplicated else "added"
            say(server, f"{job.id}: {was}", **facts)
            return
        if not server.as_json:
            echo(f"{job.id}: added, waiting for it", err=True)
        returned = queue.wait_for(job.id, timeout=wait_timeout)
    print_json({**facts, "return_value": returned} if server.as_json else returned)


def _add_lines(
    server: Server,
    queue_name: str,
    name: str,
    lines: IO[bytes],
    options: dict[str, Any],
    *,
    has_data: bool,
) -> None:
    if has_data or "job_id" in options:
        raise click.UsageError("--from cannot be combined with DATA or --id")
    far = _HowFar()
    with server.queue(queue_name, may_be_missing=True) as queue:
        try:
            with progress_bar(server, "adding") as move:
                for last_line, jobs in _batches(lines, name, options):
                    far.begin(last_line)
                    far.finish(len(queue.add_bulk(jobs)))
                    move(far.added)
        except BaseException as error:
            echo(f"toril: {far.told(error)}", err=True)
            raise
    say(server, f"Added {counted(far.added, 'job')}.", queue=queue_name, added=far.added)


def _batches(
    lines: Iterable[bytes], name: str, options: dict[str, Any]
) -> Iterator[tuple[int, list[NewJob]]]:
    """The jobs of the lines, as many as go in one call, and the number of the last line."""
    jobs: list[NewJob] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            jobs.append(NewJob(name, parse_json(line, f"line {number}"), **options))
        if len(jobs) == JOBS_PER_CALL:
            yield number, jobs
            jobs = []
    if jobs:
        yield number, jobs


class _HowFar:
    """What has become of the lines: the jobs have no ids, so a line sent twice would run twice."""

    def __init__(self) -> None:
        self.added = 0
        self._last_added = 0
        self._last_sent = 0

    def begin(self, last_line: int) -> None:
        self._last_sent = last_line

    def finish(self, added: int) -> None:
        self.added += added
        self._last_added = self._last_sent

    def told(self, error: BaseException) -> str:
        """What whoever goes on after this error has to know."""
        first = self._last_added + 1
        head = f"added {counted(self.added, 'job')}"
        if self._last_sent < first or isinstance(error, InvalidInputError):
            return f"{head}; go on with line {first}"
        return (
            f"{head}; some or all of lines {first} to {self._last_sent} may have been added, too:"
            f" look into the queue before you go on with line {first}"
        )
