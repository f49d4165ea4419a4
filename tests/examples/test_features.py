"""The examples for flows, schedulers and limits do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from toril import Queue

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch, start_server):
    """Loads an example that runs on a server of its own."""
    server = start_server(tcp=True)
    monkeypatch.setenv("TORIL_URL", server.url)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


async def test_a_film_is_rendered_from_its_parts(example):
    parts = await example("flows").main()

    assert parts == [f"part {n}, encoded" for n in (1, 2, 3)]


async def test_digests_come_again_and_are_not_doubled(example):
    seen = await example("scheduled_digest").main()

    assert seen.count("digest for 42") == 1
    assert seen.count("digest for all") == 3


async def test_twelve_calls_take_three_windows(example):
    """By the server's clock, which knows when a window ends: the third begins after two."""
    module = example("rate_limited")

    await module.main()

    async with Queue("calls", connection=module.SERVER) as queue:
        jobs = await queue.get_jobs(["completed"])
    taken = sorted(job.processed_on for job in jobs)
    assert len(taken) == module.CALLS
    assert taken[-1] - taken[0] >= 1000
