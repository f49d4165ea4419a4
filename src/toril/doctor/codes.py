"""What each code of the doctor means: the text of ``toril doctor --explain`` and of its page.

A finding says what is wrong here and now.  Its code says what the doctor looks at, why that
matters, and what to do, in the order in which one would do it.
"""

from __future__ import annotations

from typing import NamedTuple

from toril.errors import InvalidOptionError


class Code(NamedTuple):
    """One code: its title, what the doctor looks at, why it matters, and the steps to take."""

    title: str
    looks_at: str
    why: str
    steps: tuple[str, ...]


def explain(code: str) -> str:
    """All about one code, as plain text."""
    name = code.strip().upper()
    known = CODES.get(name)
    if known is None:
        raise InvalidOptionError(
            f"there is no doctor code {code!r}; codes look like D201, and each finding shows its own"
        )
    steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(known.steps, 1))
    return (
        f"{name}: {known.title}\n\n"
        f"What the doctor looks at\n  {known.looks_at}\n\n"
        f"Why it matters\n  {known.why}\n\n"
        f"What to do\n{steps}\n\n"
        f"In the documentation: {page_of(name)}"
    )


def page_of(code: str) -> str:
    """The code's page, in the repository."""
    return f"docs/reference/doctor/{code}.md"


CODES: dict[str, Code] = {
    "D101": Code(
        "The server is too old",
        "The version in `INFO`: at least Redis 7.0 or Valkey 7.2 is needed.",
        "Toril's scripts declare their flags in a header that older servers do not understand. "
        "Every call fails.",
        (
            "Install Redis 7.0 or Valkey 7.2, or newer.",
            "Restore the old server's append-only file or snapshot there; the layout is the same.",
        ),
    ),
    "D102": Code(
        "The server evicts keys",
        "`maxmemory-policy` in `INFO`.",
        "With any policy but `noeviction`, a full server deletes keys to make room. Jobs, locks and "
        "lists are keys: jobs vanish without an error.",
        (
            "Run `CONFIG SET maxmemory-policy noeviction`, and write it into the configuration file.",
            "Move caches to another server: a cache wants eviction.",
            "Run `toril doctor` again; D107 says whether keys have already been lost.",
        ),
    ),
    "D103": Code(
        "The server may forget jobs when it restarts",
        "Whether the append-only file or snapshots are enabled.",
        "Without an append-only file, a crash loses everything since the last snapshot. Without "
        "snapshots, it loses everything.",
        (
            "Run `CONFIG SET appendonly yes`, and write it into the configuration file.",
            "Keep `appendfsync everysec`: a crash of the machine then costs about a second.",
            "For jobs that may not be lost at all, write them with the outbox and run the relay "
            "with `confirm=True`.",
        ),
    ),
    "D105": Code(
        "The clocks differ",
        "The difference between this host's clock and the server's: a warning above one second, an "
        "error above 30.",
        "Delays and locks use the server's clock. A `run_at` computed on this host, and workers of "
        "BullMQ, use this host's clock: jobs start too early or too late.",
        (
            "Run an NTP client on both hosts.",
            "Run `toril doctor` again from every host that adds jobs.",
        ),
    ),
    "D106": Code(
        "Everybody who reaches the server may do everything",
        "Which user this connection has, and whether that user needs a password.",
        "Whoever can write to the server can enqueue work, read every payload and delete every "
        "queue.",
        (
            "Create an ACL user for each service: `toril acl worker` prints the line.",
            "Put the user and the password into `TORIL_URL`: `redis://worker:secret@host`.",
            "Use `rediss://` when the connection leaves the host.",
        ),
    ),
    "D107": Code(
        "The server has evicted keys",
        "`evicted_keys` in `INFO`, counted since the server started.",
        "Keys of your queues may be among them. A queue with missing keys can lose jobs later, too.",
        (
            "Set `maxmemory-policy` to `noeviction` (D102).",
            "Run `toril doctor` with the audit: D501 names jobs and lists that no longer fit.",
            "Enqueue what is missing again; rows of an outbox with `confirm=True` come back alone.",
        ),
    ),
    "D108": Code(
        "Memory is almost full",
        "`used_memory` against `maxmemory`: more than 80 %.",
        "When memory is full, adds are refused with `ServerOutOfMemoryError`. Workers keep draining.",
        (
            "Look at `toril queues`: which state holds the most jobs?",
            "Keep fewer finished jobs: `remove_on_complete=1000`, `remove_on_fail=Keep(age=…)`.",
            "Remove old ones now: `toril clean QUEUE --state completed --older-than 1d`.",
            "If jobs wait, add workers. If payloads are large, send references. Or add memory.",
        ),
    ),
    "D109": Code(
        "This server is a replica",
        "`role` in `INFO`.",
        "A replica takes no writes. Adds and workers fail against it.",
        (
            "Connect to the primary.",
            "If Sentinel chooses the primary, use `redis+sentinel://host1,host2/name`.",
        ),
    ),
    "D110": Code(
        "The server's settings could not be read",
        "Whether this user may run `INFO`.",
        "Version, memory policy and persistence were not checked.",
        ("Allow it (`+info`), or run the doctor once as an administrator.",),
    ),
    "D111": Code(
        "The server cannot write to its disk",
        "`rdb_last_bgsave_status` and `aof_last_write_status` in `INFO`.",
        "The server refuses writes, or loses them at its next restart.",
        (
            "Look at the server's log: most often the disk is full, or its directory is not "
            "writable.",
            "Free space, then run `BGSAVE` or `BGREWRITEAOF` and look at `INFO persistence`.",
        ),
    ),
    "D112": Code(
        "A node of the cluster does not answer",
        "Every node that `CLUSTER SHARDS` names.",
        "The queues in its slots stand still, and could not be examined.",
        (
            "Start the node.",
            "If it does not come back, promote its replica: `CLUSTER FAILOVER FORCE` there.",
        ),
    ),
    "D113": Code(
        "The cluster has slots without a node",
        "How many of the 16384 slots a node serves.",
        "Queues in those slots cannot be used. By default the cluster then refuses everything.",
        ("Assign them: `valkey-cli --cluster fix HOST:PORT`, or `CLUSTER ADDSLOTS`.",),
    ),
    "D114": Code(
        "A node of the cluster has no replica",
        "How many replicas are connected to each node that has slots.",
        "When it dies its queues stand still until it is back. By default all others do too.",
        ("Start a node and make it a replica: `CLUSTER REPLICATE NODE-ID`.",),
    ),
    "D115": Code(
        "No replica of a node keeps up",
        "The state of each node's replicas, and for how long they have been silent.",
        "A failover loses what they have not received, and adds with `replicas=` fail.",
        (
            "Look at the replicas' logs.",
            "Look at the line between them, and at `client-output-buffer-limit replica`.",
        ),
    ),
    "D116": Code(
        "The hottest queue of a node",
        "What the queues of each node of a cluster write into their logs of events in half a"
        " second.",
        "A node runs on one core. When that is full, all of its queues wait.",
        (
            "Move slots to another node if several queues share the load.",
            "Partition the queue if it is one alone: docs/guides/scaling.md.",
        ),
    ),
    "D120": Code(
        "Libraries of functions that nobody calls",
        "`FUNCTION LIST`, and which library each connected program says it calls.",
        "Every version of Toril loads a library of its own and leaves it there. "
        "It takes a little memory and does no harm.",
        (
            "Run `toril doctor --fix`.",
            "A program of that version that comes back loads its library again.",
        ),
    ),
    "D201": Code(
        "Jobs wait and no worker is connected",
        "Waiting jobs, and the connections named as workers of the queue.",
        "Nobody runs the jobs, and nobody brings back the jobs of workers that died.",
        (
            "Start a worker: `toril worker MODULE:OBJECT --queue QUEUE`.",
            "If one runs, compare its `--url` and `--prefix` with the producers'.",
            "If the queue is no longer used, remove it: `toril obliterate QUEUE`.",
        ),
    ),
    "D202": Code(
        "Nobody undoes failed groups",
        "Groups of the queue, and workers of its compensation queue.",
        "When a group fails, its compensations wait: the payment stays charged.",
        (
            'Run `Worker("QUEUE:compensation", …)` beside the worker of the queue.',
            "An App with `@task.undo` runs one by itself.",
        ),
    ),
    "D203": Code(
        "There are dead letters",
        "Waiting jobs of a dead letter queue, and the age of the oldest; a warning after a day.",
        "Work that was asked for was not done.",
        (
            "See what they have in common: `toril dlq summary QUEUE`.",
            "Fix the cause, then replay: `toril dlq replay QUEUE --all --rate 50`.",
            "Purge what can never work: `toril dlq purge QUEUE --reason TEXT`.",
        ),
    ),
    "D204": Code(
        "Failed jobs are kept in the queue",
        "The failed set of a queue without dead letters; a warning above 1,000.",
        "They were not done, and only this set says so.",
        (
            "Look at them: `toril jobs QUEUE --state failed`.",
            "Run them again: `toril retry --all --queue QUEUE`.",
            'Give the worker a dead letter queue: `Worker(…, dead_letter_queue="QUEUE-dlq")`.',
        ),
    ),
    "D205": Code(
        "Many completed jobs are kept",
        "The completed set: more than 20,000 jobs.",
        "They fill the server's memory until it accepts no more jobs.",
        (
            "Set `remove_on_complete=1000` on the worker or in default_job_options.",
            "Remove the old ones: `toril clean QUEUE --state completed --older-than 1d`.",
        ),
    ),
    "D207": Code(
        "A foreign worker takes jobs of groups or lanes",
        "The library that each worker's connection names, on queues that use groups or lanes.",
        "A worker of another library finishes a job without telling its group or lane. The group "
        "is settled later, by the next sweep of a Toril worker; without one, never.",
        (
            "Let only Toril's workers take from queues with groups or lanes.",
            "If both must run, keep at least one Toril worker on the queue.",
        ),
    ),
    "D208": Code(
        "Which libraries work on this queue",
        "The library that each worker's connection names.",
        "Nothing is wrong. Mixed versions are worth knowing during a deploy.",
        ("Finish the deploy, so that all workers of a queue run the same version.",),
    ),
    "D209": Code(
        "A paused queue has jobs",
        "Whether the queue is paused, and how many jobs wait.",
        "Nobody runs them until the queue is resumed.",
        (
            "Find out who paused it and why.",
            "Resume it: `toril resume QUEUE`.",
        ),
    ),
    "D210": Code(
        "The oldest job has waited for hours",
        "When the oldest waiting job was added: more than an hour ago.",
        "Workers cannot keep up, or hang.",
        (
            "See what runs and for how long: `toril monitor`, or `toril jobs QUEUE --state active`.",
            "If handlers wait for other services, raise concurrency.",
            "If they use the CPU, add processes: `toril worker … --processes 4`.",
            "If they hang, give the jobs a `timeout=`.",
        ),
    ),
    "D211": Code(
        "The queue has a global limit",
        "Global concurrency and global rate limit.",
        "More workers do not make the queue faster.",
        (
            "If it is intended, do nothing.",
            "Otherwise call `remove_global_concurrency()` or `remove_global_rate_limit()`.",
        ),
    ),
    "D213": Code(
        "Recurring jobs use a form that BullMQ removed",
        "Repeatable jobs that were made by `add(…, repeat)` of BullMQ 5.",
        "BullMQ 6 does not run them any more.",
        (
            "Make each one a scheduler: `upsert_job_scheduler(id, cron=…, template=…)`.",
            "Remove the old ones with the program that made them.",
        ),
    ),
    "D215": Code(
        "A job was retried for an error that will not go away",
        "The failed reason of jobs with several attempts: errors of types that are bugs or bad data.",
        "The same input fails the same way each time. The attempts only delay the news.",
        (
            "Raise `UnrecoverableError` for such errors.",
            "With tasks: `give_up_on=(ValueError, TypeError)`, or `retry_on=ConnectionError`.",
        ),
    ),
    "D216": Code(
        "A worker runs dead letters as jobs",
        "Workers connected to a dead letter queue.",
        "Each letter is run with its metadata inside the data, and is gone afterwards.",
        (
            "Stop that worker.",
            "Replay the letters instead: `toril dlq replay QUEUE ID`.",
        ),
    ),
    "D218": Code(
        "A paused queue was filled by two programs",
        "Jobs in both lists, wait and paused, of a paused queue.",
        "If BullMQ 5 resumes the queue, it renames one list over the other, and jobs are lost.",
        ("Resume it with Toril or BullMQ 6: `toril resume QUEUE`. Both lists are kept.",),
    ),
    "D219": Code(
        "Jobs are left in the list of a pause that is over",
        "Jobs in the list paused of a queue that is not paused.",
        "Nobody takes from that list, and the next pause by BullMQ 5 overwrites it.",
        (
            "Resume it again: `toril resume QUEUE`.",
            "Or start a Toril worker: its sweep brings the jobs back.",
        ),
    ),
    "D220": Code(
        "Jobs are retried almost for ever",
        "`attempts` of the queue's newest jobs, or of the options given.",
        "A job that cannot succeed keeps running, and nobody sees it fail.",
        (
            "Set attempts to a number between 5 and 20.",
            "Send what fails to a dead letter queue.",
        ),
    ),
    "D221": Code(
        "Jobs are tried once",
        "`attempts` of the queue's newest jobs, or of the options given.",
        "A lost connection fails the job for good.",
        (
            "Make the handler safe to run twice.",
            "Set `attempts=3` or more, with `backoff=Backoff.exponential(1000, jitter=0.5)`.",
        ),
    ),
    "D222": Code(
        "Retries do not wait",
        "`backoff` of jobs with several attempts.",
        "All attempts are used up while the trouble lasts, and add to it.",
        ("Set `backoff=Backoff.exponential(1000, jitter=0.5)`.",),
    ),
    "D223": Code(
        "Retries wait for the same time each time",
        "A fixed backoff.",
        "An outage that lasts longer than a few waits fails all the jobs.",
        ("Set `backoff=Backoff.exponential(1000, jitter=0.5)`.",),
    ),
    "D224": Code(
        "Retries have no jitter",
        "An exponential backoff without jitter.",
        "Jobs that failed together come back together, and fail together again.",
        ("Set `backoff=Backoff.exponential(…, jitter=0.5)`.",),
    ),
    "D225": Code(
        "A queue has a name that Toril cannot open",
        "Names of queues under the prefix.",
        "Control characters, spaces at the ends and names above 256 characters are refused.",
        ("Move the jobs to a queue with a plain name, with the program that made them.",),
    ),
    "D226": Code(
        "The queue that you named does not exist",
        "The names given with `--queue`.",
        "Nothing was ever added to it under this prefix. Producers may use another name.",
        (
            "List what exists: `toril queues`.",
            "Compare `--prefix` and `TORIL_PREFIX` with the producers'.",
        ),
    ),
    "D227": Code(
        "The queues are under another prefix",
        "Queues under this prefix, and under others.",
        "With a prefix that differs from the producers', a worker waits for ever without an error.",
        ("Use the same `prefix=` in queues, workers and commands (`TORIL_PREFIX`).",),
    ),
    "D228": Code(
        "Jobs are active and nobody runs them",
        "Active jobs without a lock, or without any connected worker.",
        "Their worker died. Another worker brings them back; without one they stay where they are.",
        (
            "Start a worker. It takes over jobs whose locks have expired.",
            "If workers run and the finding stays, look for 'stalled' in their logs.",
        ),
    ),
    "D229": Code(
        "Lanes with jobs are stopped",
        "Lanes that are paused, or halted by a failure, and hold jobs.",
        "Nobody runs their jobs until they are resumed.",
        (
            "See why: `toril lanes show QUEUE LANE`.",
            "Fix the cause, then `toril lanes resume QUEUE LANE`.",
        ),
    ),
    "D230": Code(
        "A group could not be undone",
        "Groups in the state `FAILED_COMPENSATION`.",
        "Something was done for the group, and undoing it failed every time. A person must decide.",
        (
            "See what was done: `toril groups show QUEUE ID`.",
            "Fix the cause, then `toril groups retry-compensation QUEUE ID`.",
            "Or undo it by hand, then `toril groups resolve QUEUE ID --note TEXT`.",
        ),
    ),
    "D231": Code(
        "A queue could not be examined",
        "Whether every queue can be read.",
        "Workers and producers may get the same error.",
        (
            "Read the error in the finding: a version that is too old, missing rights, or a key of "
            "another type.",
            "Correct it and run the doctor again.",
        ),
    ),
    "D232": Code(
        "A group waits to hear how a member ended",
        "Groups with a member whose job is gone.",
        "The group neither completes nor is undone.",
        (
            "Find out whether the work of that member was done.",
            "Call `queue.complete_member(…)` or `queue.fail_member(…)`, or cancel the group.",
        ),
    ),
    "D233": Code(
        "A group cannot go on",
        "Groups in the state `BLOCKED`.",
        "Its pivot has completed, so nothing is undone, and a member after it failed for good.",
        (
            "See what failed: `toril groups show QUEUE ID`.",
            "Fix the cause, then `toril groups retry QUEUE ID`.",
            "Or do it by hand, then `toril groups resolve QUEUE ID --note TEXT`.",
        ),
    ),
    "D234": Code(
        "Jobs beside the partitions of a queue",
        "Plain queues that have the name of a queue with partitions.",
        "Workers that serve the partitions never take these jobs.",
        (
            "Run a worker of the plain queue, without `partitions=`, until it is empty.",
            "Find out who adds there: a producer without `partitions=`, a flow or a group.",
        ),
    ),
    "D236": Code(
        "Parcels wait to be delivered",
        "What queues have for queues in other slots of a cluster, for more than a minute.",
        "What they carry has not arrived: dead letters, replayed jobs, the ends of children.",
        (
            "Run a worker of the queue: each of them looks for parcels every five seconds.",
            "See that every node of the cluster answers: `toril doctor` reports those that do not.",
            "See which job it is: `toril job ID --queue QUEUE` says `in_transit`.",
        ),
    ),
    "D237": Code(
        "Parcels were refused",
        "Parcels that their target does not take: a key there holds a value of another kind, its "
        "name has no hash tag, its workers are older than this version, or it did not answer for "
        "23 hours.",
        "Nobody delivers them any more, and the jobs in them are in no queue.",
        (
            "Correct the cause that the doctor names.",
            "Run `toril doctor --fix`: workers then deliver them again.",
        ),
    ),
    "D301": Code(
        "A handler is not marked as idempotent",
        "The handlers of the workers that you named.",
        "A job may run twice. Without a guard, a charge or an e-mail happens twice.",
        (
            "Guard it: `@idempotent(SqlStore(engine))`.",
            "Pass `job.idempotency_key` on to providers that accept one.",
        ),
    ),
    "D302": Code(
        "Idempotency records expire too soon",
        "The lifetime of the store's records against the longest time a job may take to come back.",
        "A late redelivery finds no record and does the work again.",
        ("Give the store a longer `ttl=`, or retry for a shorter time.",),
    ),
    "D303": Code(
        "A worker has no dead letter queue",
        "`dead_letter_queue` of the workers that you named.",
        "Jobs that failed for good stay in the failed set, where nobody looks.",
        (
            'Set `Worker(…, dead_letter_queue="QUEUE-dlq")`.',
            "Alert on `toril_dead_letters`.",
        ),
    ),
    "D304": Code(
        "Finished jobs are kept without a limit",
        "`remove_on_complete` and `remove_on_fail` of workers, queues and jobs.",
        "They pile up until the server's memory is full.",
        ("Set `remove_on_complete=1000` and `remove_on_fail=Keep(age=timedelta(days=14))`.",),
    ),
    "D305": Code(
        "A worker runs one job at a time",
        "`concurrency` of the workers that you named.",
        "A handler that waits for another service leaves the worker idle.",
        ("Set `concurrency=50` for async handlers, unless one at a time is intended.",),
    ),
    "D306": Code(
        "Locks are very short",
        "`lock_duration` of the workers that you named: less than five seconds.",
        "A short pause of the process or the network counts as death, and jobs run twice.",
        ("Use the default, `lock_duration=30_000`.",),
    ),
    "D401": Code(
        "The outbox has parked rows",
        "Rows that no relay could send.",
        "A commit promised these jobs, and they do not exist.",
        (
            "See why: `await relay.get_parked()`.",
            "Correct the cause, then `await relay.unpark(id)`.",
            "Or drop the row: `await relay.discard(id)`.",
        ),
    ),
    "D402": Code(
        "The outbox is behind",
        "The age of the oldest pending row: more than a minute.",
        "No relay runs, or it does not keep up. Jobs come late.",
        (
            "Check that a relay runs: `toril relay MODULE:RELAY`.",
            "Run another one, or raise `batch_size`.",
        ),
    ),
    "D501": Code(
        "The keys of a queue contradict each other",
        "Every key under the prefix: each job in one place, each lock with a running job, parents "
        "with children, lanes and groups with their members. What is wrong is looked at three "
        "times, because jobs move.",
        "A job may be lost, stuck or run twice. Another program wrote to these keys, keys were "
        "evicted, or Toril has a bug.",
        (
            "Pause the queue and look at the job: `toril job ID --queue QUEUE`.",
            "If it is in no list, add it again with the data in its hash.",
            "Rule out eviction (D102, D107) and other programs, and report what is left.",
        ),
    ),
    "D502": Code(
        "The keyspace was not audited",
        "How many keys there are: more than `--most-keys`.",
        "Damage among them would go unnoticed.",
        ("Run `toril doctor --most-keys N` at a quiet time.",),
    ),
}
