"""Random walks through the public API, step by step beside a queue in plain Python.

10,000 steps in an ordinary run, 200,000 in `make prove`. A failure prints the steps, shortened.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.reference import LIVES, ModelJob, ModelQueue
from tests.proving import PROVES_ALL, amount
from tests.servers import Server
from toril import Backoff, NewJob
from toril.errors import (
    JobLockedError,
    JobNotFoundError,
    JobNotInStateError,
    NotPausedError,
)
from toril.protocol import leasing, settling
from toril.protocol.command import skew
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.settling import Policy, Raised, Released, Returned, Settled, Take
from toril.sync import Queue
from toril.sync.connection import Connection
from toril.worker.burial import Burial

STEPS = 100
EXAMPLES = amount(100, 2000)
MAX_STALLED = 1
MUCH = 8
HOUR_MS = 3_600_000

NAMES = st.sampled_from(["mail", "bill", "scan"])
PRIORITIES = st.sampled_from([0, 0, 1, 1, 2])
HOURS = st.sampled_from([0, 0, 1, 2])
KINDS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "priority": PRIORITIES,
        "lifo": st.booleans(),
        "attempts": st.integers(1, 3),
        "delay": HOURS,
        "has_moment": st.booleans(),
        "expires": st.sampled_from([None, 0, 1, 2]),
        "backs_off": st.booleans(),
    }
)


def has_much(machine: Api) -> bool:
    """What empties a queue comes rarely, or walks would see nothing but empty ones."""
    return len(machine.model.jobs) >= MUCH


class Api(RuleBasedStateMachine):
    """The queue and its model; jobs are run by a worker that is moved call by call."""

    server: Server
    lives: Counter[str]
    """How jobs were when they were taken, over all walks."""

    def __init__(self) -> None:
        super().__init__()
        prefix = f"r{secrets.token_hex(4)}"
        self.connection = Connection(self.server.unix_url)
        self.queue = Queue("q", connection=self.connection, prefix=prefix)
        self.letters = Queue("q-dlq", connection=self.connection, prefix=prefix)
        self.client = self.server.client()
        self.model = ModelQueue()
        self.running: dict[str, tuple[StoredJob, str]] = {}
        self.requests = 0
        self.made = 0
        self.policy = Policy(dead_letters=Burial("q-dlq", self.queue.keys).policy)

    def teardown(self) -> None:
        self.client.flushall()
        self.client.close()
        self.connection.close()
        skew.ms = 0

    # ------------------------------------------------------------------ adding

    def new_id(self) -> str:
        self.made += 1
        return f"j{self.made}"

    @rule(kinds=st.lists(KINDS, min_size=1, max_size=4))
    def add(self, kinds) -> None:
        for kind in kinds:
            self.add_one(**kind)

    def add_one(self, name, priority, lifo, attempts, delay, has_moment, expires, backs_off):
        job = ModelJob(
            self.new_id(), name, attempts, priority, lifo, backs_off=backs_off, expires=expires
        )
        options: dict[str, Any] = {}
        if delay and has_moment:
            options["run_at"] = self.server_ms() + delay * HOUR_MS
        elif delay:
            options["delay"] = delay * HOUR_MS
        if expires is not None:
            options["expires"] = expires * HOUR_MS + HOUR_MS // 2
        if backs_off:
            options["backoff"] = Backoff.fixed(HOUR_MS)
        added = self.queue.add(
            name, job_id=job.id, priority=priority, lifo=lifo, attempts=attempts, **options
        )
        self.model.add(job, delay=delay)
        assert not added.duplicated

    def server_ms(self) -> int:
        seconds, micros = self.client.time()
        return seconds * 1000 + micros // 1000 + skew.ms

    @rule(hours=st.integers(1, 3))
    def let_time_pass(self, hours) -> None:
        skew.ms += hours * HOUR_MS
        self.model.hour += hours

    @rule(hours=st.sampled_from([0, 1, 2]), count=st.integers(1, 3))
    def come_back_later(self, hours, count) -> None:
        self.let_time_pass(hours)
        self.take(count)

    @rule(names=st.lists(NAMES, min_size=1, max_size=4), priority=PRIORITIES)
    def add_bulk(self, names, priority) -> None:
        jobs = [ModelJob(self.new_id(), name, priority=priority) for name in names]
        self.queue.add_bulk([NewJob(job.name, job_id=job.id, priority=priority) for job in jobs])
        for job in jobs:
            self.model.add(job)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def add_again(self, data) -> None:
        """A job whose id exists is not added."""
        job_id = data.draw(st.sampled_from(sorted(self.model.jobs)))
        assert self.queue.add("again", job_id=job_id).duplicated

    # ------------------------------------------------------------------ running

    def call(self, ended: list[Settled], take: int) -> Any:
        self.requests += 1
        token = f"hand:{self.requests}"
        command = settling.settle(
            self.queue.keys,
            ended,
            Take(count=take, token=token, lock_ms=HOUR_MS),
            flight="hand-0",
            request=self.requests,
            dead_letters=self.letters.keys,
        )
        return self.connection.run(command), token

    @rule(count=st.integers(1, 3))
    def take(self, count) -> None:
        reply, token = self.call([], count)
        taken = []
        for words in reply.jobs:
            job_id = words.pop().decode()
            taken.append(job_id)
            fields = fields_of(words)
            self.running[job_id] = (
                StoredJob(self.queue.keys.prefix, "q", job_id, fields),
                token,
            )
        assert taken == self.model.take(token, count)
        expired = {job_id for job_id in taken if self.running[job_id][0].is_expired}
        assert expired == {job_id for job_id in taken if self.model.has_expired(job_id)}
        for job_id in taken:
            self.lives[self.model.life_of(job_id)] += 1

    @precondition(lambda self: self.model.active)
    @rule(data=st.data(), how=st.sampled_from(["complete", "fail", "give back"]))
    def settle(self, data, how) -> None:
        """What runs ends; whoever has lost the lock is refused."""
        job_id = data.draw(st.sampled_from(sorted(self.model.active)))
        job, token = self.running[job_id]
        attempt: Any = {
            "complete": Returned(job_id),
            "fail": Raised(ValueError("no")),
            "give back": Released(),
        }[how]
        refusal = settling.refusal_to_run(job, None)
        if refusal is not None:
            attempt, how = refusal, "fail"
        outcome = settling.decide(job, attempt, self.policy, dice=0.0)
        reply, _ = self.call([Settled(job_id, token, outcome, job)], 0)
        if job_id in self.model.expired:
            assert reply.results == [-2]
            return
        assert isinstance(reply.results[0], bytes) or reply.results == [0]
        if refusal is not None:
            self.model.jobs[job_id].is_doomed = True
        match how:
            case "complete":
                self.model.complete(job_id)
            case "fail":
                self.model.fail(job_id)
            case _:
                self.model.give_back(job_id)

    @precondition(lambda self: self.model.active)
    @rule(data=st.data())
    def lose_a_lock(self, data) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model.active)))
        self.client.delete(f"{self.queue.keys.job(job_id)}:lock")
        self.model.expired.add(job_id)

    @rule()
    def sweep(self) -> None:
        """Twice: the first one marks, the second one brings back."""
        # What was handed out by the last call may never have arrived; another call says it did.
        self.call([], 0)
        order = []
        for _ in range(2):
            self.client.delete(self.queue.keys.stalled_check)
            plan = leasing.sweep(self.queue.keys, interval_ms=HOUR_MS, max_stalled=MAX_STALLED)
            order += self.connection.follow(plan)
        assert set(order) == {one for one in self.model.active if one in self.model.expired}
        # In which order they come back is the server's choice.
        for job_id in order:
            others = self.model.expired - {job_id}
            self.model.expired &= {job_id}
            self.model.sweep(MAX_STALLED)
            self.model.expired |= others

    # ------------------------------------------------------------------ changing

    def any_id(self, data) -> str:
        return data.draw(st.sampled_from([*sorted(self.model.jobs), "nobody"]))

    @rule(is_paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, is_paused) -> None:
        self.queue.pause() if is_paused else self.queue.resume()
        self.model.is_paused = is_paused

    @rule(data=st.data())
    def remove(self, data) -> None:
        job_id = self.any_id(data)
        is_locked = job_id in self.model.active and job_id not in self.model.expired
        if is_locked:
            with pytest.raises(JobLockedError):
                self.queue.remove(job_id)
            return
        assert self.queue.remove(job_id) is (job_id in self.model.jobs)
        if job_id in self.model.active:
            self.model.leave_active(job_id)
        self.model.forget(job_id)

    @rule(data=st.data())
    def promote(self, data) -> None:
        job_id = self.any_id(data)
        if job_id in self.model.delayed:
            self.queue.promote(job_id)
            self.model.promote(job_id)
            return
        with pytest.raises((JobNotFoundError, JobNotInStateError)):
            self.queue.promote(job_id)

    @rule(data=st.data(), hours=st.integers(1, 3))
    def change_delay(self, data, hours) -> None:
        job_id = self.any_id(data)
        if job_id not in self.model.delayed:
            with pytest.raises((JobNotFoundError, JobNotInStateError)):
                self.queue.change_delay(job_id, hours * HOUR_MS)
            return
        self.queue.change_delay(job_id, hours * HOUR_MS)
        self.model.put_off(job_id, hours)
        self.model.jobs[job_id].due = self.model.hour + hours

    @rule(data=st.data(), resets=st.booleans())
    def retry(self, data, resets) -> None:
        job_id = self.any_id(data)
        if job_id not in self.model.completed:
            with pytest.raises((JobNotFoundError, JobNotInStateError)):
                self.queue.retry(job_id)
            return
        self.queue.retry(job_id, reset_attempts=resets)
        job = self.model.jobs[job_id]
        self.model.completed.remove(job_id)
        job.is_doomed = False
        if resets:
            job.made = job.started = 0
            job.due = self.model.hour
        self.model.place(job, is_first=job.is_lifo)

    @rule(data=st.data(), priority=PRIORITIES, lifo=st.booleans())
    def change_priority(self, data, priority, lifo) -> None:
        job_id = self.any_id(data)
        if job_id not in self.model.jobs:
            with pytest.raises(JobNotFoundError):
                self.queue.change_priority(job_id, priority)
            return
        self.queue.change_priority(job_id, priority, lifo=lifo)
        job = self.model.jobs[job_id]
        job.priority = priority
        if self.model.state_of(job_id) in ("waiting", "prioritized"):
            self.model.forget(job_id)
            self.model.jobs[job_id] = job
            (self.model.place_first if lifo else self.model.place)(job)

    @precondition(has_much)
    @rule(delayed=st.booleans())
    def drain(self, delayed) -> None:
        waiting = [*self.model.wait, *(one[2] for one in self.model.prioritized)]
        waiting += sorted(self.model.delayed) if delayed else []
        assert self.queue.drain(delayed=delayed) == len(waiting)
        for job_id in waiting:
            self.model.forget(job_id)

    @precondition(has_much)
    @rule()
    def clean(self) -> None:
        assert set(self.queue.clean("completed", 0)) == set(self.model.completed)
        for job_id in list(self.model.completed):
            self.model.forget(job_id)

    @precondition(has_much)
    @rule()
    def obliterate(self) -> None:
        if self.model.is_paused and not self.model.active:
            assert self.queue.obliterate() == len(self.model.jobs)
            self.model = ModelQueue(letters=self.model.letters, hour=self.model.hour)
            return
        with pytest.raises((NotPausedError, JobLockedError)):
            self.queue.obliterate()

    # ------------------------------------------------------------------ dead letters

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data())
    def replay(self, data) -> None:
        letters = self.letters.get_dead_letter_jobs(0, -1)[::-1]
        index = data.draw(st.integers(0, len(letters) - 1))
        source = letters[index]
        new_id = self.letters.replay_dead_letter(source.id)
        name = self.model.letters.pop(index)
        job = self.queue.get_job(new_id)
        assert job is not None
        assert (job.name, job.attempts_made) == (name, 0)
        backs_off = job.opts.backoff is not None
        priority = int(self.client.hget(self.queue.keys.job(new_id), "priority"))
        limit_ms = job.opts.expires
        model = ModelJob(
            new_id,
            name,
            job.opts.attempts,
            priority,
            job.opts.lifo,
            backs_off=backs_off,
            due=self.model.hour,
            expires=None if limit_ms is None else limit_ms // HOUR_MS,
        )
        self.model.jobs[new_id] = model
        self.model.place(model)

    @rule(name=NAMES)
    def purge(self, name) -> None:
        assert self.letters.purge_dead_letters(name=name) == self.model.letters.count(name)
        self.model.letters = [one for one in self.model.letters if one != name]

    # ------------------------------------------------------------------ what must be equal

    @invariant()
    def is_as_the_model_says(self) -> None:
        model, keys = self.model, self.queue.keys
        counts = self.queue.get_job_counts()
        expected = {
            "waiting": len(model.wait),
            "active": len(model.active),
            "delayed": len(model.delayed),
            "prioritized": len(model.prioritized),
            "completed": len(model.completed),
            "failed": 0,
        }
        assert {name: counts.get(name, 0) for name in expected} == expected
        ready = keys.paused if self.queue.is_paused() else keys.wait
        assert self.client.lrange(ready, 0, -1)[::-1] == model.wait
        assert self.client.zrange(keys.prioritized, 0, -1) == [
            one[2] for one in sorted(model.prioritized)
        ]
        order = sorted(model.delayed, key=model.delayed.__getitem__)
        assert self.client.zrange(keys.delayed, 0, -1) == order
        assert set(self.client.lrange(keys.active, 0, -1)) == set(model.active)
        assert [job.name for job in self.letters.get_dead_letter_jobs(0, -1)][::-1] == model.letters
        for job_id, job in list(model.jobs.items())[-2:]:
            assert self.queue.get_state(job_id) == model.state_of(job_id)
            stored = self.queue.get_job(job_id)
            assert stored is not None
            assert (stored.attempts_made, stored.attempts_started, stored.stalled_count) == (
                job.made,
                job.started,
                job.stalled,
            )


@pytest.mark.first
@pytest.mark.timeout(4 * 3600)
def test_the_public_api_does_what_the_model_does():
    """L2 of the programme: no divergence in 10,000 steps (make prove: 200,000)."""
    lives: Counter[str] = Counter()
    with Server() as server:
        machine = type("Machine", (Api,), {"server": server, "lives": lives})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(lives)
    # A hundred walks may by chance meet no job that was too late; two thousand may not.
    if PROVES_ALL:
        assert all(lives[life] for life in LIVES), f"walks that met too little: {lives}"
