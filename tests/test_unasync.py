"""The translation of the async client into the blocking one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def unasync() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "unasync.py"
    spec = importlib.util.spec_from_file_location("unasync", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f():\n    await g()\n", "def f():\n    g()\n"),
        (
            "async with a as b:\n    async for c in d:\n        pass\n",
            "with a as b:\n    for c in d:\n        pass\n",
        ),
        ("import redis.asyncio\nx: redis.asyncio.Redis\n", "import redis\nx: redis.Redis\n"),
        ("from redis.asyncio.client import X\n", "from redis.client import X\n"),
        ("from toril.client.queue import Queue\n", "from toril.sync.queue import Queue\n"),
        ("from toril.client.embedded import start\n", "from toril.client.embedded import start\n"),
        ("from toril.client import embedded\n", "from toril.client import embedded\n"),
        ("import redis.asyncio as redis\n", "import redis\n"),
        ("x = f'{await f()} async'\n", "x = f'{f()} async'\n"),
        ("x = lambda: (await f(), 1)\n", "x = lambda: (f(), 1)\n"),
        ("await x.aclose()\n", "x.close()\n"),
        ('"""Then ``await job``."""\n', '"""Then ``job``."""\n'),
        ("x = 'asyncio.Lock'\n", "x = 'asyncio.Lock'\n"),
        ("f: Callable[[], Awaitable[list[int]]]\n", "f: Callable[[], list[int]]\n"),
        ("import asyncio\nlock = asyncio.Lock()\n", "import threading\nlock = threading.Lock()\n"),
        ("a()\nb()  # unasync: remove\nc()\n", "a()\nc()\n"),
        ("a()\n# unasync: off\nb()\n# unasync: on\nc()\n", "a()\nc()\n"),
    ],
)
def test_a_piece_of_code_becomes_its_blocking_twin(
    unasync: ModuleType, source: str, expected: str
) -> None:
    assert unasync.translate(source) == expected
