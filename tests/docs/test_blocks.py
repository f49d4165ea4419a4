"""Every Python block of the documentation is run: here, or by a test that is named here."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.docs import scenes
from tests.docs.playing import DOCS, Play, python_blocks
from tests.sql.conftest import postgres
from toril.worker import running

__all__ = ["postgres"]  # a fixture

ELSEWHERE = {
    "learn/": "tests/docs/test_learn.py",
    "coming-from/": "tests/examples/test_coming_from.py: ours; theirs are programs of other queues",
}
PAGES = {
    page.relative_to(DOCS).with_suffix("").as_posix(): page
    for page in sorted(DOCS.rglob("*.md"))
    if python_blocks(page)
}
PLAYED = [name for name in PAGES if not name.startswith(tuple(ELSEWHERE))]


@pytest.fixture
async def play(
    request: pytest.FixtureRequest, server, client, monkeypatch, tmp_path
) -> AsyncIterator[Play]:
    """The page, on an empty server of its own as far as it can tell."""
    instead = {}
    if request.param in scenes.NEEDS_POSTGRES:
        place = request.getfixturevalue("postgres")
        instead = {"postgresql+psycopg://…": f"postgresql+psycopg://{place}"}
        instead["dbname=shop"] = f"postgresql://{place}"
    play = Play(PAGES[request.param], server.url, **instead)
    monkeypatch.setenv("TORIL_URL", server.url)
    monkeypatch.setattr(running, "_Signals", play.signals())
    monkeypatch.chdir(tmp_path)
    async with play.stack:
        yield play
    keys = await client.keys("bull:*")
    if keys:
        await client.delete(*keys)


@pytest.mark.parametrize("play", PLAYED, indirect=True)
async def test_the_blocks_of_a_page_run(play: Play, request: pytest.FixtureRequest):
    name = request.node.callspec.params["play"]
    scene = getattr(scenes, Path(name).name.replace("-", "_"), None)
    assert scene is not None, f"write a scene for {name} in tests/docs/scenes.py"

    await scene(play)

    assert play.played == len(play.blocks), "the scene does not play every block"


def test_every_folder_that_is_run_elsewhere_exists():
    for folder in ELSEWHERE:
        assert any(name.startswith(folder) for name in PAGES), folder


def test_every_scene_has_its_page():
    stems = {Path(name).name.replace("-", "_") for name in PLAYED}
    written = {
        name
        for name, value in vars(scenes).items()
        if inspect.iscoroutinefunction(value) and "play" in inspect.signature(value).parameters
    }

    assert written == stems


def test_outside_the_documentation_only_the_readme_has_python():
    """tests/test_readme.py runs it."""
    others = [*DOCS.parent.glob("*.md"), *DOCS.parent.glob("[bde]*/**/*.md")]

    found = [page for page in others if DOCS not in page.parents and python_blocks(page)]

    assert [page.name for page in found] == ["README.md"]
