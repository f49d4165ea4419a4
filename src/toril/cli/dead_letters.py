"""``toril dlq``: look at dead letters, group them, send them back, throw them away."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toril.cli.answering import Answers
from toril.cli.catalogue import CommandGroup
from toril.cli.jobs import data_of
from toril.cli.printing import (
    age,
    echo,
    echo_lines,
    heading,
    print_facts,
    print_json,
    print_table,
    say,
    shortened,
    when,
)
from toril.cli.server import Server, queue_argument, with_server
from toril.cli.so_far import told_so_far
from toril.cli.values import (
    DURATION,
    confirm,
    confirm_name,
    counted,
    read_json,
    refuse_given,
    yes_option,
)
from toril.errors import DeadLetterNotFoundError, RefusedError
from toril.protocol import reading
from toril.protocol.dead_letter import DeadLetterMetadata, without_metadata
from toril.protocol.dead_letters import DeadLetterProgress
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.replay_options import DEFAULT_MAX_REPLAYS

if TYPE_CHECKING:
    from toril.sync.queue import Queue

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dlq", cls=CommandGroup)
def dlq() -> None:
    """List, replay and purge dead letters.

    A dead letter is a job that failed for good and was moved to the dead letter queue of its
    worker.  QUEUE is that queue.

    \b
    Examples:
      toril dlq summary payments-dlq
      toril dlq replay payments-dlq --fingerprint 'TimeoutError@pay.py:charge' --rate 50
      toril dlq purge payments-dlq --name send-email --dry-run
    """


def _filled(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty text: a shell gives it for a variable that is not set."""
    if value == "":
        raise click.BadParameter("it is empty; give a text, or leave the option out", ctx, param)
    return value


def filter_options(command: F) -> F:
    """Which dead letters are meant; all that are given must hold."""
    for option in (
        click.option("--until", type=DURATION, help="Only those that died more than this ago: 1h."),
        click.option("--since", type=DURATION, help="Only those that died less than this ago: 1h."),
        click.option("--source", "source_queue", callback=_filled, help="Only from this queue."),
        click.option("--no-fingerprint", is_flag=True, help="Only those that have no fingerprint."),
        click.option(
            "--fingerprint", callback=_filled, help="Only with this fingerprint, see 'dlq summary'."
        ),
        click.option(
            "--reason", "failed_reason", callback=_filled, help="Only if the reason contains this."
        ),
        click.option("--name", callback=_filled, help="Only with exactly this name."),
    ):
        command = option(command)
    return command


_JOB_OPTIONS = ("delay", "priority", "attempts", "backoff", "timeout", "lane")


def job_options(command: F) -> F:
    """What the jobs of a replay get in place of the options that they were added with."""
    for option in (
        click.option("--lane", help="In this lane instead of their own."),
        click.option("--timeout", type=DURATION, help="With this time limit for an attempt."),
        click.option("--backoff", type=DURATION, help="With this wait before a retry."),
        click.option("--attempts", type=int, help="With this many attempts in all."),
        click.option("--priority", type=int, help="With this priority; 1 is the most urgent."),
        click.option("--delay", type=DURATION, help="Run them after this time: 10s, 5m, 2h."),
    ):
        command = option(command)
    return command


def force_option(help_text: str) -> Callable[[F], F]:
    """``--force``: also in a queue that is no dead letter queue."""
    return click.option("--force", is_flag=True, help=help_text)


_RESUMED = {"noun": "dead letter", "again": "run it again with --resume"}
_ANY_QUEUE = "Also in a queue that is not a dead letter queue; asks for its name again."


@dlq.command("list")
@queue_argument
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip this many first.")
@click.option("--oldest-first", is_flag=True, help="Start with the oldest.")
@force_option("Also the jobs of a queue that is not a dead letter queue.")
@with_server
def list_letters(
    server: Server, queue_name: str, limit: int, skip: int, oldest_first: bool, force: bool
) -> None:
    """List dead letters, the newest first."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        total = queue.get_dead_letter_count()
        jobs = queue.get_dead_letter_jobs(
            skip,
            skip + limit - 1,
            newest_first=not oldest_first,
            force=force,
            payloads=server.as_json,
        )
    letters = [(job, _metadata(job)) for job in jobs]
    if server.as_json:
        print_json([_facts(job, meta) for job, meta in letters])
        return
    print_table(
        ["id", "name", "from", "died", "#attempts", "#replays", "reason"],
        [
            [
                job.id,
                job.name,
                meta.source_queue if meta else "",
                age(meta.dead_lettered_at) if meta else "",
                meta.attempts_made if meta else "",
                meta.replays if meta else "",
                shortened(meta.failed_reason if meta else "", 50),
            ]
            for job, meta in letters
        ],
        empty=f"Queue {queue_name!r} has no dead letters.",
        title=f"{counted(total, 'dead letter')} in {queue_name}",
    )


@dlq.command("show")
@queue_argument
@click.argument("job_id", metavar="ID")
@with_server
def show(server: Server, queue_name: str, job_id: str) -> None:
    """Show one dead letter: its data, its failures, and how often it was replayed."""
    with server.queue(queue_name, may_be_missing=True) as queue:
        job = queue.peek_dead_letter(job_id)
    if job is None:
        raise DeadLetterNotFoundError(f"queue {queue_name!r} has no dead letter {job_id!r}")
    meta = _metadata(job)
    if server.as_json:
        stacktrace = meta.stacktrace if meta else []
        print_json({**_facts(job, meta), "stacktrace": stacktrace})
        return
    known = [("id", job.id), ("name", job.name), ("queue", job.queue_name)]
    if meta is None:
        print_facts(known)
        echo("It has no metadata: it is an ordinary job of this queue.")
        heading("Data")
        print_json(data_of(job))
        return
    print_facts(
        [
            *known,
            ("from", meta.source_queue),
            ("was", meta.original_job_id),
            ("added", when(meta.original_timestamp)),
            ("died", when(meta.dead_lettered_at)),
            ("cause", meta.cause or None),
            ("attempts", meta.attempts_made),
            ("reason", meta.failed_reason),
            ("fingerprint", meta.fingerprint),
            ("replays", meta.replays or None),
        ]
    )
    heading("Data")
    print_json(without_metadata(data_of(job)))
    for number, trace in enumerate(meta.stacktrace, 1):
        heading(f"Attempt {number}")
        echo_lines(trace)


@dlq.command("summary")
@queue_argument
@filter_options
@force_option("Also in a queue that is not a dead letter queue.")
@with_server
def summary(server: Server, queue_name: str, force: bool, **filters: Any) -> None:
    """Group dead letters by what went wrong, the largest group first.

    A fingerprint is the type of the error and the place where it was raised.
    """
    with server.queue(queue_name, may_be_missing=True) as queue:
        groups = queue.get_dead_letter_summary(force=force, payloads=False, **_filters(filters))
    rows = [
        {
            "fingerprint": group.fingerprint,
            "count": group.count,
            "first_seen": group.first_seen,
            "last_seen": group.last_seen,
            "example_id": group.example_id,
            "example_reason": _reason(group.example),
        }
        for group in groups
    ]
    if server.as_json:
        print_json(rows)
        return
    print_table(
        ["fingerprint", "#count", "first", "last", "example", "reason"],
        [
            [
                group.fingerprint or "(none)",
                group.count,
                age(group.first_seen),
                age(group.last_seen),
                group.example_id,
                shortened(_reason(group.example), 50),
            ]
            for group in groups
        ],
        empty=f"Queue {queue_name!r} has no such dead letters.",
    )


@dlq.command("replay")
@queue_argument
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--all", "all_of_them", is_flag=True, help="All of them.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="At most this many per second.",
)
@click.option("--data", help="Repair one letter: its new data, as JSON or @FILE.")
@click.option(
    "--to", "to_queue", metavar="QUEUE", help="Replay into this queue instead of their own."
)
@job_options
@click.option("--by", help="Who does it; kept with the job.")
@click.option(
    "--max-replays",
    type=int,
    default=DEFAULT_MAX_REPLAYS,
    show_default=True,
    help="Skip letters that were replayed this often; -1 for no limit.",
)
@click.option("--keep-delay", is_flag=True, help="Keep the delay of the original jobs.")
@click.option("--resume", is_flag=True, help="Continue an interrupted replay.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@force_option(f"Also members of groups that are over or being undone.  {_ANY_QUEUE}")
@yes_option
@with_server
def replay(
    server: Server,
    queue_name: str,
    job_ids: tuple[str, ...],
    all_of_them: bool,
    rate: float | None,
    data: str | None,
    to_queue: str | None,
    by: str | None,
    max_replays: int,
    keep_delay: bool,
    resume: bool,
    dry_run: bool,
    force: bool,
    yes: bool,
    **filters: Any,
) -> int:
    """Send dead letters back to the queues they came from.

    Those with these ids, those that match the filters, or --all.

    \b
    Examples:
      toril dlq replay payments-dlq 01J8… --data '{"order": 123}'
      toril dlq replay payments-dlq --reason ETIMEDOUT --rate 50 --attempts 10
      toril dlq replay payments-dlq --all --yes
    """
    changed = {name: filters.pop(name) for name in _JOB_OPTIONS}
    wanted = _filters(filters)
    options: dict[str, Any] = {
        "by": by,
        "keep_delay": keep_delay,
        "max_replays": None if max_replays < 0 else max_replays,
        "force": force,
        "queue_name": to_queue,
        **{name: value for name, value in changed.items() if value is not None},
    }
    if job_ids:
        if wanted or all_of_them:
            raise click.UsageError("give either ids or filters")
        refuse_given("resume", because="single letters are named by their ids")
        options |= {"dry_run": dry_run, **_repair(data, job_ids)}
        return _replay_each(server, queue_name, job_ids, rate, options)
    if data is not None:
        raise click.UsageError("--data repairs one letter: name it by its ID")
    _refuse_everything(wanted, all_of_them=all_of_them, verb="replay")
    with server.queue(queue_name) as queue:
        _ask_for_name(queue, force=force)
        total = queue.replay_all_dead_letters(dry_run=True, resume=resume, **options, **wanted)
        letters = counted(total, "dead letter")
        if dry_run:
            say(server, f"{letters} would be replayed.", would_replay=total)
            return 0
        confirm(f"Replay {letters} of {queue_name!r}{_into(server, to_queue)}?", yes=yes)
        options |= {"rate": rate, "resume": resume, **wanted}
        done, told = _replay_those(server, queue, total, options)
    _say_replayed(server, queue_name, done, told)
    if told.held:
        echo(f"toril: {_held(told, max_replays)}", err=True)
    return 1 if told.held and done == told.resumed else 0


def _into(server: Server, queue_name: str | None) -> str:
    """Where the letters go: a new name may be a slip, and its jobs would wait for nobody."""
    if queue_name is None:
        return ""
    is_there = server.connection.run(reading.exists(Keys(server.prefix, queue_name)))
    return f" into {queue_name!r}" + ("" if is_there else ", which does not exist yet")


def _repair(data: str | None, job_ids: tuple[str, ...]) -> dict[str, Any]:
    if data is None:
        return {}
    if len(job_ids) > 1:
        raise click.UsageError("--data repairs one letter at a time")
    return {"data": read_json(data, "--data")}


def _replay_those(
    server: Server, queue: Queue, total: int, options: dict[str, Any]
) -> tuple[int, DeadLetterProgress]:
    """Replay many letters under a bar; how many went, and what was told of all of them."""
    with told_so_far(server, "replaying", total, done="replayed", **_RESUMED) as move:
        told = _Told(move)
        done = queue.replay_all_dead_letters(on_progress=told, **options)
    return done, told.whole


class _Told:
    """What a queue has told about its letters.  Each partition has a run, and tells of that."""

    def __init__(self, move: Callable[[int], None]) -> None:
        self._move = move
        self._runs: dict[str, DeadLetterProgress] = {}

    def __call__(self, progress: DeadLetterProgress) -> None:
        self._runs[progress.run] = progress
        whole = self.whole
        self._move(whole.done - whole.resumed)

    @property
    def whole(self) -> DeadLetterProgress:
        runs = self._runs.values()
        return DeadLetterProgress(
            done=sum(run.done for run in runs),
            examined=sum(run.examined for run in runs),
            held=sum(run.held for run in runs),
            left=sum(run.left for run in runs),
            held_by_group=sum(run.held_by_group for run in runs),
            resumed=sum(run.resumed for run in runs),
        )


def _say_replayed(server: Server, queue_name: str, done: int, told: DeadLetterProgress) -> None:
    say(
        server,
        f"Replayed {counted(done, 'dead letter')}{_before(told)}.",
        queue=queue_name,
        replayed=done,
        held=told.held,
    )


@dlq.command("purge")
@queue_argument
@filter_options
@click.option("--all", "all_of_them", is_flag=True, help="All of them.")
@click.option("--resume", is_flag=True, help="Continue an interrupted purge.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@force_option(_ANY_QUEUE)
@yes_option
@with_server
def purge(
    server: Server,
    queue_name: str,
    all_of_them: bool,
    resume: bool,
    dry_run: bool,
    force: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Remove dead letters for good: those that match the filters, or --all.

    \b
    Examples:
      toril dlq purge payments-dlq --until 30d --dry-run
      toril dlq purge payments-dlq --name send-email --yes
    """
    wanted = _filters(filters)
    _refuse_everything(wanted, all_of_them=all_of_them, verb="purge")
    with server.queue(queue_name) as queue:
        _ask_for_name(queue, force=force)
        count = partial(
            queue.purge_dead_letters, dry_run=True, resume=resume, force=force, **wanted
        )
        total = count()
        if dry_run:
            say(server, f"{counted(total, 'dead letter')} would be removed.", would_remove=total)
            return
        confirm(f"Remove {counted(total, 'dead letter')} of {queue_name!r} for good?", yes=yes)
        if not yes:
            _refuse_more(count(), total)
        with told_so_far(server, "purging", total, done="removed", **_RESUMED) as move:
            done = queue.purge_dead_letters(
                resume=resume,
                force=force,
                on_progress=_Told(move),
                **wanted,
            )
    say(server, f"Removed {counted(done, 'dead letter')}.", queue=queue_name, removed=done)


def _refuse_more(now: int, asked: int) -> None:
    """Refuse a purge that would take letters along which came while the question was open."""
    if now > asked:
        raise click.ClickException(
            f"nothing was removed: {counted(now, 'dead letter')} match by now, and you were asked"
            f" about {asked:,}; run it again, and leave the newest out with --until 1m if more come"
        )


def _replay_each(
    server: Server,
    queue_name: str,
    job_ids: tuple[str, ...],
    rate: float | None,
    options: dict[str, Any],
) -> int:
    dry_run = options["dry_run"]
    with server.queue(queue_name) as queue, Answers(server) as answers:
        if len(job_ids) > 1:
            _check_each(queue, job_ids, options)
        began = time.monotonic()
        for number, job_id in enumerate(job_ids):
            if rate is not None and not dry_run:
                time.sleep(max(0.0, number / rate - (time.monotonic() - began)))
            with answers.about(job_id, new_id=None) as answer:
                new_id = queue.replay_dead_letter(job_id, **options)
                answer.update({"would_replay": True} if dry_run else {"new_id": new_id})
                how = "would be replayed" if dry_run else f"replayed as {new_id}"
                answers.tell(f"{job_id}: {how}")
    return answers.code


def _check_each(queue: Queue, job_ids: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise for a slip in an id or an option that fits some letters only, before one is replayed.

    What is refused is told later, and the other letters go.
    """
    for job_id in job_ids:
        with suppress(RefusedError):
            queue.replay_dead_letter(job_id, **{**options, "dry_run": True})


def _ask_for_name(queue: Queue, *, force: bool) -> None:
    """Somebody who forces it on a queue with other jobs types its name once more, --yes or not."""
    if not force or queue.is_dead_letter_queue():
        return
    confirm_name(f"{queue.name!r} is no dead letter queue; type its name to go on", queue.name)


def _held(told: DeadLetterProgress, max_replays: int) -> str:
    """Which letters were left alone, and what would replay them."""
    reasons = []
    if told.held_by_group:
        reasons.append(
            f"{counted(told.held_by_group, 'letter')} of groups that are over or being undone"
            f" (--force replays them)"
        )
    if often := told.held - told.held_by_group:
        reasons.append(
            f"{counted(often, 'letter')} that came back {max_replays} times"
            f" (--max-replays -1 replays them)"
        )
    return f"left alone: {', and '.join(reasons)}"


def _before(told: DeadLetterProgress) -> str:
    return f", {told.resumed:,} of them before it was interrupted" if told.resumed else ""


def _filters(given: dict[str, Any]) -> dict[str, Any]:
    wanted = {name: value for name, value in given.items() if value is not None}
    if wanted.pop("no_fingerprint"):
        if "fingerprint" in wanted:
            raise click.UsageError("give either --fingerprint or --no-fingerprint")
        wanted["fingerprint"] = ""
    for edge in ("since", "until"):
        if edge in wanted:
            wanted[edge] = timedelta(milliseconds=wanted[edge])
    return wanted


def _metadata(job: Job) -> DeadLetterMetadata | None:
    """What is known of a letter; nothing if its data are no JSON."""
    try:
        return job.dead_letter
    except ValueError:
        return None


def _refuse_everything(wanted: dict[str, Any], *, all_of_them: bool, verb: str) -> None:
    if not wanted and not all_of_them:
        raise click.UsageError(f"choose the letters to {verb} with a filter, or give --all")
    if wanted and all_of_them:
        raise click.UsageError("give either filters or --all")


def _facts(job: Job, meta: DeadLetterMetadata | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "data": without_metadata(data_of(job)),
    }
    if meta is None:
        return facts
    return facts | {
        "source_queue": meta.source_queue,
        "original_job_id": meta.original_job_id,
        "failed_reason": meta.failed_reason,
        "fingerprint": meta.fingerprint,
        "attempts_made": meta.attempts_made,
        "dead_lettered_at": meta.dead_lettered_at,
        "replays": meta.replays,
    }


def _reason(job: Job | None) -> str:
    meta = _metadata(job) if job is not None else None
    return meta.failed_reason if meta is not None else ""
