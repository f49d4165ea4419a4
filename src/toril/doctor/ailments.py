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
    worst: Severity | None = None
    """How bad it is when it has come far."""

    def of(self, subject: str, *, has_come_far: bool = False, **facts: object) -> Finding:
        """This ailment of ``subject``."""
        return Finding(
            code=self.code,
            severity=self.worst if has_come_far and self.worst else self.severity,
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
    "It does not know function libraries and script flags: every call fails.",
    "Use Redis 7.0 or Valkey 7.2, or newer.",
)
EVICTS = Ailment(
    "D102",
    ERROR,
    "maxmemory-policy is {policy!r}",
    "When memory is full, the server deletes keys of your queues: jobs vanish.",
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
    "there is no append-only file, at most snapshots",
    "A crash loses everything since the last snapshot, often minutes.",
    "CONFIG SET appendonly yes; with appendfsync everysec a crash costs a second.",
)
CLOCKS_DIFFER = Ailment(
    "D105",
    WARNING,
    "this host's clock is {off_ms} ms {side} the server's",
    "Toril uses the server's clock; run_at times and Node workers use this one.",
    "Synchronise both with NTP.",
    worst=ERROR,
)
NO_PASSWORD = Ailment(
    "D106",
    WARNING,
    "user 'default' has no password: anybody who can connect may do everything",
    "Whoever can run scripts on the server can read and change every job.",
    "Set a password, or better, create an ACL user limited to your prefix.",
)
DEFAULT_USER = Ailment(
    "D106",
    INFO,
    "this program connects as the user 'default'",
    "It may do more than a queue needs, such as FLUSHALL.",
    "Give workers and producers their own ACL users.",
)
HAS_EVICTED = Ailment(
    "D107",
    ERROR,
    "{keys} keys were evicted since it started",
    "Jobs may be among them, and a queue with missing keys can lose more jobs later.",
    "Set noeviction, add memory, and look at the keyspace audit.",
)
MEMORY_FULL = Ailment(
    "D108",
    WARNING,
    "{percent} % of maxmemory is used",
    "When it is full, adding jobs fails; workers can still finish jobs.",
    "Keep fewer finished jobs (remove_on_complete, remove_on_fail), or add memory.",
)
REPLICA = Ailment(
    "D109",
    ERROR,
    "this server is a replica",
    "Nothing can be written to it.",
    "Connect to the primary, or through Sentinel: redis+sentinel://…",
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
    "Queues in these slots are stopped, and could not be examined.",
    "Start it, or let a replica take over: CLUSTER FAILOVER FORCE on the replica.",
)
SLOTS_UNCOVERED = Ailment(
    "D113",
    ERROR,
    "{slots} of {all_slots} slots belong to no node",
    "Queues in these slots cannot be used; by default the whole cluster stops.",
    "Give every slot to a node: CLUSTER ADDSLOTS, or valkey-cli --cluster fix.",
)
NO_REPLICA = Ailment(
    "D114",
    WARNING,
    "this node of the cluster has no replica",
    "When it dies, its queues stand still until it is back, and by default so do all others.",
    "Give it one: CLUSTER REPLICATE on a new node.",
)
REPLICAS_BEHIND = Ailment(
    "D115",
    WARNING,
    "none of its replicas keeps up ({states})",
    "A failover now would lose what they have not received; adds with replicas= fail.",
    "Look at the replicas' logs, and at the line between them.",
)

HOTTEST_QUEUE = Ailment(
    "D116",
    INFO,
    "queue {queue} is the hottest of {queues} here: {rate} events a second, {share} % of this"
    " node's",
    "When the node's one core is full, all of its queues wait.",
    "Move slots to another node, or partition it: docs/guides/scaling.md.",
)
UNUSED_LIBRARIES = Ailment(
    "D120",
    INFO,
    "libraries of functions are there that no connected program calls: {names}",
    "They take a little memory; each upgrade leaves one behind.",
    "toril doctor --fix removes them; a program that needs one loads it again.",
)

# ---------------------------------------------------------------------------- queues

NO_WORKER = Ailment(
    "D201",
    ERROR,
    "{waiting} and no worker is connected",
    "Nobody runs them, and nobody brings back the jobs of workers that died.",
    "Start a worker for it, or remove the jobs if the queue is no longer used.",
)
NOTHING_IS_UNDONE = Ailment(
    "D202",
    ERROR,
    "{waiting}, and no worker is connected",
    "Failed groups are not undone.",
    "Run Worker({queue!r}, …) in addition to the workers of the queue itself.",
)
NOBODY_WOULD_UNDO = Ailment(
    "D202",
    WARNING,
    "it has groups, and its compensation queue has no worker",
    "If a group fails, nothing is undone until a worker runs.",
    "Run Worker({queue!r}, …).",
)
DEAD_LETTERS = Ailment(
    "D203",
    INFO,
    "{letters}, the oldest for {age}",
    "This work was not done.",
    "toril dlq summary says why; then replay or purge them.",
    worst=WARNING,
)
FAILED_JOBS = Ailment(
    "D204",
    INFO,
    "it keeps {jobs} that failed for good",
    "They were not done, and only this set says so.",
    "Use Worker(dead_letter_queue=…) and an alert; retry_all() retries the present ones.",
    worst=WARNING,
)
COMPLETED_JOBS = Ailment(
    "D205",
    WARNING,
    "{jobs} completed jobs are kept",
    "They fill the server's memory until it accepts no more jobs.",
    "Set remove_on_complete=1000 on the worker or in default_job_options; then clean().",
)
STRANGERS = Ailment(
    "D207",
    ERROR,
    "it uses {features}, and has {workers} of another library",
    "They finish jobs without updating the group or the lane, which may then never end.",
    "Use only Toril's workers for it.",
)
WORKERS = Ailment(
    "D208",
    INFO,
    "{workers}: {kinds}",
    "None, if that is what you expect.",
    "Run the same version in all workers of a queue.",
)
PAUSED = Ailment(
    "D209",
    WARNING,
    "it is paused, and {waiting}",
    "Nobody runs them until it is resumed.",
    "await queue.resume() when the reason is gone.",
)
LONG_WAIT = Ailment(
    "D210",
    WARNING,
    "its oldest waiting job was added {age} ago",
    "Workers cannot keep up, or hang.",
    "Add workers or concurrency, and check how long jobs run.",
)
LIMITED = Ailment(
    "D211",
    INFO,
    "{limits}, over all workers",
    "More workers do not make it faster.",
    "If it is not wanted: remove_global_concurrency(), remove_global_rate_limit().",
)
REPEATED_BY_ADD = Ailment(
    "D213",
    WARNING,
    "add(…, repeat) made {jobs}, as {example!r}",
    "This is deprecated in BullMQ 5 and removed in 6: they will stop.",
    "Recreate each with upsert_job_scheduler(id, cron=…), then remove the old ones.",
)
RETRIED_IN_VAIN = Ailment(
    "D215",
    INFO,
    "job {job!r} was tried {attempts} times for {reason!r}",
    "An error in the data or the code does not go away with the next attempt.",
    "Raise UnrecoverableError for errors that will not go away by themselves.",
)
LETTERS_RUN = Ailment(
    "D216",
    ERROR,
    "a worker runs its dead letters as if they were jobs",
    "They run again with their metadata inside the data, or are lost.",
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
    "No worker reads that list, and the next pause by BullMQ 5 overwrites it.",
    "await queue.resume(); the sweep of a Toril worker does the same.",
)
MANY_ATTEMPTS = Ailment(
    "D220",
    WARNING,
    "{jobs} are tried {attempts} times",
    "A job that cannot succeed is retried almost for ever, and nobody notices.",
    "Limit the attempts (5 to 20), and use a dead letter queue.",
)
ONE_ATTEMPT = Ailment(
    "D221",
    INFO,
    "{jobs} are tried once",
    "A short problem, such as a lost connection, fails them for good.",
    "Set Set attempts=3 or more, if the handler may run twice.",
)
NO_BACKOFF = Ailment(
    "D222",
    WARNING,
    "{jobs} are retried at once",
    "All attempts are used up while the problem lasts, and make it worse.",
    "backoff=Backoff.exponential(1000, jitter=0.5).",
)
FIXED_BACKOFF = Ailment(
    "D223",
    WARNING,
    "{jobs} back off by the same {delay} ms every time",
    "An outage longer than a few waits fails them all.",
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
    "Move their jobs to queues with plain names, with the program that made them.",
)
NO_SUCH_QUEUE = Ailment(
    "D226",
    WARNING,
    "it does not exist: nothing was ever added to it under this prefix",
    "Producers and workers may use different names.",
    "{advice} check the prefix, or add its first job.",
)
OTHER_PREFIX = Ailment(
    "D227",
    WARNING,
    "there is none under the prefix {prefix!r}, but under {others}",
    "A worker with another prefix than the producers' waits for ever, silently.",
    "Use the same prefix= for queues and workers, and --prefix or TORIL_PREFIX here.",
)
LEFT_ACTIVE = Ailment(
    "D228",
    ERROR,
    "{active} active, and no worker is connected",
    "Their worker died, and no other worker is there to recover them.",
    "Start a worker: it takes over jobs whose locks have expired.",
)
UNLOCKED = Ailment(
    "D228",
    WARNING,
    "active, but without a lock: {jobs}",
    "Their workers died or lost them; a handler may still be running.",
    "A worker recovers them within stalled_interval; if not, see its log.",
)
LANES_STOPPED = Ailment(
    "D229",
    WARNING,
    "{lanes} with jobs stopped: {examples}",
    "Nobody runs their jobs until they are resumed.",
    "When the reason is gone: toril lanes resume {queue} LANE",
)
GROUPS_NOT_UNDONE = Ailment(
    "D230",
    ERROR,
    "could not be undone: {groups}",
    "They are half done.",
    "toril groups show {queue} ID; then retry-compensation, or resolve by hand.",
)
NOT_EXAMINED = Ailment(
    "D231",
    ERROR,
    "it could not be examined: {error}",
    "Workers and producers may get the same error.",
    "Fix the cause first: often the server's version or the user's permissions.",
)
GROUPS_ASKING = Ailment(
    "D232",
    ERROR,
    "waits to be told how a member ended: {groups}",
    "One of its jobs is gone, so it neither completes nor is undone.",
    "Find out, then call complete_member or fail_member, or cancel the group.",
)
GROUPS_BLOCKED = Ailment(
    "D233",
    ERROR,
    "cannot go on: {groups}",
    "Its pivot has completed, so nothing is undone, and what comes after it failed.",
    "toril groups show {queue} ID; then retry, or resolve by hand.",
)
JOBS_BESIDE_PARTITIONS = Ailment(
    "D234",
    WARNING,
    "has {partitions} partitions, and {jobs} unfinished jobs in the plain queue of the same name",
    "Workers with partitions do not take them.",
    'Run a Worker("{queue}") without partitions until it is empty, and find out who adds there.',
)

PARCELS_WAIT = Ailment(
    "D236",
    WARNING,
    "{parcels} for queues in other slots not delivered, the oldest for {age}",
    "What they carry has not arrived: dead letters, replayed jobs, the ends of children.",
    "Run a worker of this queue, and see that every node of the cluster answers.",
)
PARCELS_REFUSED = Ailment(
    "D237",
    ERROR,
    "{parcels} refused by their target: {why}",
    "Nobody delivers them any more, and the jobs in them are in no queue.",
    "Correct the cause; then toril doctor --fix lets workers deliver them again.",
)

# ---------------------------------------------------------------------------- workers

NOT_IDEMPOTENT = Ailment(
    "D301",
    WARNING,
    "it is not marked as idempotent",
    "A job may run twice: a charge or an e-mail would happen twice.",
    "Use @idempotent(SqlStore(engine)), or make sure that it is harmless.",
)
RECORDS_TOO_SHORT = Ailment(
    "D302",
    ERROR,
    "its records are kept for {ttl_ms} ms, its jobs may come back for {longest_ms} ms",
    "A late redelivery finds no record and does the work again.",
    "Give the store a longer ttl, or retry for a shorter time.",
)
NO_DEAD_LETTERS = Ailment(
    "D303",
    WARNING,
    "it has no dead letter queue",
    "Jobs that failed for good stay in the failed set, where nobody looks.",
    "Use Use Worker(…, dead_letter_queue='{queue}-dlq'), and an alert on its count.",
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
    "Handlers that wait for other services leave it idle.",
    "Use Worker(…, concurrency=50) for async handlers, unless that is intended.",
)
SHORT_LOCKS = Ailment(
    "D306",
    WARNING,
    "its locks last {lock_ms} ms",
    "A short pause of the process or the network counts as death: jobs run twice.",
    "Use Use lock_duration=30_000, the default.",
)

# ---------------------------------------------------------------------------- outboxes

ROWS_PARKED = Ailment(
    "D401",
    ERROR,
    "it has parked {rows}",
    "These jobs were committed, and do not exist.",
    "get_parked() says why; fix the cause, then unpark() them.",
)
ROWS_LATE = Ailment(
    "D402",
    WARNING,
    "its oldest row has waited {age}, of {pending}",
    "No relay runs, or it cannot keep up: jobs come late.",
    "Run a relay (toril relay), more of them, or use a larger batch_size.",
)

# ---------------------------------------------------------------------------- the key space

DAMAGED = Ailment(
    "D501",
    ERROR,
    "{problem}",
    "The queue's keys contradict each other: a job may be lost, stuck or run twice.",
    "Find out what else writes to these keys.",
)
NOT_AUDITED = Ailment(
    "D502",
    INFO,
    "{keys} keys were not audited",
    "Damage among them would go unnoticed.",
    "Run it with most_keys={keys} at a quiet time.",
)
