"""``toril retry``, ``promote``, ``cancel`` and ``remove``: changes to single jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click

from toril.cli.answering import Answers
from toril.cli.finding import queues_of
from toril.cli.printing import say
from toril.cli.server import Server, queue_option, with_server
from toril.cli.so_far import told_so_far
from toril.cli.values import confirm, counted, refuse_given, yes_option
from toril.errors import InvalidOptionError, JobNotFoundError, RefusedError
from toril.sync.queue import Queue

_IDS = click.argument("job_ids", metavar="[ID]...", nargs=-1)
_ALL = click.option("--all", "all_of_them", is_flag=True, help="All jobs of the queue.")


@click.command("retry")
@_IDS
@queue_option
@_ALL
@click.option(
    "-s",
    "--state",
    type=click.Choice(["failed", "completed"]),
    default="failed",
    show_default=True,
    help="The state that --all means.",
)
@click.option("--reset-attempts", is_flag=True, help="Reset their attempt counts.")
@with_server
def retry(
    server: Server,
    job_ids: tuple[str, ...],
    queue_name: str | None,
    all_of_them: bool,
    state: str,
    reset_attempts: bool,
) -> int:
    """Run failed or completed jobs again.

    \b
    Examples:
      toril retry order-123
      toril retry --all --queue payments --reset-attempts
    """
    if not all_of_them:
        refuse_given("state", because="it says which jobs --all means")
        return _each(
            server,
            job_ids,
            queue_name,
            "retried",
            lambda queue, job_id: queue.retry(job_id, reset_attempts=reset_attempts),
        )
    with server.queue(_only_queue(job_ids, queue_name)) as queue:
        total = queue.get_job_counts(state)[state]
        with told_so_far(server, "retrying", total, done="retried") as move:
            done = queue.retry_all(state, reset_attempts=reset_attempts, on_progress=move)
    say(server, f"Retried {counted(done, f'{state} job')}.", queue=queue_name, retried=done)
    return 0


@click.command("promote")
@_IDS
@queue_option
@_ALL
@with_server
def promote(
    server: Server, job_ids: tuple[str, ...], queue_name: str | None, all_of_them: bool
) -> int:
    """Run delayed jobs now.

    \b
    Examples:
      toril promote order-123
      toril promote --all --queue payments
    """
    if not all_of_them:
        return _each(
            server, job_ids, queue_name, "promoted", lambda queue, job_id: queue.promote(job_id)
        )
    with (
        server.queue(_only_queue(job_ids, queue_name)) as queue,
        told_so_far(server, "promoting", queue.get_delayed_count(), done="promoted") as move,
    ):
        done = queue.promote_all(on_progress=move)
    say(server, f"Promoted {counted(done, 'delayed job')}.", queue=queue_name, promoted=done)
    return 0


@click.command("cancel")
@_IDS
@queue_option
@click.option("--reason", help="Why; becomes the reason of the failure.")
@with_server
def cancel(
    server: Server, job_ids: tuple[str, ...], queue_name: str | None, reason: str | None
) -> int:
    """Cancel jobs, waiting or running.

    A waiting job fails; the worker of a running job is told to stop it.

    \b
    Example:
      toril cancel order-123 --reason "the customer left"
    """
    return _each(
        server,
        job_ids,
        queue_name,
        "cancelled",
        lambda queue, job_id: queue.cancel(job_id, reason).name.lower(),
    )


@click.command("remove")
@_IDS
@queue_option
@click.option("--keep-children", is_flag=True, help="Keep the children of a flow.")
@yes_option
@with_server
def remove(
    server: Server, job_ids: tuple[str, ...], queue_name: str | None, keep_children: bool, yes: bool
) -> int:
    """Remove jobs, whatever their state, and the children of their flows.

    \b
    Examples:
      toril remove order-123
      toril remove order-123 order-124 --queue payments --yes
    """
    if job_ids:
        confirm(f"Remove {counted(len(job_ids), 'job')}: {', '.join(job_ids)}?", yes=yes)

    def remove_one(queue: Queue, job_id: str) -> None:
        if not queue.remove(job_id, remove_children=not keep_children):
            raise JobNotFoundError(f"queue {queue.name!r} has no job {job_id!r}")

    return _each(server, job_ids, queue_name, "removed", remove_one)


def _each(
    server: Server,
    job_ids: tuple[str, ...],
    queue_name: str | None,
    done: str,
    change: Callable[[Queue, str], Any],
) -> int:
    """Change one job after another; what is refused is told, and the others go on.

    All queues are found before the first change, so that a slip in an id changes nothing.
    """
    if not job_ids:
        raise click.UsageError("name at least one job by its ID")
    with ExitStack() as opened:
        queues = queues_of(server, job_ids, queue_name, opened)
        with Answers(server) as answers:
            for job_id, found in zip(job_ids, queues, strict=True):
                with answers.about(job_id, done=False) as answer:
                    if isinstance(found, RefusedError):
                        raise found
                    answer["queue"] = found.name
                    how = change(found, job_id) or done
                    answer.update(done=True, how=how)
                    answers.tell(f"{job_id}: {how}")
    return answers.code


def _only_queue(job_ids: tuple[str, ...], queue_name: str | None) -> str:
    if job_ids:
        raise click.UsageError("give either ids or --all")
    if queue_name is None:
        raise InvalidOptionError("--all needs --queue: it never affects the jobs of all queues")
    return queue_name
