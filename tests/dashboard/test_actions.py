"""Every action: it asks where it should, and its effect is read back from the server."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.dashboard.conftest import Visitor, confirmed_by
from tests.dashboard.world import World
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from tests.servers import Server
from toril import (
    FlowProducer,
    GroupJob,
    GroupSignal,
    NewJob,
    Queue,
    RateLimit,
    UnrecoverableError,
    Worker,
)
from toril.dashboard import actions, dashboard
from toril.dashboard.actions import ACTIONS
from toril.dashboard.showing import link

Visit = Callable[..., Visitor]


@pytest.fixture
async def queue(queue: Queue) -> Queue:
    await queue.add("charge", {"order": 1}, job_id="one")
    return queue


async def fail(queue: Queue, url: str, prefix: str, *ids: str) -> None:
    """Let these jobs fail."""

    async def handler(job: Any) -> None:
        raise UnrecoverableError("no money")

    await queue.add_bulk([NewJob("charge", {"order": 1}, job_id=one) for one in ids])
    async with Worker(queue.name, handler, connection=url, prefix=prefix):
        # That of the fixture as well: whoever closes may hand back what it has just taken.
        await wait_until(lambda: _failed(queue, "one", *ids))


async def _failed(queue: Queue, *ids: str) -> bool:
    return all([await queue.get_state(one) == "failed" for one in ids])


async def asked(visitor: Visitor, verb: str, *words: str, **fields: Any) -> None:
    """The action does nothing before a question with these words was answered."""
    question = await visitor.do(verb, sure=False, **fields)
    assert question.status_code == 200, question.text
    text = html.unescape(question.text)
    assert "Are you sure?" in text
    for word in words:
        assert word in text, word


async def done(visitor: Visitor, verb: str, **fields: Any) -> str:
    """Do it; returns the page on which one lands, which says what came of it."""
    answer = await visitor.do(verb, back="/queue?queue=pay", **fields)
    assert answer.status_code == 303, answer.text
    page = await visitor.get(answer.headers["location"])
    assert page.status_code == 200
    assert 'class="notice good" role="status"' in page.text
    return html.unescape(page.text)


async def test_a_queue_is_paused_limited_and_given_jobs(visit: Visit, queue: Queue):
    visitor = visit()

    await done(visitor, "pause", queue="pay")
    assert await queue.is_paused()
    await done(visitor, "resume", queue="pay")
    assert not await queue.is_paused()
    await done(visitor, "concurrency", queue="pay", concurrency="7")
    assert await queue.get_global_concurrency() == 7
    await done(visitor, "concurrency", queue="pay", concurrency="")
    assert await queue.get_global_concurrency() is None
    await done(visitor, "rate-limit", queue="pay", max="5", duration="2s")
    assert await queue.get_global_rate_limit() == RateLimit(5, 2000)
    await done(visitor, "rate-limit", queue="pay")
    assert await queue.get_global_rate_limit() is None
    page = await done(
        visitor, "add", queue="pay", name="refund", data='{"order": 2}', job_id="two",
        lane="ann", attempts="4", delay="1h",
    )  # fmt: skip
    assert "added job two" in page
    job = await queue.get_job("two")
    assert job is not None
    assert (job.name, job.data, job.lane, job.opts.attempts) == ("refund", {"order": 2}, "ann", 4)
    assert await queue.get_state("two") == "delayed"


async def test_jobs_are_retried_promoted_cancelled_and_removed(
    visit: Visit, queue: Queue, url: str, prefix: str
):
    visitor = visit()
    await fail(queue, url, prefix, "a", "b", "c")
    await queue.add("later", job_id="later", delay=3_600_000)

    await done(visitor, "retry", queue="pay", id="a")
    assert await queue.get_state("a") == "waiting"
    await asked(visitor, "retry", "Retry 2 jobs", "'pay'", queue="pay", id=["b", "c"])
    assert await queue.get_state("b") == "failed"
    assert "2 of 2 done" in await done(visitor, "retry", queue="pay", id=["b", "c"])
    assert await queue.get_state("c") == "waiting"
    await done(visitor, "promote", queue="pay", id="later")
    assert await queue.get_state("later") == "waiting"
    await asked(visitor, "cancel", "Cancel 1 job of the queue 'pay'?", queue="pay", id="a")
    await done(visitor, "cancel", queue="pay", id="a")
    job = await queue.get_job("a")
    assert job is not None
    assert "by local on the dashboard" in (job.failed_reason or "")
    await asked(visitor, "remove", "Remove 1 job", queue="pay", id="b")
    assert await queue.get_job("b")
    await done(visitor, "remove", queue="pay", id="b")
    assert await queue.get_job("b") is None
    page = await done(visitor, "retry", queue="pay", id=["a", "gone"])
    assert "1 of 2 done" in page
    page = await done(visitor, "remove", queue="pay", id=["b", "c"])
    assert "1 of 2 done; first refusal: it no longer exists" in page, "as of one job"


async def test_a_job_is_edited_and_retried(visit: Visit, queue: Queue, url: str, prefix: str):
    visitor = visit()
    await fail(queue, url, prefix, "a")

    broken = await visitor.do("edit-retry", queue="pay", id="a", data="{oops")
    assert broken.status_code == 400
    assert await queue.get_state("a") == "failed"
    await done(visitor, "edit-retry", queue="pay", id="a", data='{"order": 99}')
    job = await queue.get_job("a")
    assert job is not None
    assert job.data == {"order": 99}
    assert job.attempts_made == 0
    assert await queue.get_state("a") == "waiting"
    waiting = await visitor.do("edit-retry", queue="pay", id="a", data="{}")
    assert waiting.status_code == 409
    assert await data_of(queue, "a") == {"order": 99}


async def data_of(queue: Queue, job_id: str) -> Any:
    job = await queue.get_job(job_id)
    assert job is not None
    return job.data


async def test_what_is_not_edited_stays_as_it_is(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    """Half a character became a question mark."""
    visitor = visit()
    await fail(queue, url, prefix, "a")
    text = '{"cut": "caf\\u00e9 \\ud83d", "wei": 1000000000000000000000, "amount": 1}'
    await client.hset(f"{prefix}:pay:a", "data", text)
    page = (await visitor.get(link("", "/job", queue="pay", id="a"))).text
    found = re.search(r'<textarea name="data"[^>]*>(.*?)</textarea>', page, re.S)
    assert found is not None
    shown = html.unescape(found[1])

    await done(visitor, "edit-retry", queue="pay", id="a", data=shown.replace('t": 1', 't": 2'))

    assert await data_of(queue, "a") == {**json.loads(text), "amount": 2}


async def test_an_edit_that_is_refused_leaves_the_data_of_a_member(
    visit: Visit, url: str, prefix: str
):
    """A group counts it as completed, so it is not run again."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    members = [
        GroupJob("charge", queue_name="pay", data={"euros": 10}),
        GroupJob("later", queue_name="pay", delay=3_600_000),
    ]

    async def handler(job: Any) -> None:
        pass

    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        await flow.add_group("order", members, group_id="g")
        async with Worker("pay", handler, **options):
            await wait_until(lambda: _has(queue, "completed"))
        [job_id] = [one.job_id for one in await queue.get_group_jobs("g") if one.key == "charge"]

        answer = await visit().do("edit-retry", queue="pay", id=job_id, data='{"euros": 99}')

        assert answer.status_code == 409
        assert "Nothing was changed" in answer.text
        assert await data_of(queue, job_id) == {"euros": 10}


async def test_of_two_who_edit_one_job_only_one_changes_it(
    visit: Visit, queue: Queue, url: str, prefix: str
):
    both = [visit(), visit(("127.0.0.1", 5001))]
    await fail(queue, url, prefix, "a")
    for visitor in both:
        await visitor.get("/")

    answers = await asyncio.gather(
        *(
            visitor.do("edit-retry", queue="pay", id="a", data=f'{{"of": {number}}}')
            for number, visitor in enumerate(both)
        )
    )

    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [303, 409]
    assert await data_of(queue, "a") == {"of": codes.index(303)}


async def test_all_jobs_of_a_state_are_changed_after_their_number_was_said(
    visit: Visit, queue: Queue, url: str, prefix: str
):
    visitor = visit()
    await fail(queue, url, prefix, *(f"f{number}" for number in range(12)))
    failed = await queue.get_failed_count()
    await queue.add_bulk([NewJob("later", delay=3_600_000) for _ in range(5)])

    await asked(visitor, "retry-all", f"({failed} jobs)", "'pay'", queue="pay", state="failed")
    assert f"{failed} jobs retried" in await done(visitor, "retry-all", queue="pay", state="failed")
    assert await queue.get_failed_count() == 0
    await asked(visitor, "promote-all", "(5 jobs)", queue="pay")
    await done(visitor, "promote-all", queue="pay")
    assert await queue.get_delayed_count() == 0
    waiting = await queue.get_waiting_count()
    await asked(visitor, "remove-all", f"{waiting} jobs", "'pay'", queue="pay", state="waiting")
    assert await queue.get_waiting_count() == waiting
    await done(visitor, "remove-all", queue="pay", state="waiting")
    assert await queue.get_waiting_count() == 0


async def test_all_jobs_of_a_state_are_cancelled_wherever_they_wait(
    visit: Visit, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toril.dashboard.actions.CANCELLED_AT_ONCE", 7)
    visitor = visit()
    await queue.add_bulk([NewJob("later", delay=3_600_000) for _ in range(20)])
    await queue.add_bulk([NewJob("now") for _ in range(20)])
    await queue.add_bulk([NewJob("in turn", lane="one") for _ in range(5)])

    await asked(visitor, "cancel-all", "Cancel all delayed jobs (20 jobs)", queue="pay",
                state="delayed")  # fmt: skip
    assert await queue.get_delayed_count() == 20
    for state, count in (("delayed", 20), ("waiting", 26)):
        page = await done(visitor, "cancel-all", queue="pay", state=state)
        assert f"{count} jobs cancelled" in page
        assert await queue.get_job_counts(state) == {state: 0}
    assert await queue.get_failed_count() == 46
    wrong = await visitor.do("cancel-all", queue="pay", state="nonsense")
    assert wrong.status_code == 400


async def test_cancelling_all_ends_although_jobs_stay_where_they_are(
    visit: Visit, queue: Queue, url: str, prefix: str
):
    """Running jobs are told to stop and stay active meanwhile."""
    stopped = asyncio.Event()

    async def handler(job: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    await queue.add_bulk([NewJob("long") for _ in range(2)])
    async with Worker("pay", handler, connection=url, prefix=prefix, concurrency=3):
        await wait_until(lambda: _active(queue, 3))
        page = await done(visit(), "cancel-all", queue="pay", state="active")
        await asyncio.wait_for(stopped.wait(), 60)

    assert "3 jobs cancelled" in page


async def _active(queue: Queue, count: int) -> bool:
    return await queue.get_active_count() == count


async def test_dead_letters_are_replayed_repaired_and_purged(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    visitor = visit()
    await forge(client, prefix, "dead", 30, source="pay", names=("charge", "mail"))
    async with Queue("dead", connection=url, prefix=prefix) as dead:
        await client.hset(f"{prefix}:dead:meta", "opts.maxLenEvents", 10000)
        first, second, *_ = await dead.get_dead_letter_jobs()

        page = await visitor.get("/dead-letters?queue=dead")
        assert page.status_code == 200
        await done(visitor, "replay", queue="dead", id=first.id)
        assert await dead.get_job(first.id) is None
        assert await queue.get_waiting_count() == 2
        repaired = await done(
            visitor, "replay", queue="dead", id=second.id, data='{"n": "mended"}', to="other"
        )
        assert "sent back as job" in repaired
        async with Queue("other", connection=url, prefix=prefix) as other:
            [job] = await other.get_waiting()
            assert job.data["n"] == "mended"
        mails = await dead.purge_dead_letters(name="mail", dry_run=True)
        await asked(
            visitor, "purge", f"Remove {mails} dead letters", "'dead'", queue="dead", name="mail"
        )
        await done(visitor, "purge", queue="dead", name="mail")
        assert await dead.purge_dead_letters(name="mail", dry_run=True) == 0
        left = await dead.get_dead_letter_count()
        await asked(visitor, "replay-all", f"Send {left} dead letters", "dry run", queue="dead")
        assert await dead.get_dead_letter_count() == left
        await done(visitor, "replay-all", queue="dead")
        assert await dead.get_dead_letter_count() == 0


async def test_letters_that_came_after_the_question_are_asked_about_anew(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    """Somebody says yes to 3 letters; those of the outage that began meanwhile went, too."""
    visitor = visit()
    await forge(client, prefix, "dead", 3, source="pay")
    async with Queue("dead", connection=url, prefix=prefix) as dead:
        question = await visitor.do("purge", sure=False, queue="dead", name="charge")
        assert "Remove 3 dead letters" in question.text
        await forge(client, prefix, "dead", 40, source="pay")

        again = await visitor.post(
            "/do/purge", queue="dead", name="charge", confirmed=confirmed_by(question.text)
        )

        assert await dead.get_dead_letter_count() == 43
        assert "Remove 43 dead letters" in again.text
        assert "Their number has changed" in again.text
        await visitor.do("purge", queue="dead", name="charge")
        assert await dead.get_dead_letter_count() == 0


async def test_a_replay_that_is_resumed_is_asked_about_as_it_will_go_on(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    """The question counted what had died since, and the answer what had gone before."""
    visitor = visit()
    await forge(client, prefix, "dead", 40, source="pay")

    def stop(now: Any) -> None:
        raise RuntimeError("somebody stops it")

    async with Queue("dead", connection=url, prefix=prefix) as dead:
        with pytest.raises(RuntimeError):
            await dead.replay_all_dead_letters(rate=100, on_progress=stop)
        left, stopped_at = await dead.get_dead_letter_count(), await _now_ms(client)
        await wait_until(lambda: _is_later(client, stopped_at))
        await forge(client, prefix, "dead", 3, source="pay")
        for number in (41, 42, 43):
            await client.hset(f"{prefix}:dead:{number}", "timestamp", await _now_ms(client))

        words = f"Send {left} dead letters"
        await asked(visitor, "replay-all", words, queue="dead", resume="yes")
        await done(visitor, "replay-all", queue="dead", resume="yes")

        assert f"{left} dead letters sent back" in (await visitor.get("/log")).text
        assert await dead.get_dead_letter_count() == 3


async def _now_ms(client: Any) -> int:
    seconds, micros = await client.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def _is_later(client: Any, than_ms: int) -> bool:
    return await _now_ms(client) > than_ms


def buttons(page: str, verb: str) -> list[dict[str, str]]:
    """What the buttons of a page send that stand for all letters of a group."""
    forms = re.findall(rf'<form method="post" action="/do/{verb}">(.*?)</form>', page, re.S)
    return [
        {
            name: html.unescape(value)
            for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', one)
        }
        for one in forms
    ]


@pytest.mark.parametrize("verb", ["purge", "replay-all"])
async def test_the_buttons_of_a_group_mean_its_letters_on_the_page_and_no_others(
    verb: str, visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    """Those of "(no fingerprint)" meant all, and those of a filtered page forgot its filter."""
    visitor = visit()
    await forge(client, prefix, "dead", 4, source="pay", names=("charge", "mail"))
    async with Queue("dead", connection=url, prefix=prefix) as dead:
        theirs = {"_dlqMeta": {"sourceQueue": "pay", "originalJobId": "1", "failedReason": "no"}}
        await dead.add_bulk([NewJob(name, theirs) for name in ("charge", "charge", "mail")])
        where = link("", "/dead-letters", queue="dead", name="charge", since="9999d")

        page = (await visitor.get(where)).text
        ours, none = sorted(buttons(page, verb)[:2], key=lambda sent: sent["no_fingerprint"])
        assert none.pop("fingerprint") == ""
        words = ("2 dead letters", "name charge", "no fingerprint")
        await asked(visitor, verb, *words, **none)
        await visitor.do(verb, **none)
        left = await dead.get_dead_letter_jobs(0, -1, newest_first=False)
        assert sorted(job.name for job in left) == ["charge", "charge", "mail", "mail", "mail"]
        await asked(visitor, verb, "2 dead letters", "fingerprint ConnectionError@", **ours)
        await visitor.do(verb, **ours)
        left = await dead.get_dead_letter_jobs(0, -1, newest_first=False)
        assert [job.name for job in left].count("mail") == len(left) == 3


async def test_a_page_shows_the_letters_without_a_fingerprint(
    visit: Visit, queue: Queue, url: str, prefix: str, client: Any
):
    visitor = visit()
    await forge(client, prefix, "dead", 3, source="pay")
    async with Queue("dead", connection=url, prefix=prefix) as dead:
        theirs = {"_dlqMeta": {"sourceQueue": "pay", "originalJobId": "1", "failedReason": "no"}}
        job = await dead.add("theirs", theirs)
        of_job = (await visitor.get(link("", "/job", queue="dead", id=job.id))).text
        where = html.unescape(
            re.search(r'<dt>Fingerprint</dt><dd><a href="([^"]+)">none', of_job)[1]
        )

        page = (await visitor.get(where)).text

        assert re.findall(r'name="id" value="([^"]+)"', page) == [job.id]
        assert '<input type="checkbox" name="no_fingerprint" value="yes" checked>' in page
        (sent,) = buttons(page, "purge")
        await asked(visitor, "purge", "1 dead letter", "no fingerprint", **sent)
        (whole,) = re.findall(r'action="/do/replay-all" class="fields">(.*?)</form>', page, re.S)
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', whole))
        await asked(visitor, "purge", "1 dead letter", "no fingerprint", **fields)
        both = await visitor.do("purge", queue="dead", fingerprint="x", no_fingerprint="yes")
        assert both.status_code == 400
        empty = dict.fromkeys(("name", "failed_reason", "fingerprint", "since"), "")
        await asked(visitor, "purge", "4 dead letters", queue="dead", **empty)


async def test_a_long_operation_shows_how_far_it_is_and_is_stopped(
    visit: Visit,
    queue: Queue,
    url: str,
    prefix: str,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    visitor = visit()
    await forge(client, prefix, "dead", 40, source="pay")
    await client.hset(f"{prefix}:dead:meta", "opts.maxLenEvents", 10000)
    async with Queue("dead", connection=url, prefix=prefix) as dead:
        with monkeypatch.context() as patch:
            patch.setattr("toril.dashboard.actions.SHORT_S", 1.0)
            await visitor.do("replay-all", queue="dead", rate="1")
        page = (await visitor.get("/dead-letters?queue=dead")).text
        assert "<progress" in page
        assert "of about 40" in page
        operation = page.split('name="operation" value="')[1].split('"')[0]
        await wait_until(lambda: _fewer(dead, 40))
        await visitor.do("stop", queue="pay", operation=operation)
        await asyncio.sleep(0)
        await visitor.do("stop", queue="dead", operation=operation)

        async def is_stopped() -> bool:
            return "stopped after" in (await visitor.get("/dead-letters?queue=dead")).text

        await wait_until(is_stopped)
        left = await dead.get_dead_letter_count()
        assert 0 < left < 40
        await visitor.do("replay-all", queue="dead", resume="yes")
        assert await dead.get_dead_letter_count() == 0
        assert await queue.get_waiting_count() == 41


async def _fewer(letters: Queue, count: int) -> bool:
    return await letters.get_dead_letter_count() < count


async def test_groups_are_cancelled_retried_and_resolved(visit: Visit, shop: World):
    visitor = visit()
    queue, name = shop.queue, shop.queue.name

    await asked(visitor, "cancel-group", "of 1 job", f"{name!r}", queue=name, id=shop.group)
    await done(visitor, "cancel-group", queue=name, id=shop.group)
    info = await queue.get_group_state(shop.group)
    assert info is not None
    assert info.state == "FAILED"
    await asked(
        visitor, "resolve-group", "by hand", queue=name, id=shop.stuck_group, note="refunded"
    )
    await done(visitor, "resolve-group", queue=name, id=shop.stuck_group, note="refunded")
    info = await queue.get_group_state(shop.stuck_group)
    assert info is not None
    assert info.note == "refunded (local)"
    again = await visitor.do("retry-compensation", queue=name, id=shop.stuck_group)
    assert again.status_code == 409, "it is not failed compensation any more"
    log = (await visitor.get("/log")).text
    assert "refused" in log


async def test_a_compensation_is_retried(visit: Visit, shop: World):
    page = await done(visit(), "retry-compensation", queue=shop.queue.name, id=shop.stuck_group)

    assert "1 job tried again" in page
    info = await shop.queue.get_group_state(shop.stuck_group)
    assert info is not None
    assert info.state == "COMPENSATING"


async def test_a_signal_is_given_and_a_blocked_group_goes_on(visit: Visit, url: str, prefix: str):
    visitor = visit()
    options: dict[str, Any] = {"connection": url, "prefix": prefix}

    async def handler(job: Any) -> None:
        if job.name == "ship":
            raise UnrecoverableError("no lorry")

    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        members = [
            GroupJob("charge", queue_name="pay", pivot=True),
            GroupSignal("approval", after=["charge"]),
            GroupJob("ship", queue_name="pay", after=["approval"]),
        ]
        await flow.add_group("order", members, group_id="g")
        async with Worker("pay", handler, **options):
            await wait_until(lambda: _has(queue, "awaited"))
            page = (await visitor.get("/group?queue=pay&id=g")).text
            assert "Say how it ended" in page
            assert "planned" in page
            told = {"queue": "pay", "id": "g", "member": "approval", "result": '{"by": 1}'}
            await asked(visitor, "complete-member", "'approval'", **told)
            await done(visitor, "complete-member", **told)
            await wait_until(lambda: _has(queue, "failed"))
        page = (await visitor.get("/group?queue=pay&id=g")).text
        assert "point of no return" in page
        assert "blocked" in page, "the timeline"
        assert "1 member tried again" in await done(visitor, "retry-group", queue="pay", id="g")
        assert (await visitor.do("retry-group", queue="pay", id="g")).status_code == 409


async def _has(queue: Queue, status: str, key: str = "") -> bool:
    members = await queue.get_group_jobs("g")
    return any(one.status == status and key in ("", one.key) for one in members)


async def test_who_resolves_a_blocked_group_is_told_that_it_continues(
    visit: Visit, url: str, prefix: str
):
    visitor = visit()
    options: dict[str, Any] = {"connection": url, "prefix": prefix}

    async def handler(job: Any) -> None:
        if job.name in ("ship", "mail"):
            raise UnrecoverableError("no lorry")

    members = [
        GroupJob("charge", queue_name="pay", pivot=True),
        GroupJob("ship", queue_name="pay", after=["charge"]),
        GroupJob("mail", queue_name="post", after=["charge"]),
        GroupJob("thank", queue_name="pay", after=["ship", "mail"]),
    ]
    told = {"queue": "pay", "id": "g", "note": "by bike"}
    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        await flow.add_group("order", members, group_id="g")
        async with Worker("pay", handler, **options):
            await wait_until(lambda: _has(queue, "failed", "ship"))
            page = (await visitor.get("/group?queue=pay&id=g")).text
            assert "Resolve the group" not in page
            await asked(
                visitor, "resolve-group", "It is not closed", "by hand ('ship')",
                "the members after it run", "'by bike'", "Let the group continue", **told,
            )  # fmt: skip
            first = await visitor.do("resolve-group", sure=False, **told)
            async with Worker("post", handler, **options):
                await wait_until(lambda: _has(queue, "failed", "mail"))
            old = {**told, "confirmed": confirmed_by(first.text)}
            again = await visitor.do("resolve-group", sure=False, **old)
            assert "('ship', 'mail')" in html.unescape(again.text), "not what was asked before"
            assert not await _has(queue, "completed", "ship")
            new = {**told, "confirmed": confirmed_by(again.text), "back": "/queue?queue=pay"}
            answer = await visitor.do("resolve-group", sure=False, **new)
            page = (await visitor.get(answer.headers["location"])).text
            assert "let the blocked group g continue: by bike" in page
            assert "the group continues" in page
            await wait_until(lambda: _has(queue, "completed", "thank"))


async def test_a_group_is_resolved_only_as_it_was_when_somebody_said_yes(
    visit: Visit, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    """Another member fails after the question has been answered, and before the group is told."""
    visitor = visit()
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    make = actions.make

    async def handler(job: Any) -> None:
        if job.name in ("label", "invoice"):
            raise UnrecoverableError("no")

    members = [
        GroupJob("ship", queue_name="pay", pivot=True),
        GroupJob("label", queue_name="pay", after=["ship"]),
        GroupJob("invoice", queue_name="pay", after=["label"]),
        GroupJob("close", queue_name="pay", after=["invoice"]),
    ]
    told = {"queue": "pay", "id": "g", "note": "printed by hand"}
    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        await flow.add_group("order", members, group_id="g")
        async with Worker("pay", handler, **options):
            await wait_until(lambda: _has(queue, "failed", "label"))

            async def make_later(context: Any, change: Any) -> str:
                await queue.resolve_group("g", "by somebody else")
                await wait_until(lambda: _has(queue, "failed", "invoice"))
                return await make(context, change)

            with monkeypatch.context() as patch:
                patch.setattr(actions, "make", make_later)
                refused = await visitor.do("resolve-group", **told)
            assert refused.status_code == 409
            assert "BLOCKED now ('invoice')" in html.unescape(refused.text)
            assert await _has(queue, "failed", "invoice")
            await asked(visitor, "resolve-group", "by hand ('invoice')", **told)
            await done(visitor, "resolve-group", **told)
            await wait_until(lambda: _has(queue, "completed", "close"))


async def test_members_that_a_question_does_not_name_are_part_of_it(
    visit: Visit, url: str, prefix: str
):
    """Of 22 the first 20 are named: if another is among the two that are not, it is asked anew."""
    visitor = visit()
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    names = [f"m{number:02}" for number in range(22)]

    async def handler(job: Any) -> None:
        if job.name != "ship":
            raise UnrecoverableError("no")

    members = [GroupJob("ship", queue_name="pay", pivot=True)]
    members += [GroupJob(name, queue_name="pay", after=["ship"]) for name in names]
    members.append(GroupJob("last", queue_name="pay", after=["m21"]))
    told = {"queue": "pay", "id": "g", "note": "by hand"}
    async with FlowProducer(**options) as flow, Queue("pay", **options) as queue:
        await flow.add_group("order", members, group_id="g")

        async def have_failed(*wanted: str) -> bool:
            found = await queue.get_group_jobs("g")
            return [one.key for one in found if one.status == "failed"] == list(wanted)

        async with Worker("pay", handler, **options):
            await wait_until(lambda: have_failed(*names))
            first = await visitor.do("resolve-group", sure=False, **told)
            assert "'m19' and 2 more)" in html.unescape(first.text)
            await queue.complete_member("g", "m21")
            await wait_until(lambda: have_failed(*names[:21], "last"))

        confirmed = confirmed_by(first.text)
        again = await visitor.do("resolve-group", sure=False, confirmed=confirmed, **told)
        assert "'m19' and 2 more)" in html.unescape(again.text)
        assert await have_failed(*names[:21], "last")
        assert "the group continues" in await done(visitor, "resolve-group", **told)
        assert await have_failed()


async def test_who_closes_a_group_is_told_what_was_not_undone(visit: Visit, shop: World):
    visitor, queue, name = visit(), shop.queue, shop.queue.name
    members = await queue.get_group_jobs(shop.stuck_group)
    (broken,) = [one.key for one in members if one.compensation_status == "failed"]
    told = {"queue": name, "id": shop.stuck_group, "note": "refunded"}

    await asked(
        visitor, "resolve-group", f"could not be undone counts as undone ({broken!r})", **told
    )

    assert (await visitor.do("resolve-group", queue=name, id="none", note="x")).status_code == 409


async def make_it_ask(client: Any, queue: Queue, group_id: str, job_id: str) -> None:
    """A member is gone as BullMQ removes it, and the log of events does not reach back so far."""
    await client.lrem(queue.keys.wait, 1, job_id)
    await client.delete(queue.keys.job(job_id))
    pipeline = client.pipeline(transaction=False)
    for _ in range(1200):
        told = {"event": "progress", "jobId": "x"}
        pipeline.xadd(queue.keys.events, told, maxlen=1000, approximate=False)
    await pipeline.execute()
    await queue.reconcile_groups()
    info = await queue.get_group_state(group_id)
    assert info is not None
    assert info.needs_a_person


@pytest.mark.parametrize("verb", ["complete-member", "fail-member"])
async def test_a_group_that_asks_is_told_how_a_member_ended(
    visit: Visit, shop: World, client: Any, verb: str
):
    visitor, queue, name = visit(), shop.queue, shop.queue.name
    [member] = await queue.get_group_jobs(shop.group)
    await make_it_ask(client, queue, shop.group, member.job_id)

    page = html.unescape((await visitor.get(f"/group?queue={name}&id={shop.group}")).text)
    assert "It is not known how a member ended" in page
    listed = (await visitor.get("/groups")).text
    assert listed.count(">needs a person<") == 3
    fields = {"queue": name, "id": shop.group, "member": member.job_id, "note": "it was not"}
    await asked(visitor, verb, repr(member.job_id), repr(name), **fields)
    await done(visitor, verb, **fields)

    info = await queue.get_group_state(shop.group)
    assert info is not None
    assert info.state == ("COMPLETED" if verb == "complete-member" else "FAILED")
    if verb == "fail-member":
        assert "it was not (local)" in (info.reason or "")


async def test_lanes_are_paused_changed_and_drained(visit: Visit, shop: World):
    visitor, queue = visit(), shop.queue
    on = {"queue": queue.name, "lane": shop.lane}

    async def lane() -> Any:
        found = await queue.get_lane(shop.lane)
        assert found is not None
        return found

    await done(visitor, "pause-lane", **on)
    assert (await lane()).is_paused
    assert "paused" in (await visitor.get(f"/lanes?queue={queue.name}")).text
    await done(visitor, "resume-lane", **on)
    assert not (await lane()).is_paused
    await done(visitor, "lane-settings", **on, weight="3", concurrency="2", max="9", duration="1m")
    assert ((await lane()).weight, (await lane()).concurrency) == (3, 2)
    await asked(visitor, "drain-lane", "3 jobs", **on)
    await done(visitor, "drain-lane", **on)
    assert (await lane()).depth == 0


async def test_schedules_are_run_now_paused_changed_and_removed(visit: Visit, shop: World):
    visitor, queue = visit(), shop.queue

    on = {"queue": queue.name, "id": "nightly"}
    before = await queue.get_job_scheduler("nightly")
    await done(visitor, "run-schedule", **on)
    waiting = [job.name for job in await queue.get_waiting()]
    assert "report" in waiting
    assert await queue.get_job_scheduler("nightly") == before
    await done(visitor, "pause-schedule", **on)
    assert (await queue.get_job_scheduler("nightly")).is_paused
    assert "s-paused" in (await visitor.get("/schedules")).text
    await done(visitor, "change-schedule", **on, every="10m", limit="7")
    await done(visitor, "resume-schedule", **on)
    found = await queue.get_job_scheduler("nightly")
    assert (found.every, found.limit, found.is_paused) == (600_000, 7, False)
    await done(visitor, "change-schedule", **on, cron="0 3 * * *", tz="Asia/Tokyo")
    found = await queue.get_job_scheduler("nightly")
    assert (found.cron, found.tz, found.limit) == ("0 3 * * *", "Asia/Tokyo", 7)
    answer = await visitor.do("change-schedule", **on, cron="at tea time")
    assert answer.status_code == 400
    assert await queue.get_job_scheduler("nightly") == found
    await asked(visitor, "remove-schedule", "'nightly'", queue=queue.name, id="nightly")
    await done(visitor, "remove-schedule", queue=queue.name, id="nightly")
    assert await queue.get_job_scheduler("nightly") is None


async def test_a_change_is_made_although_it_cannot_be_noted(
    start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
):
    """A server without memory writes no notes, and lets jobs be removed."""
    server = start_server()
    visitor = Visitor(dashboard(connection=server.url))
    async with Queue("pay", connection=server.url) as queue:
        await queue.add_bulk([NewJob("x", job_id=f"j{number}") for number in range(9)])
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", 1)

        page = await done(visitor, "remove", queue="pay", id="j0")
        assert "remove job j0" in page
        assert "The server could not write this into the log." in page
        assert await queue.get_job("j0") is None
        refused = await visitor.do("retry", queue="pay", id="j1")
        assert refused.status_code == 409
        assert "neither failed nor completed" in refused.text, "the refusal, not that of the note"
        await done(visitor, "remove-all", queue="pay", state="waiting")
        assert await queue.get_waiting_count() == 0
        log = (await visitor.get("/log")).text
        assert "8 jobs removed" in log
        assert log.count("not on the server") == 4
    assert "could not be noted" in caplog.text
    await visitor.http.aclose()
    await visitor.app.close()


async def test_what_is_wrong_is_said_and_changes_nothing(visit: Visit, queue: Queue):
    visitor = visit()
    for verb, fields, status in [
        ("nothing", {"queue": "pay"}, 404),
        ("pause", {"queue": "paymens"}, 404),
        ("pause", {"queue": "a:b"}, 404),
        ("pause", {}, 400),
        ("retry", {"queue": "pay"}, 400),
        ("retry", {"queue": "pay", "id": "gone"}, 409),
        ("add", {"queue": "pay", "name": "x", "data": "{"}, 400),
        ("add", {"queue": "pay", "name": ""}, 400),
        ("add", {"queue": "pay", "name": "x", "delay": "soon"}, 400),
        ("rate-limit", {"queue": "pay", "max": "1"}, 400),
        ("rate-limit", {"queue": "pay", "max": "-1", "duration": "1s"}, 400),
        ("concurrency", {"queue": "pay", "concurrency": "٣"}, 400),
        ("retry-all", {"queue": "pay", "state": "nonsense"}, 400),
        ("purge", {"queue": "pay"}, 409),
        ("cancel-group", {"queue": "pay", "id": "none"}, 409),
    ]:
        answer = await visitor.do(verb, **fields)
        assert answer.status_code == status, (verb, fields, answer.status_code)
        assert "Traceback" not in answer.text
    assert await queue.get_job_counts("waiting") == {"waiting": 1}


def test_every_action_is_tried_here():
    with open(__file__) as file:
        text = file.read()
    for verb in ACTIONS:
        assert f'"{verb}"' in text, verb
