"""How a worker is put together: which part knows which, and nothing else.

A part is given what it uses when it is made, and never learns of what is made after it:

    emitter  pulse  outbox  locks  fate    know nobody
    outage                                 pulse, emitter, fate
    flights  sweeper  keeper  advancer     their connection, outage or emitter
    courier  carries parcels               its connection
    crew     runs jobs                     outbox, locks, advancer, sweeper, keeper, emitter
    lease    renews locks                  locks, crew
    pump     brings jobs                   crew, outbox, pulse, flights
    watch    waits for jobs                pump, pulse

``Life`` starts and ends them, and ``Worker`` is what the user sees of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from toril.client.connection import Connection, Target
from toril.client.ids import new_worker_id
from toril.errors import InvalidOptionError
from toril.options import BackoffStrategy, Keep, WorkerOptions, milliseconds
from toril.protocol.job import StoredJob
from toril.protocol.keys import Keys
from toril.protocol.reading import worker_name as connection_name
from toril.protocol.settling import Policy, Take
from toril.sync.connection import Connection as BlockingConnection
from toril.worker.advancer import Advancer
from toril.worker.attempt import Performer
from toril.worker.burial import Burial, BurialTarget
from toril.worker.courier import Courier
from toril.worker.crew import Crew
from toril.worker.events import Emitter
from toril.worker.executors import Executor, LocalExecutor
from toril.worker.fate import Fate
from toril.worker.flight import Flight
from toril.worker.group_keeper import GroupKeeper, owners_of
from toril.worker.handlers import Handler, Middleware, Router, wrap
from toril.worker.introducing import introduce
from toril.worker.lease import Berth, Lease
from toril.worker.locks import Locks
from toril.worker.outage import Outage
from toril.worker.outbox import Outbox
from toril.worker.processes import ProcessExecutor
from toril.worker.pulse import Pulse
from toril.worker.pump import Pump
from toril.worker.sweeper import Sweeper
from toril.worker.watch import Watch
from toril.worker.writer import JobWriter

IsFinal = Callable[[StoredJob, BaseException], bool]
"""``(job, error)``: is it pointless to retry after this error?"""


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """How the user configured a worker; ``options`` have already been checked."""

    keys: Keys
    handler: Handler | Router | str
    target: Target
    options: WorkerOptions
    executor: str
    middleware: Sequence[Middleware]
    backoff_strategy: BackoffStrategy | Mapping[str, BackoffStrategy] | None
    dead_letter_queue: BurialTarget
    is_final: IsFinal | None


class Parts:
    """The parts of one worker; nothing runs yet."""

    def __init__(self, design: Design) -> None:
        _check(design)
        self._design = design
        self.keys = keys = design.keys
        self.worker_id = new_worker_id()
        self.burial = _burial_of(design)
        self._open_connections()
        self.executor = self._make_executor()
        self.emitter = self._make_emitter()
        self.fate = Fate()
        self.pulse = Pulse()
        self.outbox = Outbox()
        self.locks = Locks()
        self.outage = Outage(keys.name, self.pulse, self.emitter, self.fate)
        self.sweeper = Sweeper(
            self.connection,
            keys,
            interval_ms=_ms(design.options.stalled_interval),
            max_stalled=design.options.max_stalled_count,
            on_stalled=partial(self.emitter.emit, "stalled"),
        )
        self.keeper = GroupKeeper(self.connection, owners_of(keys), self.courier.watch)
        self.crew = self._make_crew()
        self.lease = self._make_lease()
        self.pump = self._make_pump()
        self.watch = Watch(
            self.pump,
            self.pulse,
            drain_delay_ms=_ms(design.options.drain_delay),
            introduce=partial(introduce, self.blocking, keys),
        )

    def _open_connections(self) -> None:
        keys, target = self.keys, self._design.target
        self.connection = self._connect(target)
        queues = [keys, *([self.burial.keys] if self.burial else [])]
        self.connection.check_slots(*queues)
        self.courier = Courier(self.connection, queues)
        self._give_parcels(self.connection)
        # The name under which BullMQ's tools list workers.
        name = connection_name(keys, self._design.options.name)
        self.blocking = Connection(target, client_name=name, patience_s=0.0)
        self._give_parcels(self.blocking)

    def _give_parcels(self, connection: Connection) -> None:
        connection.on_parcels = self.courier.hear
        connection.on_handed = self.courier.take

    def _connect(self, target: Target) -> Connection:
        return Connection(target, patience_s=1.0)

    def _make_executor(self) -> Executor:
        return make_executor(self._design)

    def _make_emitter(self) -> Emitter:
        return Emitter()

    def _make_crew(self) -> Crew:
        design = self._design
        advancer = Advancer(self.connection, self.keys, pulse=self.pulse, on_error=self.outage.hear)
        run: Any = self.executor.run
        return Crew(
            self.keys,
            Performer(wrap(run, design.middleware), advancer, design.options.max_started_attempts),
            _policy_of(design, self.burial),
            outbox=self.outbox,
            locks=self.locks,
            sweeper=self.sweeper,
            keeper=self.keeper,
            writer=JobWriter(self.connection, self.keys, self.emitter),
            emitter=self.emitter,
            burial=self.burial,
        )

    def _make_lease(self) -> Lease:
        return self._lease_of(self._berth())

    def _berth(self) -> Berth:
        return Berth(self.keys, self.worker_id, self.locks, self.crew, self.pulse)

    def _lease_of(self, *berths: Berth) -> Lease:
        lock_ms = _ms(self._design.options.lock_duration)
        target: Any = self._design.target

        def connect() -> BlockingConnection:
            return BlockingConnection(
                target,
                patience_s=0.0,
                reply_timeout_s=min(5.0, lock_ms / 3000),
                blocking_margin_s=min(2.0, lock_ms / 3000),
            )

        return Lease(connect, *berths, lock_ms=lock_ms)

    def _make_pump(self) -> Pump:
        options, burial = self._design.options, self.burial
        hear = self.outage.hear
        flights = [
            Flight(
                self.connection,
                self.keys,
                f"{self.worker_id}-{number}",
                dead_letters=None if burial is None else burial.keys,
                keep_letters=None if burial is None else burial.keep,
                on_error=hear,
            )
            for number in range(1 if options.concurrency < 4 else 2)
        ]
        waiting = Flight(self.blocking, self.keys, f"{self.worker_id}-w", on_error=hear)
        self.flights = [*flights, waiting]
        return self._pump_of(
            self.crew,
            self.outbox,
            self.pulse,
            flights,
            waiting,
            concurrency=options.concurrency,
            worker_id=self.worker_id,
            make_take=partial(_take, options, _ms(options.lock_duration)),
        )

    def _pump_of(self, *args: Any, **options: Any) -> Pump:
        return Pump(*args, **options)

    async def release(self) -> None:
        """Close what was opened: nothing is running any more."""
        await self.executor.close()
        await self.connection.close()
        await self.blocking.close()


def _check(design: Design) -> None:
    strategy = design.backoff_strategy
    strategies = strategy.values() if isinstance(strategy, Mapping) else [strategy]
    for one in strategies:
        if one is not None and not callable(one):
            raise InvalidOptionError(f"the backoff strategy {one!r} is not callable")
    if isinstance(design.target, Connection):
        raise InvalidOptionError("a worker needs its own connections; pass a URL or a client")


def _burial_of(design: Design) -> Burial | None:
    target = design.dead_letter_queue
    return None if target is None else Burial(target, design.keys)


def _policy_of(design: Design, burial: Burial | None) -> Policy:
    options = design.options
    return Policy(
        keep_completed=_keep(options.remove_on_complete),
        keep_failed=_keep(options.remove_on_fail),
        max_started_attempts=options.max_started_attempts,
        backoff_strategy=design.backoff_strategy,
        is_final=design.is_final,
        dead_letters=None if burial is None else burial.policy,
    )


def make_executor(design: Design) -> Executor:
    handler, concurrency = design.handler, design.options.concurrency
    if design.executor == "process":
        return ProcessExecutor(handler, processes=concurrency)
    if design.executor != "local":
        raise InvalidOptionError(
            f"executor={design.executor!r} is not known; use 'local' or 'process'"
        )
    if isinstance(handler, Router) or (callable(handler) and not isinstance(handler, str)):
        return LocalExecutor(handler, threads=concurrency)
    raise InvalidOptionError(f"handler {handler!r} is neither a function nor a Router")


def _take(options: WorkerOptions, lock_ms: int, count: int, token: str) -> Take:
    return Take(
        count=count,
        token=token,
        lock_ms=lock_ms,
        worker_name=options.name,
        limiter=options.limiter,
        metrics_points=options.metrics_points,
    )


def _keep(value: bool | int | Keep | None) -> Keep | None:
    return None if value is None else Keep.of(value)


def _ms(value: Any) -> int:
    return milliseconds(value, "duration")
