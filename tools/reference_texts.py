"""What the reference says beyond the code: one row for each option, error and event.

``tools/reference.py`` takes names, types and defaults from the code and refuses to write a page
while a row is missing here, or is about something that is gone.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    does: str
    unit: str = ""
    default: str = ""
    """What happens without it, where the signature only says None."""
    node: str = ""


SAME = "the same option"
STORED = "keeps it, ignores it"

JOB_OPTIONS: dict[str, Option] = {
    "job_id": Option(
        "The job's id. While a job with it exists, another add returns that job, `duplicated`.",
        "text, not only digits",
        "an id that Toril chooses",
        "`jobId`",
    ),
    "delay": Option(
        "The job waits this long before it may run.", "ms or `timedelta`", "runs now", "`delay`"
    ),
    "run_at": Option(
        "The job may run from this moment on. Not together with `delay`.",
        "ms since the epoch or `datetime` with a zone",
        "runs now",
        "sees a `delay`",
    ),
    "priority": Option(
        "1 runs before 2. Jobs without a priority run before those that have one.",
        "1 to 2,097,151",
        "none",
        "`priority`",
    ),
    "lifo": Option(
        "The job goes to the front of the queue instead of the end.", "", "False", "`lifo`"
    ),
    "attempts": Option(
        "How often the job may run in total, including the first run.",
        "runs",
        "1; 3 in a lane",
        "`attempts`",
    ),
    "backoff": Option(
        "How long a failed job waits before its next attempt: a `Backoff`, or a fixed wait.",
        "ms, `timedelta` or `Backoff`",
        "retried at once; in a lane exponential from 500 ms, with 25 % jitter",
        "`backoff`; a strategy by name must be known to the worker that runs it",
    ),
    "remove_on_complete": Option(
        "Which completed jobs stay: `True` none, `False` all, a number, or `Keep(count=, age=)`.",
        "jobs, or `Keep`",
        "the worker's; else all stay",
        "`removeOnComplete`; its `age` is in seconds",
    ),
    "remove_on_fail": Option(
        "Which failed jobs stay, written as for `remove_on_complete`.",
        "jobs, or `Keep`",
        "the worker's; else all stay",
        "`removeOnFail`",
    ),
    "keep_logs": Option("How many lines of the job's log stay.", "rows", "all", "`keepLogs`"),
    "stack_trace_limit": Option(
        "How many stack traces stay with the job, one per failed attempt.",
        "traces",
        "all",
        "`stackTraceLimit`",
    ),
    "size_limit": Option(
        "The longest JSON that `data` may become; longer data raises `PayloadTooLargeError`.",
        "bytes",
        "no limit",
        "`sizeLimit`",
    ),
    "timeout": Option(
        "The longest that one attempt may run. An attempt that takes longer fails.",
        "ms or `timedelta`",
        "no limit",
        f"`timeoutMs`: {STORED}",
    ),
    "expires": Option(
        "If no worker starts the job this long after it was due, it fails with `ExpiredError`.",
        "ms or `timedelta`",
        "never",
        f"`expiresMs`: {STORED}",
    ),
    "idempotency_key": Option(
        "The key that handlers pass on to databases and providers; the same at every attempt.",
        "text",
        "`queue:id:timestamp`",
        f"`idempotencyKey`: {STORED}; handlers can read it",
    ),
    "timestamp": Option(
        "When the job was created, if that was earlier than the add.",
        "ms since the epoch or `datetime`",
        "now",
        "`timestamp`",
    ),
    "deduplication": Option(
        "Adds the job only if no other job owns this id; see `Deduplication` for the modes.",
        "id or `Deduplication`",
        "none",
        "`deduplication`; BullMQ 5 ignores `reschedule`",
    ),
    "telemetry": Option(
        "The trace context, as JSON of the propagation headers. `TracedQueue` sets it.",
        "JSON text",
        "none",
        "`telemetry.metadata`",
    ),
    "parent": Option(
        "The job that waits for this one: a job, or `Parent(id, queue_name)`.",
        "",
        "none",
        "`parent`",
    ),
    "fail_parent_on_failure": Option(
        "If this job fails for good, its parent fails too.", "", "False", "`failParentOnFailure`"
    ),
    "continue_parent_on_failure": Option(
        "If this job fails for good, its parent runs at once.",
        "",
        "False",
        "`continueParentOnFailure`",
    ),
    "ignore_dependency_on_failure": Option(
        "If this job fails for good, it counts as done and its reason is kept.",
        "",
        "False",
        "`ignoreDependencyOnFailure`",
    ),
    "remove_dependency_on_failure": Option(
        "If this job fails for good, it counts as done and nothing is kept.",
        "",
        "False",
        "`removeDependencyOnFailure`",
    ),
    "lane": Option(
        "Jobs with the same lane run one at a time, in order, over all workers.",
        "text, up to 1,024 characters",
        "none",
        "`lane`: does not see the job while it waits in its lane",
    ),
    "order_ms": Option(
        "The job's place in its lane: the smallest number first, equal ones as they arrived.",
        "ms since the epoch, or any number",
        "the time of arrival",
        f"`orderMs`: {STORED}",
    ),
    "ordering_delay": Option(
        "Holds a job of a lane back this long, so that an earlier one that arrives late is sorted "
        "in.",
        "ms or `timedelta`",
        "0",
        f"`orderingDelay`: {STORED}",
    ),
    "on_retry": Option(
        '`"block"`: the lane waits for the retry. `"skip"`: the lane continues in the meantime.',
        "",
        '`"block"`',
        f"`onRetry`: {STORED}",
    ),
    "on_exhausted": Option(
        'After the last attempt the lane continues (`"skip"`), stops (`"halt"`), or sends what waits '
        'behind the job to the dead letters (`"divert"`).',
        "",
        '`"skip"`',
        f"`onExhausted`: {STORED}",
    ),
    "max_lane_size": Option(
        "Refuses the add with `LaneFullError` if this many jobs of the lane wait.",
        "jobs",
        "no limit",
        f"`maxLaneSize`: {STORED}",
    ),
}

CONNECTION = (
    "The server: a URL (`redis://`, `rediss://`, `unix://`, `redis+sentinel://`, "
    "`redis+cluster://`, `embedded:`) or a redis-py client."
)
PREFIX = "What the names of all keys begin with. Producers and workers need the same one."
TARGET = Option(
    CONNECTION, "", "`TORIL_URL`, else `redis://127.0.0.1:6379`", "connect to the same server"
)
KEY_PREFIX = Option(PREFIX, "", "", "`prefix`")
REPLICAS = Option(
    "How many replicas must have what was added before the call returns;"
    " `NotReplicatedError` if they do not answer in time.",
    "replicas",
    "0: it does not wait",
    "–",
)
REPLICAS_TIMEOUT = Option(
    "How long to wait for the replicas.", "ms or `timedelta`, at least 1", "", "–"
)
PARTITIONS = Option(
    "How many plain queues the queue is made of; see [scaling](../guides/scaling.md)."
    " Every process must use the same number.",
    "1 to 1024",
    "1: a plain queue",
    "each partition is a queue of its own",
)

PARTITIONS_BY_QUEUE = Option(
    'Which queues have [partitions](../guides/scaling.md), and how many: `{"mail": 16}`.',
    "1 to 1024 each",
    "none",
    "each partition is a queue of its own",
)

QUEUE: dict[str, Option] = {
    "name": Option(
        "The queue's name.", "text, up to 256 characters, without `:`", "", "the same name"
    ),
    "connection": TARGET,
    "prefix": KEY_PREFIX,
    "default_job_options": Option(
        "Options of `add` for jobs that are added without them.", "", "none", "`defaultJobOptions`"
    ),
    "replicas": REPLICAS,
    "replicas_timeout": REPLICAS_TIMEOUT,
    "partitions": PARTITIONS,
}

WORKER: dict[str, Option] = {
    "name": Option("The queue that it takes jobs from.", "", "", "the same name"),
    "handler": Option(
        'A function of a job, a `Router`, or `"module:name"` with `executor="process"`.',
        "",
        "",
        "the processor",
    ),
    "connection": TARGET,
    "prefix": KEY_PREFIX,
    "concurrency": Option("How many jobs run at the same time.", "jobs", "", "`concurrency`"),
    "lock_duration": Option(
        "How long a lock lasts without renewal. It is renewed every third of that time.",
        "ms or `timedelta`, at least 50",
        "",
        "`lockDuration`",
    ),
    "stalled_interval": Option(
        "How often the worker looks for jobs of workers that died.",
        "ms or `timedelta`, at least 20",
        "",
        "`stalledInterval`",
    ),
    "max_stalled_count": Option(
        "How often a job may be brought back from a dead worker before it fails for good.",
        "times",
        "",
        "`maxStalledCount`",
    ),
    "max_started_attempts": Option(
        "How often a job may be started in total, including postponed and stalled starts.",
        "starts",
        "no limit",
        "`maxStartedAttempts`",
    ),
    "drain_delay": Option(
        "How long an idle worker waits at the server before it asks again.",
        "ms or `timedelta`",
        "",
        "`drainDelay`, in seconds",
    ),
    "worker_name": Option("What the worker is called in lists and jobs.", "text", "none", "`name`"),
    "limiter": Option(
        "At most `max` jobs start per `duration`, over all workers of the queue with a limiter.",
        "`RateLimit(max, duration)`",
        "no limit",
        "`limiter`; both count into the same window",
    ),
    "remove_on_complete": Option(
        "Which completed jobs stay, for jobs that do not say so.",
        "jobs, or `Keep`",
        "all stay",
        "`removeOnComplete`",
    ),
    "remove_on_fail": Option(
        "Which failed jobs stay, for jobs that do not say so.",
        "jobs, or `Keep`",
        "all stay",
        "`removeOnFail`",
    ),
    "backoff_strategy": Option(
        "`(attempts_made, type, error, job) -> ms`, or several by name. A negative number fails the job for good.",
        "ms",
        "only `fixed` and `exponential`",
        "`settings.backoffStrategy`",
    ),
    "metrics_points": Option(
        "Counts completed and failed jobs per minute in the server, for this many minutes.",
        "minutes",
        "does not count",
        "`metrics.maxDataPoints`",
    ),
    "executor": Option(
        '`"local"`: on the event loop, or in a thread for a plain `def`. `"process"`: in processes that can be killed.',
        "",
        "",
        "`useWorkerThreads` is not the same; nothing to match",
    ),
    "middleware": Option(
        "Functions that take an async handler and return one; the first is the outermost.",
        "",
        "none",
        "–",
    ),
    "dead_letter_queue": Option(
        "Where jobs that failed for good go: a name, a `Queue` or `DeadLetterOptions`.",
        "",
        "they stay in `failed`",
        "sees an ordinary queue",
    ),
    "partitions": PARTITIONS,
    "is_final": Option(
        "`(job, error) -> bool`: whether it is pointless to retry after this error.",
        "",
        "never",
        "–",
    ),
}

APP: dict[str, Option] = {
    "connection": TARGET,
    "prefix": KEY_PREFIX,
    "queue": Option(
        "Where the jobs of a task go if it names no queue and matches no route.",
        "",
        "",
        "an ordinary queue",
    ),
    "routes": Option(
        'Queues by pattern of the task\'s name: `{"report_*": "reports"}`.', "", "none", "–"
    ),
    "lifespan": Option(
        "`lifespan(app)`, an async context manager, entered once per process. What it yields is `ctx.state`.",
        "",
        "none",
        "–",
    ),
    "middleware": Option("`TaskMiddleware` objects, for enqueueing and running.", "", "none", "–"),
    "replicas": REPLICAS,
    "replicas_timeout": REPLICAS_TIMEOUT,
    "partitions": PARTITIONS_BY_QUEUE,
    "worker_options": Option(
        "Options of `Worker` for all its workers; `{queue}` in `dead_letter_queue` is the queue's name.",
        "",
        "none",
        "–",
    ),
    "defaults": Option("Options of `add`: the defaults of all its tasks.", "", "none", "–"),
}

TASK: dict[str, Option] = {
    "name": Option("The job's name.", "", "the function's name", "the job's name"),
    "queue": Option(
        "Where its jobs go.", "", "the app's routes, then the app's `queue`", "an ordinary queue"
    ),
    "schedule": Option(
        "`cron(…)` or `every(…)`; the task must not need arguments.", "", "none", "a job scheduler"
    ),
    "retry_on": Option(
        "Only these errors are retried.", "exception classes", "all errors", "retries every error"
    ),
    "give_up_on": Option(
        "These errors are never retried.", "exception classes", "none", "retries every error"
    ),
    "extra": Option(
        '`"refuse"`: an argument the function does not know fails the job. `"ignore"`: it is dropped.',
        "",
        "",
        "–",
    ),
    "options": Option(
        "Options of `add`; `lane`, `job_id` and `deduplication` may be functions of the arguments.",
        "",
        "the app's",
        "see above",
    ),
}

RELAY: dict[str, Option] = {
    "engine": Option("The SQLAlchemy engine of the database, blocking or async."),
    "outbox": Option("The `Outbox` whose rows it sends."),
    "connection": TARGET,
    "prefix": KEY_PREFIX,
    "batch_size": Option("How many rows it claims and sends at a time.", "rows, up to 5,000"),
    "poll_interval": Option(
        "How often it looks for rows when nothing wakes it.", "ms or `timedelta`"
    ),
    "lease": Option(
        "How long a claim lasts on databases without row locks.",
        "ms or `timedelta`, at least 1,000",
    ),
    "max_attempts": Option("How often a refused row is tried before it is parked.", "attempts"),
    "on_parked": Option('`"halt"`: a parked row stops its lane. `"skip"`: the lane continues.'),
    "backoff": Option(
        "How long a refused row waits.",
        "ms, `timedelta` or `Backoff`",
        "exponential from 1 s, with jitter",
    ),
    "confirm": Option(
        "Keeps a row until its job has finished, and sends it again if the server lost the job."
    ),
    "confirm_interval": Option("How often it asks for the jobs of sent rows.", "ms or `timedelta`"),
    "remember": Option(
        "How long the server remembers which rows it received.", "ms or `timedelta`"
    ),
    "keep": Option("How long finished rows stay in the table.", "ms or `timedelta`"),
    "replicas": REPLICAS,
    "replicas_timeout": REPLICAS_TIMEOUT,
    "partitions": PARTITIONS_BY_QUEUE,
    "listens": Option("On PostgreSQL, lets a commit wake the relay (`NOTIFY`)."),
}


class Error(NamedTuple):
    when: str
    remedy: str


ERRORS: dict[str, Error] = {
    "TorilError": Error(
        "Never by itself: the root of all the others.",
        "Catch it to treat all of Toril's errors alike.",
    ),
    "InvalidInputError": Error(
        "An argument cannot be used. Nothing was sent.",
        "Correct the call; the message names the argument.",
    ),
    "InvalidNameError": Error(
        "A queue name, prefix, job name or job id would break the keys: empty, too long, with `:`, or only digits.",
        "Choose another name. Put a word before numbers: `order-7`.",
    ),
    "InvalidOptionError": Error(
        "An option has a value it cannot have, or two options exclude each other.",
        "Correct the value; the message says what is allowed.",
    ),
    "UnknownOptionError": Error(
        "A keyword that is not an option, usually a typo.",
        "Use the name that the message suggests.",
    ),
    "PayloadError": Error(
        "`data`, a return value or progress cannot be written as JSON.",
        "Return plain data, or encode it yourself.",
    ),
    "PayloadTooLargeError": Error(
        "The JSON of `data` is longer than `size_limit`.",
        "Store the data elsewhere and send a reference.",
    ),
    "GroupValidationError": Error(
        "A group cannot be created: no jobs, a compensation without a job, a job of a flow, too many jobs.",
        "Correct the group; nothing was created.",
    ),
    "CrossSlotError": Error(
        "On a cluster, a queue has no hash tag, or the queues of a group have different ones.",
        'Use a hash tag: `prefix="{bull}"`, or `"{payments}"` as the name.',
    ),
    "MissingKeyError": Error(
        "A request to an `@idempotent` view has no key.",
        "Answer 400; the client must send the header.",
    ),
    "UnfinishedWorkError": Error(
        "The record of idempotent work was committed before the work had ended: autocommit, or a caught error.",
        "Open a transaction. Find out whether the work was done; if not, delete the record and run the job again.",
    ),
    "ServerError": Error(
        "Never by itself: the root of what goes wrong with the server.",
        "Catch it to treat any trouble with the server alike.",
    ),
    "ServerUnavailableError": Error(
        "The server did not answer, or not in time. The call had no effect.",
        "Try again; workers do so by themselves.",
    ),
    "AmbiguousResultError": Error(
        "The call was sent and its reply was lost. It may have happened.",
        "Look at the state, or repeat the call if it can be repeated. Adds can: give a `job_id`.",
    ),
    "NotReplicatedError": Error(
        "The jobs in `.job_ids` were added, and `.reached` of `.wanted` replicas have them.",
        "They will run; look at the replicas, and add again what has a `job_id` of its own.",
    ),
    "ServerOutOfMemoryError": Error(
        "The server reached `maxmemory` and accepts no new jobs. Workers keep draining.",
        "See [D108](doctor/D108.md).",
    ),
    "ServerRefusalError": Error(
        "The server answered with an error, such as a key of the wrong type.",
        "Read the message; often another program uses the same key.",
    ),
    "ServerUnusableError": Error(
        "The server cannot serve until somebody changes something: password, rights, version, database, a replica.",
        "Do what the message says; a worker ends with this error.",
    ),
    "RefusedError": Error(
        "Never by itself: the root of what a script refused. Nothing was changed.",
        "Catch it to treat all refusals alike.",
    ),
    "JobNotFoundError": Error(
        "There is no job with this id.",
        "It may have finished and been removed: `wait_for` and the events know how it ended.",
    ),
    "JobNotInStateError": Error(
        "The change needs the job in another state, such as `promote` of a job that already runs.",
        "Read its state with `get_state`; often somebody was quicker.",
    ),
    "JobLockedError": Error(
        "A worker is running the job.", "Cancel it first, or wait until it has ended."
    ),
    "LockLostError": Error(
        "A handler writes to a job whose lock has expired. Nothing was written; the job runs elsewhere.",
        "Stop the work. If it happens often, see [D306](doctor/D306.md).",
    ),
    "PendingChildrenError": Error(
        "A parent returned while children are pending.",
        "Raise `WaitingChildrenError` instead of returning.",
    ),
    "FailedChildrenError": Error(
        "A child with `fail_parent_on_failure` failed, so its parent fails.",
        "Fix and retry the child, then the parent.",
    ),
    "ParentNotFoundError": Error(
        "The parent of a new child does not exist.",
        "Add the child while the parent waits or runs, in its queue and prefix.",
    ),
    "ParentConflictError": Error(
        "A job with this id exists and has another parent.", "Give the child an id of its own."
    ),
    "SchedulerOwnsJobError": Error(
        "The job is the next run of a scheduler, and removing it would end the schedule.",
        "Remove the scheduler: `remove_job_scheduler(id)`.",
    ),
    "SchedulerConflictError": Error(
        "The next run of a scheduler found no free slot: its ids are taken.",
        "Remove the jobs with ids `repeat:<scheduler>:…`, or use another scheduler id.",
    ),
    "SchedulerNotFoundError": Error(
        "There is no scheduler with this id.", "List them: `get_job_schedulers()`."
    ),
    "StaleRequestError": Error(
        "A newer request of the same worker overtook this one. Nothing was changed.",
        "Nothing: the newer one counts.",
    ),
    "NotPausedError": Error(
        "`obliterate` needs a paused queue.", "`await queue.pause()` first, or `force=True`."
    ),
    "NotDeliveredError": Error(
        "`obliterate` would erase jobs or reports for queues in other slots of a cluster.",
        "Call it again when those queues can be reached; `toril doctor` says what is wrong.",
    ),
    "LaneFullError": Error(
        "`max_lane_size` jobs of the lane already wait.",
        "Add later. An outbox row waits by itself.",
    ),
    "DeadLetterNotFoundError": Error(
        "There is no such dead letter: it was replayed or purged.",
        "List them again; another operator may have been quicker.",
    ),
    "DeadLetterSourceError": Error(
        "Nobody knows which queue a dead letter came from, or it cannot be reached.",
        "Replay with `queue_name=`.",
    ),
    "TooManyReplaysError": Error(
        "The letter has come back `max_replays` times.", "Fix the cause; then raise `max_replays`."
    ),
    "NotDeadLettersError": Error(
        "The queue holds ordinary jobs, not dead letters.",
        "Check the name. `force=True` treats whatever waits there as dead letters.",
    ),
    "GroupNotFoundError": Error(
        "There is no such group on this queue.",
        "Ask the queue that owns it: that of its first job.",
    ),
    "GroupExistsError": Error(
        "A different group already has this `group_id`.",
        "Compare: `error.differences` names the parts. Use an id of its own for another group.",
    ),
    "InvalidGroupStateError": Error(
        "The group is in a state in which this cannot be done, such as cancelling a completed one.",
        "Read its state with `get_group_state`.",
    ),
    "PartitionMismatchError": Error(
        "The queue has `.known` partitions and this process was told `.given`.",
        "Write the same number everywhere; [scaling](../guides/scaling.md) says how to grow.",
    ),
    "DuplicateRowError": Error(
        "The outbox table of an earlier version allows one row per job id.",
        "Drop the constraint; [the guide](../guides/outbox.md#a-table-of-an-earlier-version) has the migration.",
    ),
    "JobFailedError": Error(
        "`wait_for`: the job failed for good. `.reason` says why.",
        "Handle it as the failure of the work.",
    ),
    "JobRemovedError": Error(
        "`wait_for`: the job is gone, and its outcome is unknown.",
        "Keep finished jobs for a while: `remove_on_complete=1000`.",
    ),
    "WaitTimeoutError": Error(
        "What you waited for did not happen in time. The job continues.",
        "Wait again, or look later.",
    ),
    "NoHandlerError": Error(
        "A job has a name for which no handler is registered. It fails for good.",
        "Register it, or correct the name; the message lists those known.",
    ),
    "HandlerTimeoutError": Error(
        "An attempt ran longer than the job's `timeout`.",
        "Raise it, or make the handler faster. It is retried like any failure.",
    ),
    "HandlerProcessError": Error(
        'With `executor="process"`: the process died or could not start.',
        "Read the reason: often memory, or a crash in a library.",
    ),
    "JobCancelledError": Error(
        "The job was cancelled. Raised inside plain handlers and given to `on_error`.",
        "Clean up and let it pass.",
    ),
    "EmbeddedServerError": Error(
        "The embedded server could not start.",
        "Read the reason; `pip install 'toril[embedded]'` brings the server.",
    ),
    "RunningLoopError": Error(
        "Something that blocks was called inside a running event loop, such as `toril.run` in a notebook.",
        "Use the `await` form: `await worker.run()`.",
    ),
    "UnsupportedPlatformError": Error(
        "This operating system lacks what the feature needs.",
        "Use another executor or server; on Windows there are no worker processes and no embedded server.",
    ),
    "Signal": Error(
        "Never by itself: the root of what handlers raise on purpose.", "Raise one of those below."
    ),
    "UnrecoverableError": Error(
        "A handler raises it: fail for good, whatever attempts are left.", "–"
    ),
    "DelayedError": Error(
        "A handler raises it: run again after `delay`. The attempt does not count.", "–"
    ),
    "PayloadMismatchError": Error(
        "The job's data does not fit the type that its consumer reads. It fails for good.",
        "Correct the producer; repair the dead letter with new data.",
    ),
    "ArgumentsError": Error(
        "The arguments do not fit the task's function: wrong, missing or unknown.",
        'Correct the call. For rolling deploys: `@app.task(extra="ignore")`.',
    ),
    "ResultError": Error(
        "What a task returned does not fit its annotation. The work is done and is not repeated.",
        "Correct the annotation or the return value.",
    ),
    "ExpiredError": Error(
        "No worker started the job within its `expires`.", "Add workers, or a longer `expires`."
    ),
    "DamagedJobError": Error(
        "The stored job cannot be read, or its outcome cannot be written.",
        "See [D501](doctor/D501.md): something else wrote to its keys.",
    ),
    "ClaimRefusedError": Error(
        "Somebody else has claimed the step. The job comes back after `delay`.",
        "Nothing; for a webhook answer 409.",
    ),
    "RateLimitError": Error(
        "A handler raises it: put the job back and hold the queue, or its lane, for a while.", "–"
    ),
    "WaitingChildrenError": Error(
        "A handler raises it: wait until the children have finished.", "–"
    ),
}

QUEUE_EVENTS: dict[str, tuple[str, str]] = {
    "added": ("A job was created.", "`name`"),
    "waiting": ("A job can run.", "`prev`, the state before, if there was one"),
    "delayed": ("A job waits for a time.", "`delay`: when it is due, in ms since the epoch"),
    "active": ("A worker took a job.", "`prev`"),
    "progress": ("A handler reported progress.", "`data`"),
    "completed": ("A job is done.", "`return_value`, `prev`"),
    "failed": ("A job failed for good.", "`failed_reason`, `prev`"),
    "retries-exhausted": ("A job used its last attempt.", "`attempts_made`"),
    "waiting-children": ("A parent waits for its children.", "`prev`"),
    "stalled": ("A job was brought back from a worker that died.", ""),
    "removed": ("A job was removed.", "`prev`"),
    "duplicated": ("An add found a job with its id.", ""),
    "deduplicated": (
        "An add found the owner of its deduplication id.",
        "`deduplication_id`, `deduplicated_job_id`",
    ),
    "drained": ("No job is left to take. `job_id` is None.", ""),
    "paused": ("The queue was paused. `job_id` is None.", ""),
    "resumed": ("The queue was resumed. `job_id` is None.", ""),
    "cleaned": ("Jobs were removed by `clean`. `job_id` is None.", "`count`"),
    "deadLettered": (
        "A job became a dead letter; sent after `failed`.",
        "`queue`, `dead_letter_queue`, `failed_reason`, `dead_letter_job_id`",
    ),
    "group:completed": ("All members of a group completed.", "`group_id`, `group_name`"),
    "group:compensating": (
        "A group began to be undone.",
        "`group_id`, `group_name`, `failed_job_id`, `reason`",
    ),
    "group:failed": (
        "A group ended without success: `FAILED` or `FAILED_COMPENSATION`.",
        "`group_id`, `group_name`, `state`, `compensation_results`",
    ),
    "group:blocked": (
        "A member after the pivot failed for good, so the group can neither continue nor be undone.",
        "`group_id`, `group_name`, `failed_job_id`, `reason`",
    ),
    "group:retrying": (
        "A failed compensation, or what blocks the group, is retried.",
        "`group_id`, `group_name`",
    ),
    "group:resolved": (
        "Somebody fixed by hand what could not be undone, or what blocked the group.",
        "`group_id`, `group_name`",
    ),
}

WORKER_EVENTS: dict[str, tuple[str, str]] = {
    "ready": ("The worker has started.", ""),
    "active": ("A handler begins.", "`job`"),
    "progress": ("A handler reported progress.", "`job, value`"),
    "completed": ("The result is stored.", "`job, result`"),
    "retrying": ("An attempt failed or was postponed; the job will run again.", "`job, error`"),
    "failed": ("A job failed for good.", "`job, error`"),
    "deadLettered": (
        "A job became a dead letter. `dead_lettered` is the same event.",
        "`job, letter`",
    ),
    "stalled": ("This worker brought a job back from one that died.", "`job_id`"),
    "lost": ("The lock of a running job expired; its handler is stopped.", "`job, error`"),
    "error": ("The server did not answer, or refused.", "`error`"),
    "drained": ("No job is left to take.", ""),
    "closing": ("The worker takes no more jobs.", ""),
    "closed": ("The worker has ended.", ""),
}
