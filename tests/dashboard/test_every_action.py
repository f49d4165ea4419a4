"""Every action by its own button in a real browser, with its effect read back from the server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import served
from tests.dashboard.test_actions import make_it_ask
from tests.dashboard.test_browser import too_wide
from tests.dashboard.world import World
from tests.features.dead_letters.forging import forge
from toril import FlowProducer, GroupJob, Queue, UnrecoverableError, compensation_worker
from toril.dashboard import dashboard
from toril.dashboard.actions import ACTIONS


class Operator:
    """Somebody with a mouse, or with a finger on a phone."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.wide: list[str] = []
        self.base = base
        self.done: list[str] = []
        page.set_default_timeout(60_000)
        page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if request.method == "POST" and "/do/" in request.url:
            self.done.append(request.url.rpartition("/do/")[2])

    def open(self, path: str) -> None:
        self.page.goto(self.base + path, wait_until="domcontentloaded")

    def unfold(self, title: str) -> None:
        self.page.click(f"summary:has-text('{title}')")

    def fill(self, **fields: str) -> None:
        for name, value in fields.items():
            self.page.fill(f"main details[open] [name={name}]:visible", value)

    def select(self, job_id: str) -> None:
        self.page.check(f"table.jobs input[value='{job_id}']")

    def press(self, label: str, *, sure: str = "") -> str:
        """Press a button, and the one that confirms; returns what the page says of it."""
        self._measure(label)
        with self.page.expect_navigation(wait_until="domcontentloaded"):
            self.page.click(f"main button:text-is('{label}'):visible")
        if sure:
            question: str = self.page.inner_text("form.confirm .notice")
            assert sure in question, question
            self._measure(f"{label}: sure?")
            with self.page.expect_navigation(wait_until="domcontentloaded"):
                self.page.click("form.confirm button")
        said: str = self.page.inner_text("p.notice.good[role=status]")
        return said

    def _measure(self, label: str) -> None:
        """The page as it is used, with its forms folded out, is moved up and down only."""
        if (wide := too_wide(self.page)) > 0:
            self.wide.append(f"{label}: {wide} px too wide")


@pytest.mark.parametrize("width", [360, 1400])
async def test_every_action_has_a_button_that_does_it(
    chromium: Any, url: str, prefix: str, client: Any, shop: World, width: int
):
    options: dict[str, Any] = {"connection": url, "prefix": prefix}
    queue = shop.queue
    async with FlowProducer(**options) as flows:
        asking = [
            await flows.add_group(f"asks-{n}", [GroupJob("fly", queue_name="pay")])
            for n in range(2)
        ]
    for node in asking:
        await make_it_ask(client, queue, node.group_id, node.jobs[0].id)
    await forge(client, prefix, "dead", 60, source="pay", names=("charge", "mail"))

    async def unable(job: Any) -> None:
        raise UnrecoverableError("still not")

    def work(browser: Any) -> tuple[list[str], dict[str, str], list[str]]:
        context = browser.new_context(viewport={"width": width, "height": 900})
        person = Operator(context.new_page(), base)
        said: dict[str, str] = {}
        jobs = "/queue?queue=pay&state="

        person.open(f"{jobs}waiting")
        said["pause"] = person.press("Pause")
        said["resume"] = person.press("Resume")
        person.unfold("Limits")
        person.fill(concurrency="7")
        said["concurrency"] = person.press("Set the concurrency")
        person.unfold("Limits")
        person.fill(max="50", duration="1m")
        said["rate-limit"] = person.press("Set the rate limit")
        person.unfold("Add a job")
        person.fill(name="refund", job_id="added", delay="1h")
        said["add"] = person.press("Add the job")

        person.open("/job?queue=pay&id=fails")
        person.unfold("Edit and retry")
        person.page.fill("textarea[name=data]", '{"order": 7}')
        said["edit-retry"] = person.press("Save and retry")
        person.open(f"{jobs}waiting")
        person.select("fails")
        said["cancel"] = person.press("Cancel selected", sure="Cancel 1 job of the queue 'pay'")
        person.open(f"{jobs}failed")
        person.select("fails")
        said["retry"] = person.press("Retry selected")
        person.open("/job?queue=pay&id=later")
        said["promote"] = person.press("Run now")
        person.open("/schedules")
        said["run-schedule"] = person.press("Run now")
        said["pause-schedule"] = person.press("Pause")
        said["resume-schedule"] = person.press("Resume")
        person.unfold("Change")
        person.fill(every="10m")
        said["change-schedule"] = person.press("Save")
        said["remove-schedule"] = person.press("Remove", sure="Remove 1 schedule, 'nightly'")
        person.open("/job?queue=pay&id=works")
        said["remove"] = person.press("Remove", sure="Remove 1 job")
        person.open(f"/group?queue=pay&id={shop.blocked_group}")
        said["retry-group"] = person.press("Run it again")
        person.open(f"{jobs}failed")
        said["retry-all"] = person.press("Retry all failed", sure="all failed jobs")
        person.open(f"{jobs}delayed")
        said["promote-all"] = person.press("Promote all delayed", sure="all delayed jobs")

        person.open("/lane?queue=pay&lane=lane")
        said["pause-lane"] = person.press("Pause")
        said["resume-lane"] = person.press("Resume")
        person.unfold("Settings")
        person.fill(weight="3")
        said["lane-settings"] = person.press("Change")
        said["drain-lane"] = person.press("Drain", sure="Remove the 3 jobs")

        person.open(f"/group?queue=pay&id={asking[0].group_id}")
        said["complete-member"] = person.press("It completed", sure="completed?")
        person.open(f"/group?queue=pay&id={asking[1].group_id}")
        person.fill(note="it never flew")
        said["fail-member"] = person.press("It failed", sure="failed")
        person.open(f"/group?queue=pay&id={shop.group}")
        said["cancel-group"] = person.press("Cancel the group", sure="of 1 job")
        person.open(f"/group?queue=pay&id={shop.stuck_group}")
        said["retry-compensation"] = person.press("Retry the compensation")
        # It fails again, and the page shows that by itself.
        person.page.wait_for_selector("main button:text-is('Resolve the group')")
        person.fill(note="paid back")
        said["resolve-group"] = person.press("Resolve the group", sure="fixed by hand")

        letters = "/dead-letters?queue=dead"
        person.open(letters)
        person.select("61")
        said["replay"] = person.press("Replay selected")
        person.open(f"{letters}&name=mail")
        person.unfold("Replay or purge all")
        said["purge"] = person.press("Purge", sure="for good?")
        person.open(letters)
        person.unfold("Replay or purge all")
        person.fill(rate="1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("toril.dashboard.actions.SHORT_S", 1.0)
            said["replay-all"] = person.press("Dry run, then replay", sure="dry run")
        # The page shows by itself that the first has gone back.
        person.page.wait_for_selector(".operation progress:not([value='0'])")
        person.open("/log")
        said["stop"] = person.press("Stop")

        person.open(f"{jobs}waiting")
        said["cancel-all"] = person.press("Cancel all waiting", sure="all waiting jobs")
        person.open(f"{jobs}failed")
        said["remove-all"] = person.press("Remove all failed", sure="all failed jobs")
        context.close()
        return person.done, said, person.wide

    async with (
        compensation_worker("pay", unable, **options),
        served(dashboard(connection=url, prefix=prefix)) as base,
    ):
        done, said, wide = await chromium(work)
        left = await shop.letters.get_dead_letter_count()

    assert set(done) == set(ACTIONS), "every action was made by a button"
    assert set(said) == set(ACTIONS)
    assert wide == []
    assert not await queue.is_paused()
    assert await queue.get_global_concurrency() == 7
    limit = await queue.get_global_rate_limit()
    assert limit is not None
    assert limit.max == 50
    assert await queue.get_job_counts("waiting", "failed", "delayed") == dict.fromkeys(
        ("waiting", "failed", "delayed"), 0
    )
    assert await queue.get_job("works") is None
    assert await queue.get_job_scheduler("nightly") is None
    lane = await queue.get_lane(shop.lane)
    assert lane is not None
    assert (lane.weight, lane.depth) == (3, 0)
    states = [await _state(queue, node.group_id) for node in asking]
    assert states == ["COMPLETED", "FAILED"]
    assert await _state(queue, shop.group) == "FAILED"
    info = await queue.get_group_state(shop.stuck_group)
    assert info is not None
    assert info.note == "paid back (local)"
    assert 0 < left < 31, "mails are purged, some were replayed, and the rest was stopped"


async def _state(queue: Queue, group_id: str) -> str:
    info = await queue.get_group_state(group_id)
    assert info is not None
    return info.state.value
