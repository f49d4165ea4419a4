"""Metrics for Prometheus: what queues hold, and what workers do.

``QueueCollector`` asks the server at every scrape; one per queue is enough, in any process.
``WorkerMetrics`` listens to a worker in its own process, so every worker has one.
``RelayCollector`` does the same for a relay of an outbox.

Labels are bounded: job names beyond the first ``most_names`` are counted as ``other``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from toril.client.agreeing import check_told
from toril.errors import InvalidInputError, Signal, TorilError
from toril.logs import get_logger
from toril.options import whole
from toril.protocol import partitioning
from toril.protocol.command import Command, plain
from toril.protocol.groups import GroupState, Stuck, count_stuck
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys, hash_tag
from toril.protocol.measuring import KINDS
from toril.protocol.placing import told_of
from toril.sync.connection import Connection, Target
from toril.sync.queue import Queue
from toril.worker.worker import Worker

if TYPE_CHECKING:
    from toril.outbox import Relay

logger = get_logger("toril.prometheus")

OTHER = "other"
MOST_GROUPS = 1000
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
_BLIND_AFTER_S = 60.0
"""A relay that waits for a server looks into its outbox twice as often."""


class QueueCollector(Collector):
    """What some queues hold, read from the server at every scrape.

    ``dead_letter_queues`` are those whose waiting jobs are dead letters.  If the server does not
    answer, the scrape has only ``toril_up`` 0.  The number of partitions of a queue is read from
    the server; ``partitions`` gives it for queues that nobody has opened yet.
    """

    def __init__(
        self,
        queue_names: Iterable[str],
        *,
        connection: Target = None,
        prefix: str = "bull",
        dead_letter_queues: Iterable[str] = (),
        registry: CollectorRegistry | None = REGISTRY,
        partitions: Mapping[str, int] | None = None,
    ) -> None:
        self._connection = (
            connection if isinstance(connection, Connection) else Connection(connection)
        )
        self._owns_connection = not isinstance(connection, Connection)
        self._prefix, self._told = prefix, check_told(partitions, prefix)
        self._names, self._letter_names = list(queue_names), list(dead_letter_queues)
        for name in (*self._names, *self._letter_names):
            Keys(prefix, name)  # refuses what cannot be a queue
        self._queues: list[Queue] = []
        self._letters: list[Queue] = []
        self._registry = registry
        if registry is not None:
            registry.register(self)

    def _open(self, name: str, count: int) -> Queue:
        return Queue(name, connection=self._connection, prefix=self._prefix, partitions=count)

    def _find_partitions(self) -> None:
        """Open the queues as they are now: they may have grown."""
        names = dict.fromkeys((*self._names, *self._letter_names))
        for tag in filter(None, map(hash_tag, list(names))):
            if tag == tag.strip():  # else it is no name
                names[tag] = None
        if not names:
            self._connection.run(plain("PING", parse=bool))  # nothing else would ask the server
        reads = [partitioning.read(Keys(self._prefix, name)) for name in names]
        found = dict(zip(names, self._connection.run_all(reads), strict=True))
        counts = {name: numbers.now for name, numbers in found.items() if numbers.now}
        known = {**self._told, **counts}
        self._queues = [self._open(name, told_of(name, known)) for name in self._names]
        self._letters = [self._open(name, told_of(name, known)) for name in self._letter_names]

    def close(self) -> None:
        """Leave the registry and close the connection."""
        if self._registry is not None:
            self._registry.unregister(self)
        if self._owns_connection:
            self._connection.close()

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not need a server."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("toril_up", "Whether the server answered this scrape")
        try:
            families = self._read()
        except InvalidInputError:
            raise  # a mistake in the settings, whatever the server says
        except TorilError as error:
            logger.warning("a scrape got no answer: %s", error)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from families

    def _read(self) -> list[Metric]:
        self._find_partitions()
        families = (self._jobs(), self._finished(), self._dead_letters())
        return [*families, *self._groups(), *self._lanes()]

    def _jobs(self) -> Metric:
        family = GaugeMetricFamily("toril_jobs", "Jobs by state", labels=["queue", "state"])
        for queue in self._queues:
            for state, count in queue.get_job_counts().items():
                family.add_metric([queue.name, state], count)
        return family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            "toril_jobs_finished",
            "Jobs ended by workers that keep metrics (metrics_points)",
            labels=["queue", "outcome"],
        )
        for queue in self._queues:
            for kind in KINDS:
                family.add_metric([queue.name, kind], queue.get_metrics(kind, 0, 0).count)
        return family

    def _groups(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "toril_groups",
            f"Groups by state, of the newest {MOST_GROUPS}; those that need a person, of all",
            labels=["queue", "state"],
        )
        stuck = GaugeMetricFamily(
            "toril_groups_needing_person",
            "Groups that go no further until a person acts: not undone, blocked, or asking",
            labels=["queue"],
        )
        for queue in self._queues:
            counts = dict.fromkeys(GroupState, 0)
            for group in queue.get_groups((), 0, MOST_GROUPS - 1, newest_first=True):
                counts[group.state] += 1
            plan = count_stuck([part.keys for part in queue.partitions])
            found: list[Stuck] = self._connection.follow(plan)
            counts[GroupState.FAILED_COMPENSATION] = sum(one.not_undone for one in found)
            counts[GroupState.BLOCKED] = len(queue.get_groups(GroupState.BLOCKED))
            for state, count in counts.items():
                family.add_metric([queue.name, state.value], count)
            stuck.add_metric([queue.name], sum(one.needing_a_person for one in found))
        yield family
        yield stuck

    def _dead_letters(self) -> Metric:
        family = GaugeMetricFamily("toril_dead_letters", "Dead letters waiting", labels=["queue"])
        for queue in self._letters:
            family.add_metric([queue.name], queue.get_dead_letter_count())
        return family

    def _lanes(self) -> Iterator[Metric]:
        lanes = GaugeMetricFamily("toril_lanes", "Lanes that hold jobs", labels=["queue"])
        depth = GaugeMetricFamily(
            "toril_lane_jobs", "Jobs that wait in lanes", labels=["queue", "state"]
        )
        for queue in self._queues:
            lanes.add_metric([queue.name], queue.get_lane_count())
            for state in ("waiting", "delayed"):
                counts: list[Command[int]] = [
                    plain("ZCARD", f"{part.keys.base}:lanes:{state}", parse=int)
                    for part in queue.partitions
                ]
                found: list[int] = self._connection.run_all(counts)
                depth.add_metric([queue.name, state], sum(found))
        yield lanes
        yield depth


class RelayCollector(Collector):
    """What an outbox relay does and how far it lags behind; for the process that runs it.

    Alert on ``toril_outbox_lag_seconds`` and ``toril_outbox_parked_rows``.
    """

    def __init__(self, relay: Relay, *, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._relay = relay
        self._registry = registry
        if registry is not None:
            registry.register(self)

    def close(self) -> None:
        """Leave the registry."""
        if self._registry is not None:
            self._registry.unregister(self)

    def describe(self) -> Iterator[Metric]:
        """Nothing: several relays in one process have the same names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        metrics, name = self._relay.metrics, self._relay.table.name
        rows = CounterMetricFamily(
            "toril_outbox_rows", "Rows by what became of them", labels=["outbox", "outcome"]
        )
        for outcome in _OUTCOMES:
            rows.add_metric([name, outcome], getattr(metrics, outcome))
        yield rows
        errors = CounterMetricFamily(
            "toril_relay_errors", "Times a server could not be reached", labels=["outbox"]
        )
        errors.add_metric([name], metrics.errors)
        yield errors
        if self._relay.is_running and metrics.measured_at is None:
            return  # it has not seen its outbox yet: nobody knows
        for gauge, text, value in (
            ("toril_outbox_pending_rows", "Rows that wait for a relay", metrics.depth),
            ("toril_outbox_parked_rows", "Rows that no relay could send", metrics.parked_now),
            ("toril_outbox_lag_seconds", "The age of the oldest row", self._lag_s()),
        ):
            family = GaugeMetricFamily(gauge, text, labels=["outbox"])
            family.add_metric([name], value)
            yield family

    def _lag_s(self) -> float:
        metrics = self._relay.metrics
        lag_s = metrics.lag_ms / 1000
        if not self._relay.is_running or metrics.measured_at is None:
            return lag_s
        # A row may have come right after the last look.
        unseen_s = time.monotonic() - metrics.measured_at
        return max(lag_s, unseen_s) if unseen_s > _BLIND_AFTER_S else lag_s


_OUTCOMES = (
    "dispatched",
    "duplicates",
    "put_off",
    "parked",
    "lanes_full",
    "confirmed",
    "dispatched_again",
    "pruned",
)


class WorkerMetrics:
    """What one worker does: how long jobs wait and run, how they end, how many run now."""

    def __init__(
        self,
        worker: Worker,
        *,
        registry: CollectorRegistry = REGISTRY,
        most_names: int = 50,
        buckets_s: Sequence[float] = BUCKETS_S,
    ) -> None:
        self._queue = worker.name
        self._most_names = whole(most_names, "most_names")
        self._names: set[str] = set()
        self._started: dict[str, float] = {}
        self._meters = _Meters.of(registry, tuple(buckets_s))
        self._meters.watch(worker)
        # At zero: Prometheus sees no increase in a series that begins with its first event.
        for meter in (self._meters.stalled, self._meters.lost):
            meter.labels(self._queue)
        for event, callback in (
            ("active", self._on_active),
            ("completed", self._on_completed),
            ("failed", self._on_failed),
            ("retrying", self._on_retrying),
            ("stalled", lambda job_id: self._meters.stalled.labels(self._queue).inc()),
            ("lost", self._on_lost),
            ("dead_lettered", self._on_dead_lettered),
        ):
            worker.on(event, callback)

    def _on_active(self, job: StoredJob) -> None:
        self._started[job.id] = time.monotonic()
        label = self._label(job.name)
        if job.attempts_started == 1:
            waited_ms = (job.processed_on or 0) - job.first_due_at
            self._meters.wait.labels(self._queue, label).observe(max(0, waited_ms) / 1000)

    def _on_completed(self, job: StoredJob, value: Any) -> None:
        self._ended(job, "completed")

    def _on_failed(self, job: StoredJob, error: BaseException) -> None:
        self._ended(job, "failed")

    def _on_retrying(self, job: StoredJob, error: BaseException) -> None:
        self._ended(job, "put_back" if isinstance(error, Signal) else "retried")

    def _on_lost(self, job: StoredJob, error: BaseException) -> None:
        self._started.pop(job.id, None)
        self._meters.lost.labels(self._queue).inc()

    def _on_dead_lettered(self, job: StoredJob, letter: object) -> None:
        self._meters.dead_lettered.labels(self._queue, self._label(job.name)).inc()

    def _ended(self, job: StoredJob, outcome: str) -> None:
        label = self._label(job.name)
        self._meters.ended.labels(self._queue, label, outcome).inc()
        started = self._started.pop(job.id, None)
        if started is not None:
            self._meters.run.labels(self._queue, label).observe(time.monotonic() - started)

    def _label(self, name: str) -> str:
        """The job's name, or ``other`` if there are too many names."""
        if name in self._names:
            return name
        if len(self._names) >= self._most_names:
            return OTHER
        self._names.add(name)
        self._meters.dead_lettered.labels(self._queue, name)  # at zero, as above
        return name


class _Meters:
    """The meters of one registry, shared by the workers that report to it."""

    _known: ClassVar[dict[int, _Meters]] = {}
    _lock = threading.Lock()

    def __init__(self, registry: CollectorRegistry, buckets: tuple[float, ...]) -> None:
        self.registry = registry
        self._workers: dict[str, list[Worker]] = {}
        self.wait = Histogram(
            "toril_job_wait_seconds",
            "From the time a job could run to its first start",
            ["queue", "name"],
            buckets=buckets,
            registry=registry,
        )
        self.run = Histogram(
            "toril_job_run_seconds",
            "How long an attempt took",
            ["queue", "name"],
            buckets=buckets,
            registry=registry,
        )
        self.ended = Counter(
            "toril_attempts",
            "Attempts by what came of them",
            ["queue", "name", "outcome"],
            registry=registry,
        )
        self.running = Gauge(
            "toril_running_jobs", "Jobs that run now", ["queue"], registry=registry
        )
        self.abandoned = Gauge(
            "toril_abandoned_threads",
            "Plain handlers that still run although their jobs failed by their timeout",
            ["queue"],
            registry=registry,
        )
        self.stalled = Counter(
            "toril_stalled_jobs",
            "Jobs brought back from silent workers",
            ["queue"],
            registry=registry,
        )
        self.dead_lettered = Counter(
            "toril_dead_lettered_jobs",
            "Jobs that became dead letters",
            ["queue", "name"],
            registry=registry,
        )
        self.lost = Counter(
            "toril_lost_jobs",
            "Jobs whose lock was lost while they ran",
            ["queue"],
            registry=registry,
        )

    def watch(self, worker: Worker) -> None:
        """Count the running jobs of ``worker`` with those of the queue's other workers."""
        workers = self._workers.setdefault(worker.name, [])
        workers.append(worker)
        worker.on("closed", lambda: workers.remove(worker))
        self.running.labels(worker.name).set_function(
            lambda: sum(len(each.current_jobs) for each in workers)
        )
        self.abandoned.labels(worker.name).set_function(
            lambda: sum(each.abandoned_threads for each in workers)
        )

    @classmethod
    def of(cls, registry: CollectorRegistry, buckets: tuple[float, ...]) -> _Meters:
        with cls._lock:
            known = cls._known.get(id(registry))
            if known is None or known.registry is not registry:
                known = cls._known[id(registry)] = cls(registry, buckets)
            return known
