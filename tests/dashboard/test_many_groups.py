"""Groups in pages: neither very many of them nor very many members make a page large or dear."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.dashboard.conftest import Visitor
from toril import FlowProducer, GroupJob, Queue
from toril.dashboard.reading import MOST_ROWS, PER_PAGE

Visit = Callable[..., Visitor]
MANY = 10_000


@asynccontextmanager
async def forged(
    client: Any, prefix: str, name: str, pattern: str, count: int
) -> AsyncIterator[list[str]]:
    """So many groups that look like another one but have no members, the oldest first."""
    base = f"{prefix}:{name}:groups"
    record = await client.hgetall(f"{base}:{pattern}")
    ids = [f"0f0f0f0f-0000-4000-8000-{number:012}" for number in range(count)]
    for first in range(0, count, 1000):
        async with client.pipeline(transaction=False) as pipe:
            for number, group_id in enumerate(ids[first : first + 1000], first):
                pipe.hset(f"{base}:{group_id}", mapping=record)
                pipe.zadd(base, {group_id: number})
            await pipe.execute()
    yield ids
    await client.zrem(base, *ids)
    await client.unlink(*(f"{base}:{group_id}" for group_id in ids))


def shown(page: str) -> list[str]:
    links = re.findall(r'href="/group\?([^"]*)"', page)
    return [html.unescape(one).rpartition("id=")[2] for one in links if "start=" not in one]


async def test_ten_thousand_groups_are_turned_over_page_by_page(
    visit: Visit, url: str, prefix: str, client: Any
):
    async with (
        Queue("trips", connection=url, prefix=prefix) as queue,
        FlowProducer(connection=url, prefix=prefix) as flows,
    ):
        node = await flows.add_group("g", [GroupJob("fly", queue_name=queue.name)])
    async with forged(client, prefix, queue.name, node.group_id, MANY) as ids:
        await turn_over(visit(), client, [node.group_id, *reversed(ids)])


async def turn_over(visitor: Visitor, client: Any, newest_first: list[str]) -> None:
    for start in (0, PER_PAGE, MANY - PER_PAGE, MANY):
        path = f"/groups?queue=trips&start={start}"
        await client.config_resetstat()
        answer = await visitor.get(path)
        calls = await client.info("commandstats")
        assert sorted(shown(answer.text)) == sorted(newest_first[start : start + PER_PAGE]), start
        assert calls["cmdstat_hmget"]["calls"] <= PER_PAGE, "as many as it shows are read"
        assert ('rel="next"' in answer.text) == (start < MANY)
        assert ('rel="prev"' in answer.text) == (start > 0)
    (follow,) = re.findall(
        r'href="([^"]*)" rel="next"', (await visitor.get("/groups?queue=trips")).text
    )
    assert sorted(shown((await visitor.get(html.unescape(follow))).text)) == sorted(
        newest_first[PER_PAGE : 2 * PER_PAGE]
    )

    all_of_them = (await visitor.get("/groups")).text
    assert len(shown(all_of_them)) == MOST_ROWS
    assert '<a href="/groups?queue=trips">trips</a> 10,001 groups' in html.unescape(all_of_them)


async def test_a_state_is_searched_for_a_slice_at_a_time(
    visit: Visit, url: str, prefix: str, client: Any
):
    async with (
        Queue("trips", connection=url, prefix=prefix) as queue,
        FlowProducer(connection=url, prefix=prefix) as flows,
    ):
        node = await flows.add_group("g", [GroupJob("fly", queue_name=queue.name)])
    async with forged(client, prefix, queue.name, node.group_id, 2500) as ids:
        await client.hset(f"{prefix}:trips:groups:{ids[100]}", "state", "COMPLETED")
        found, pages = await search(visit(), "/groups?queue=trips&state=COMPLETED")

    assert found == [ids[100]]
    assert pages == 3


async def search(visitor: Visitor, path: str) -> tuple[list[str], int]:
    """All groups that a search finds, and in how many pages."""
    pages = 0
    found: list[str] = []
    while path:
        page = (await visitor.get(path)).text
        found += shown(page)
        pages += 1
        following = re.findall(r'href="([^"]*)" rel="next">keep searching', page)
        path = html.unescape(following[0]) if following else ""
    return found, pages


async def test_a_thousand_members_are_shown_in_pages(visit: Visit, url: str, prefix: str):
    async with (
        Queue("trips", connection=url, prefix=prefix) as queue,
        FlowProducer(connection=url, prefix=prefix) as flows,
    ):
        jobs = [
            GroupJob(f"fly-{n:04}", queue_name=queue.name, key=f"key-{n:04}") for n in range(999)
        ]
        last = GroupJob("land", queue_name=queue.name, key="land", after=["key-0998"])
        node = await flows.add_group("g", [*jobs, last])
        await queue.cancel_group(node.group_id)
    visitor = visit()
    path, seen, sizes = f"/group?queue=trips&id={node.group_id}", [], []
    while path:
        page = html.unescape((await visitor.get(path)).text)
        members = page.partition("<h2>Members</h2>")[2].partition("</tbody>")[0]
        seen += re.findall(r'<th scope="row">(?:<a [^>]*>)?(key-\d+|land)', members)
        sizes.append(len(page))
        following = re.findall(r'href="([^"]*[?&]start=[^"]*)" rel="next"', page)
        path = following[0] if following else ""

    assert seen == [*(f"key-{n:04}" for n in range(999)), "land"]
    assert len(sizes) == 10
    assert max(sizes) < 150_000
    first = (await visitor.get(f"/group?queue=trips&id={node.group_id}")).text
    assert "and 979 more" in first, "a stage of very many is cut"
    assert first.partition("<h2>Timeline</h2>")[2].partition("</ol>")[0].count("<li>") <= MOST_ROWS
    for odd in ("99999", "-1", "x", "999999999"):
        answer = await visitor.get(f"/group?queue=trips&id={node.group_id}&start={odd}&step={odd}")
        assert answer.status_code == 200
        assert answer.text.count('<th scope="row">') >= 1, odd
