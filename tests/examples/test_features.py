"""The examples for flows, schedulers and limits do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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
    took = await example("rate_limited").main()

    assert 0.9 < took < 10
