"""A small world with something on every page; ``text`` is put into every field that takes one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.helpers import wait_until
from toril import (
    Compensation,
    FlowJob,
    FlowProducer,
    GroupJob,
    GroupSignal,
    NewJob,
    Queue,
    UnrecoverableError,
    Worker,
    compensation_worker,
)


@dataclass
class World:
    queue: Queue
    letters: Queue
    lane: str
    group: str
    stuck_group: str
    staged_group: str
    blocked_group: str
    letter: str
    parent: str
    text: str

    @property
    def paths(self) -> list[str]:
        """Every page of the dashboard, with something on it."""
        from toril.dashboard.showing import link

        name, letters = self.queue.name, self.letters.name
        states = ("waiting", "active", "delayed", "prioritized", "completed", "failed")
        return [
            "/",
            *(link("", "/queue", queue=name, state=state) for state in states),
            link("", "/queue", queue=name, state="failed", text="no", start="0"),
            link("", "/job", queue=name, id=f"fails{self.text}"),
            link("", "/job", queue=name, id=f"works{self.text}"),
            link("", "/job", queue=name, id=f"later{self.text}"),
            link("", "/job", queue=letters, id=self.letter),
            "/dead-letters",
            link("", "/dead-letters", queue=letters),
            "/groups",
            link("", "/groups", queue=name, state="FAILED_COMPENSATION"),
            link("", "/group", queue=name, id=self.group),
            link("", "/group", queue=name, id=self.stuck_group),
            link("", "/group", queue=name, id=self.staged_group),
            link("", "/group", queue=name, id=self.blocked_group),
            "/lanes",
            link("", "/lanes", queue=name),
            link("", "/lane", queue=name, lane=self.lane),
            "/schedules",
            "/workers",
            link("", "/workers", queue=name),
            link("", "/flow", queue=name, id=self.parent),
            "/log",
            link("", "/search", q=f"no such {self.text}"),
            link("", "/search", q=f"pay{self.text}"),
        ]


@asynccontextmanager
async def world(url: str, prefix: str, text: str = "", *, long: str = "") -> AsyncIterator[World]:
    """``text`` goes into ids and names of queues and lanes, ``text + long`` into all else."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    text = text.replace(":", "").replace(" ", "")
    free = f"{text} {long}" if long else text
    name, dead, lane = f"pay{text}", f"dead{text}", f"lane{text}"

    async def handler(job: Any) -> Any:
        await job.log(f"began {free}")
        await job.report({f"done{free}": free} if free else 40)
        if job.name.startswith("fail"):
            raise UnrecoverableError(f"no money {free}")
        return {f"paid{free}": [free]}

    async with (
        Queue(name, **options) as queue,
        Queue(dead, **options) as letters,
        FlowProducer(**options) as flows,
    ):
        await queue.add(
            f"work{free}", {f"order{free}": free, "card": "4111"}, job_id=f"works{text}"
        )
        await queue.add(
            f"fail{free}", {f"order{free}": free, "card": "4111"}, job_id=f"fails{text}"
        )
        stuck = await flows.add_group(
            f"stuck{free}",
            [GroupJob(f"book{free}", queue_name=name), GroupJob(f"failing{free}", queue_name=name)],
            {f"book{free}": Compensation(f"unbook{free}")},
        )

        staged = await flows.add_group(
            f"staged{free}",
            [
                GroupJob(f"draft{free}", queue_name=name, key="draft"),
                GroupSignal("approval", after=["draft"]),
                GroupJob(f"send{free}", queue_name=name, key="send", after=["approval"]),
            ],
        )
        blocked = await flows.add_group(
            f"blocked{free}",
            [
                GroupJob(f"commit{free}", queue_name=name, key="commit", pivot=True),
                GroupJob(f"failing late{free}", queue_name=name, key="late", after=["commit"]),
            ],
        )

        async def unable(job: Any) -> None:
            raise UnrecoverableError(f"cannot undo {free}")

        async with (
            Worker(name, handler, worker_name=f"w{text}" if text.isascii() else None, **options),
            compensation_worker(name, unable, **options),
        ):
            await wait_until(lambda: _is_stuck(queue, stuck.group_id))
            await wait_until(lambda: _is_stuck(queue, blocked.group_id, "BLOCKED"))
            await wait_until(lambda: _is_awaited(queue, staged.group_id))
            await wait_until(lambda: _is_finished(queue, f"fails{text}", f"works{text}"))
        await queue.add(f"fails again{free}", {f"o{free}": free})
        async with Worker(name, handler, dead_letter_queue=dead, **options):
            await wait_until(letters.get_dead_letter_count)
        group = await flows.add_group(f"trip{free}", [GroupJob(f"fly{free}", queue_name=name)])
        await queue.add(f"later{free}", {free: free}, job_id=f"later{text}", delay=3_600_000)
        await queue.add(f"urgent{free}", {free: free}, job_id=f"urgent{text}", priority=3)
        for number in range(3):
            await queue.add(f"in lane{free}", number, lane=lane, job_id=f"l{number}{text}")
        await queue.upsert_job_scheduler(
            f"nightly{text}", cron="0 3 * * *", template=NewJob(f"report{free}", {free: free})
        )
        tree = await flows.add(
            FlowJob(
                f"ship{free}",
                queue_name=name,
                job_id=f"ship{text}",
                children=[FlowJob(f"pack{free}", queue_name=name, job_id=f"pack{text}")],
            )
        )
        [letter] = await letters.get_dead_letter_jobs()
        yield World(
            queue,
            letters,
            lane,
            group.group_id,
            stuck.group_id,
            staged.group_id,
            blocked.group_id,
            letter.id,
            tree.job.id,
            text,
        )


async def _is_stuck(queue: Queue, group_id: str, state: str = "FAILED_COMPENSATION") -> bool:
    info = await queue.get_group_state(group_id)
    return info is not None and info.state == state


async def _is_awaited(queue: Queue, group_id: str) -> bool:
    return any(one.status == "awaited" for one in await queue.get_group_jobs(group_id))


async def _is_finished(queue: Queue, *ids: str) -> bool:
    states = [await queue.get_state(job_id) for job_id in ids]
    return all(state in ("completed", "failed") for state in states)
