"""The programs of docs/coming-from, in another queue's words and in ours."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import runpy
from pathlib import Path
from typing import NamedTuple

import pytest

from toril import Queue

PAGES = sorted((Path(__file__).parents[2] / "docs" / "coming-from").glob("*.md"))


class Programs(NamedTuple):
    theirs: str
    ours: str
    printed: str


def programs(page: Path) -> Programs:
    found = re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL)
    (_, theirs), (language, ours), (text, printed) = found[:3]
    assert (language, text) == ("python", "text")
    return Programs(theirs, ours, printed)


def lines_of(program: str) -> int:
    return sum(bool(line.strip()) for line in program.splitlines())


def test_there_is_a_page_for_each_queue():
    assert [page.stem for page in PAGES] == [
        "arq",
        "bullmq",
        "celery",
        "dramatiq",
        "groupmq",
        "rq",
        "sidekiq",
        "taskiq",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_table(page: Path):
    assert len(re.findall(r"^\| .* \| .* \|$", page.read_text(), re.MULTILINE)) > 8


@pytest.mark.parametrize("name", ["celery", "rq", "arq", "dramatiq", "taskiq"])
def test_the_port_of_a_python_program_is_no_longer(name: str):
    (page,) = [page for page in PAGES if page.stem == name]
    both = programs(page)

    assert name in both.theirs
    assert lines_of(both.ours) <= lines_of(both.theirs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_our_half_of_a_page_prints_what_it_says(page: Path, url, prefix, tmp_path, capsys):
    both = programs(page)
    place = 'connection="redis://localhost"'
    assert place in both.ours
    path = tmp_path / "shop.py"
    path.write_text(both.ours.replace(place, f'connection="{url}", prefix="{prefix}"'))
    running = None
    if "app = App(" in both.ours:
        spec = importlib.util.spec_from_file_location("shop", path)
        assert spec is not None
        assert spec.loader is not None
        shop = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shop)
        running = asyncio.create_task(shop.app.run())
    try:
        names = await asyncio.to_thread(runpy.run_path, str(path), run_name="__main__")
        if "app" in names:
            await names["app"].close()
    finally:
        if running is not None:
            await shop.app.close()
            await running

    assert capsys.readouterr().out == both.printed
    if "schedule=" in both.ours:
        async with Queue("default", connection=url, prefix=prefix) as queue:
            (report,) = await queue.get_job_schedulers()
            assert report.cron == "0 3 * * *"
            await queue.obliterate(force=True)
