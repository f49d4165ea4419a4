"""Everything that the doctor knows: each ailment's code, how bad it is, its words, what to do.

The checks decide whether an ailment is there and give the facts that its words name.  Codes that
begin with D1 are about the server, D2 about queues, D3 about workers as they are configured, D4
about outboxes, D5 about the key space.
"""

from __future__ import annotations

import msgspec

from toril.doctor.finding import Finding, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


class Ailment(msgspec.Struct, frozen=True):
    """What may be wrong, in words with places for facts."""

    code: str
    severity: Severity
    problem: str
    harm: str
    remedy: str

    def of(self, subject: str, *, severity: Severity | None = None, **facts: object) -> Finding:
        """This ailment of ``subject``; ``severity`` where it depends on how far it has come."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            subject=subject,
            problem=self.problem.format(**facts),
            harm=self.harm.format(**facts),
            remedy=self.remedy.format(**facts),
        )


# ---------------------------------------------------------------------------- the server

TOO_OLD = Ailment(
    "D101",
    ERROR,
    "{version} is too old",
    "Toril's scripts begin with #!lua, which it does not know: every call fails.",
    "Use Redis 7.0 or Valkey 7.2, or newer.",
)
EVICTS = Ailment(
    "D102",
    ERROR,
    "maxmemory-policy is {policy!r}",
    "When memory is full the server deletes keys of your queues: jobs vanish.",
    "CONFIG SET maxmemory-policy noeviction, and keep caches on another server.",
)
WRITES_NOTHING = Ailment(
    "D103",
    WARNING,
    "nothing is written to disk: no AOF, no snapshots",
    "A restart of the server loses every job.",
    "CONFIG SET appendonly yes, or relay from an outbox with confirm=True.",
)
SNAPSHOTS_ONLY = Ailment(
    "D103",
    WARNING,
    "there are snapshots at most, no append-only file",
    "A crash loses what was added since the last snapshot, often minutes.",
    "CONFIG SET appendonly yes; with appendfsync everysec a crash costs a second.",
)
CLOCKS_DIFFER = Ailment(
    "D105",
    WARNING,
    "this host's clock is {off_ms} ms {side} the server's",
    "Toril goes by the server's clock; run_at times and Node workers go by this one.",
    "Synchronise both with NTP.",
)
NO_PASSWORD = Ailment(
    "D106",
    WARNING,
    "anybody who reaches it may do everything: user 'default' without a password",
    "Whoever can run scripts on the server can read and change every job.",
    "Set a password, or better an ACL user that may touch your prefix only.",
)
DEFAULT_USER = Ailment(
    "D106",
    INFO,
    "this program is the server's user 'default'",
    "It may do more than a queue needs, such as FLUSHALL.",
    "Give workers and producers ACL users of their own.",
)
HAS_EVICTED = Ailment(
    "D107",
    ERROR,
    "{keys} keys were evicted since it started",
    "Jobs may be among them; a queue whose keys are missing loses jobs later, too.",
    "Set noeviction, give it memory, and look at what the keyspace audit says.",
)
MEMORY_FULL = Ailment(
    "D108",
    WARNING,
    "{percent} % of maxmemory is used",
    "When it is full, adding jobs fails; running ones can still be finished.",
    "Keep fewer finished jobs (remove_on_complete, remove_on_fail), or add memory.",
)
REPLICA = Ailment(
    "D109",
    ERROR,
    "this server is a replica",
    "Nothing can be written to it, and it is cut off from what others write.",
    "Connect to the master, or through Sentinel: sentinel://…",
)
INFO_REFUSED = Ailment(
    "D110",
    INFO,
    "INFO is not allowed for this user",
    "Its version, memory policy and persistence could not be checked.",
    "Run the doctor as a user with +info, or look at them yourself.",
)
DISK_FAILS = Ailment(
    "D111",
    ERROR,
    "{what} failed",
    "Writes are refused or will be lost at the next restart.",
    "Look at the server's log and its disk.",
)
NODE_SILENT = Ailment(
    "D112",
    ERROR,
    "this node of the cluster does not answer; it has the slots {slots}",
    "Queues in these slots stand still; they could not be examined.",
    "Start it, or let a replica take over: CLUSTER FAILOVER FORCE on the replica.",
)
SLOTS_UNCOVERED = Ailment(
    "D113",
    ERROR,
    "{slots} of {all_slots} slots belong to no node",
    "Queues in these slots cannot be used, and by default none on the whole cluster.",
    "Give every slot to a node: CLUSTER ADDSLOTS, or valkey-cli --cluster fix.",
)

# ---------------------------------------------------------------------------- queues

NO_WORKER = Ailment(
    "D201",
    ERROR,
    "{waiting} and no worker is connected",
    "Nobody runs them, and nobody brings back the jobs of workers that died.",
    "Start a worker for it, or remove the jobs if the queue is not used any more.",
)
NOTHING_IS_UNDONE = Ailment(
    "D202",
    ERROR,
    "{waiting}, and no worker is there",
    "What was done for groups that failed is not undone.",
    "Run Worker({queue!r}, …) beside the workers of the queue itself.",
)
NOBODY_WOULD_UNDO = Ailment(
    "D202",
    WARNING,
    "it has groups, and nobody works on its compensation queue",
    "When a group fails, nothing of it is undone until a worker comes.",
    "Run Worker({queue!r}, …).",
)
DEAD_LETTERS = Ailment(
    "D203",
    INFO,
    "{letters}, the oldest for {age}",
    "Work that was asked for was not done, and nobody has looked at it.",
    "get_dead_letter_jobs() says why; replay them or purge them.",
)
FAILED_JOBS = Ailment(
    "D204",
    INFO,
    "it keeps {jobs} that failed for good",
    "They were not done, and nothing but this set says so.",
    "Worker(dead_letter_queue=…) and an alert; retry_all() for those there now.",
)
COMPLETED_JOBS = Ailment(
    "D205",
    WARNING,
    "{jobs} completed jobs are kept",
    "They fill the server's memory until it takes no more jobs.",
    "remove_on_complete=1000, on the worker or in default_job_options; clean().",
)
STRANGERS = Ailment(
    "D207",
    ERROR,
    "it uses {features}, and has {workers} of another library",
    "They finish jobs without telling the group or the lane, which then never ends.",
    "Let only Toril's workers take from it.",
)
WORKERS = Ailment(
    "D208",
    INFO,
    "{workers}: {kinds}",
    "Nothing, if that is what you expect.",
    "Let all workers of a queue run the same version.",
)
PAUSED = Ailment(
    "D209",
    WARNING,
    "it is paused, and {waiting}",
    "Nobody runs them until it is resumed.",
    "await queue.resume(), when the reason is gone.",
)
LONG_WAIT = Ailment(
    "D210",
    WARNING,
    "its oldest waiting job was added {age} ago",
    "Workers do not keep up, or hang.",
    "Add workers or concurrency, and look at how long jobs run.",
)
LIMITED = Ailment(
    "D211",
    INFO,
    "{limits}, over all workers",
    "More workers do not make it faster, which surprises who forgot the limit.",
    "remove_global_concurrency(), remove_global_rate_limit(), if it is not wanted.",
)
REPEATED_BY_ADD = Ailment(
    "D213",
    WARNING,
    "add(…, repeat) made {jobs}, as {example!r}",
    "That way is deprecated in BullMQ 5 and gone in 6: they will stop.",
    "upsert_job_scheduler(id, cron=…) makes each anew; then remove the old ones.",
)
RETRIED_IN_VAIN = Ailment(
    "D215",
    INFO,
    "job {job!r} was tried {attempts} times for {reason!r}",
    "An error in the data or the code is not gone at the next attempt.",
    "Raise UnrecoverableError for errors that will not go away by themselves.",
)
LETTERS_RUN = Ailment(
    "D216",
    ERROR,
    "a worker runs its dead letters as if they were jobs",
    "They are done again with their metadata inside the data, or lost.",
    "Stop that worker; use replay_dead_letter() instead.",
)
TWO_LISTS = Ailment(
    "D218",
    WARNING,
    "it is paused with {in_wait} in `wait` and {in_paused} in `paused`: BullMQ 5 and another"
    " program have both filled it",
    "If BullMQ 5 resumes it, those in `wait` are lost.",
    "Resume it with Toril or BullMQ 6, which keep both.",
)
FORGOTTEN_LIST = Ailment(
    "D219",
    ERROR,
    "it runs, and {waiting} in its `paused` list",
    "Nobody takes from that list, and the next pause by BullMQ 5 writes over it.",
    "await queue.resume(); the sweep of a Toril worker does the same.",
)
MANY_ATTEMPTS = Ailment(
    "D220",
    WARNING,
    "{jobs} are tried {attempts} times",
    "A job that cannot succeed is tried almost for ever, and nobody sees it.",
    "Bound the attempts (5 to 20), and send what fails to the dead letters.",
)
ONE_ATTEMPT = Ailment(
    "D221",
    INFO,
    "{jobs} are tried once",
    "A moment's trouble, such as a lost connection, fails them for good.",
    "attempts=3 or more, if the handler may run twice.",
)
NO_BACKOFF = Ailment(
    "D222",
    WARNING,
    "{jobs} are retried at once",
    "All attempts are spent while the trouble lasts, and add to it.",
    "backoff=Backoff.exponential(1000, jitter=0.5).",
)
FIXED_BACKOFF = Ailment(
    "D223",
    WARNING,
    "{jobs} back off by the same {delay} ms every time",
    "An outage that is longer than a few waits fails them all.",
    "backoff=Backoff.exponential(1000, jitter=0.5).",
)
NO_JITTER = Ailment(
    "D224",
    WARNING,
    "{jobs} back off without jitter",
    "Jobs that failed together come back together, and fail together again.",
    "backoff=Backoff.exponential(…, jitter=0.5).",
)
ODD_NAMES = Ailment(
    "D225",
    WARNING,
    "Toril cannot open {queues}",
    "Their names have control characters, outer spaces, or more than 256 characters.",
    "Move their jobs to queues with plain names, from the program that made them.",
)
NO_SUCH_QUEUE = Ailment(
    "D226",
    WARNING,
    "it does not exist: nothing was ever added to it under this prefix",
    "Whoever adds to it and whoever works on it have different names in mind.",
    "{advice} look at the prefix, or add its first job.",
)
OTHER_PREFIX = Ailment(
    "D227",
    WARNING,
    "there is none under the prefix {prefix!r}, but under {others}",
    "With another prefix than the producers' a worker waits for ever, and silently.",
    "Give prefix= to queues and workers alike, and --prefix or TORIL_PREFIX here.",
)
LEFT_ACTIVE = Ailment(
    "D228",
    ERROR,
    "{active} active, and no worker is connected",
    "The worker died; when the locks expire nobody is there to bring the jobs back.",
    "Start a worker: it takes over jobs whose locks have expired.",
)
UNLOCKED = Ailment(
    "D228",
    WARNING,
    "active, but without a lock: {jobs}",
    "Their workers died or lost them; a handler may still be running.",
    "A worker brings them back within stalled_interval; if not, see its log.",
)
LANES_STOPPED = Ailment(
    "D229",
    WARNING,
    "{lanes} with jobs stopped: {examples}",
    "Nobody runs their jobs until they are resumed.",
    "toril lanes resume {queue} LANE, when the reason is gone.",
)
GROUPS_NOT_UNDONE = Ailment(
    "D230",
    ERROR,
    "could not be undone: {groups}",
    "What was done for them is neither complete nor taken back.",
    "toril groups show {queue} ID; then retry-compensation, or resolve by hand.",
)
NOT_EXAMINED = Ailment(
    "D231",
    ERROR,
    "it could not be examined: {error}",
    "Workers and producers may meet the same error.",
    "If the server is too old or the user may not run scripts, mend that first.",
)
GROUPS_ASKING = Ailment(
    "D232",
    ERROR,
    "waits to be told how a member ended: {groups}",
    "A job of it is gone, and it neither completes nor is undone.",
    "Find out, then call complete_member or fail_member, or cancel the group.",
)

# ---------------------------------------------------------------------------- workers

NOT_IDEMPOTENT = Ailment(
    "D301",
    WARNING,
    "it is not marked as idempotent",
    "A job may run twice: a charge or a mail would happen twice.",
    "@idempotent(SqlStore(engine)), or make sure that it does no harm.",
)
RECORDS_TOO_SHORT = Ailment(
    "D302",
    ERROR,
    "its records live {ttl_ms} ms, its jobs may come back for {longest_ms} ms",
    "A late redelivery finds no record and does the work again.",
    "Give the store a longer ttl, or retry for a shorter time.",
)
NO_DEAD_LETTERS = Ailment(
    "D303",
    WARNING,
    "it has no dead letter queue",
    "Jobs that failed for good lie in the failed set, where nobody looks.",
    "Worker(…, dead_letter_queue='{queue}-dlq'), and an alert on its count.",
)
UNBOUNDED = Ailment(
    "D304",
    WARNING,
    "{options} is not bounded",
    "Finished jobs pile up until the server's memory is full.",
    "Worker(…, remove_on_complete=1000, remove_on_fail=500), or default_job_options.",
)
ONE_AT_A_TIME = Ailment(
    "D305",
    INFO,
    "it runs one job at a time",
    "Handlers that wait for others leave it idle.",
    "Worker(…, concurrency=50) for async handlers, if that is not on purpose.",
)
SHORT_LOCKS = Ailment(
    "D306",
    WARNING,
    "its locks last {lock_ms} ms",
    "A pause of the process or the network is taken for death: jobs run twice.",
    "lock_duration=30_000, the default.",
)

# ---------------------------------------------------------------------------- outboxes

ROWS_PARKED = Ailment(
    "D401",
    ERROR,
    "it has parked {rows}",
    "Their jobs were promised by a commit and do not exist.",
    "get_parked() says why; correct them and unpark() them.",
)
ROWS_LATE = Ailment(
    "D402",
    WARNING,
    "its oldest row has waited {age}, of {pending}",
    "No relay runs, or it does not keep up: jobs come late.",
    "toril.run(relay), more of them, or a larger batch_size.",
)

# ---------------------------------------------------------------------------- the key space

DAMAGED = Ailment(
    "D501",
    ERROR,
    "{problem}",
    "The queue's keys contradict each other: a job may be lost, stuck or run twice.",
    "Find what else writes to these keys; docs/guides/production.md tells more.",
)
NOT_AUDITED = Ailment(
    "D502",
    INFO,
    "{keys} keys were not audited",
    "Damage among them would not be seen.",
    "Run it with most_keys={keys}, at a quiet time.",
)
