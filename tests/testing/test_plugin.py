"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import pytest

PROGRAM = """
import asyncio
import pytest
from toril import App

app = App(queue="mail")
sent = []

@app.task
async def send(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"

@app.task
def shout(to: str) -> str:
    return to.upper()
"""

CONFTEST = """
import pytest

@pytest.fixture
def toril_app():
    from shop import app
    return app
"""


@pytest.fixture
def runs(pytester: pytest.Pytester, url: str, monkeypatch: pytest.MonkeyPatch):
    """Runs a file of tests beside a small program."""
    monkeypatch.setenv("TORIL_TEST_URL", url)
    pytester.makepyfile(shop=PROGRAM)
    pytester.makeconftest(CONFTEST)
    pytester.makeini(
        "[pytest]\nfilterwarnings =\n  error\n"
        "  ignore::pytest.PytestDeprecationWarning\npythonpath = .\n"
        "addopts = -p no:valkey -p no:hypothesispytest -p no:xdist -p no:timeout"
    )

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(*arguments)

    return run


BLOCKING = """
from datetime import timedelta
import pytest
from shop import sent, send, shout
from toril.errors import RunningLoopError

@pytest.mark.parametrize("to", ["ann", "bob"])
def test_blocking(toril_rig, to):
    sent.clear()
    handle = send.sync.enqueue(to)
    shout.using(delay=3_600_000).sync.enqueue(to)
    toril_rig.assert_enqueued(send, to=to)
    assert [one.result for one in toril_rig.sync.drain()] == [f"sent to {to}"]
    assert handle.result(timeout=5000) == f"sent to {to}"
    assert sent == [to]
    toril_rig.sync.advance(timedelta(hours=1))
    assert [one.result for one in toril_rig.sync.drain()] == [to.upper()]

def test_the_url_is_that_of_a_real_server(toril_url):
    import redis
    with redis.Redis.from_url(toril_url) as client:
        assert client.ping()

async def drain(rig):
    with pytest.raises(RunningLoopError, match="await rig.drain"):
        rig.sync.drain()

def test_blocking_calls_are_refused_on_a_loop(toril_rig):
    toril_rig.sync.run(drain(toril_rig))
"""

ASYNC = """
import pytest
from shop import sent, send

@pytest.mark.{mark}
@pytest.mark.parametrize("to", ["ann", "bob"])
async def test_async(toril_rig, to):
    sent.clear()
    handle = await send.enqueue(to)
    toril_rig.assert_enqueued(send, to=to)
    ran = await toril_rig.drain()
    assert [one.result for one in ran] == [f"sent to {{to}}"]
    assert await handle.result(timeout=5000) == f"sent to {{to}}"
    assert sent == [to]
"""

ANYIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def test_blocking_tests_use_the_rig(runs):
    runs(BLOCKING).assert_outcomes(passed=4)


def test_tests_of_pytest_asyncio_use_the_rig(runs):
    runs(ASYNC.format(mark="asyncio")).assert_outcomes(passed=2)


def test_tests_of_anyio_use_the_rig(runs):
    source = ASYNC.format(mark="anyio").replace("import pytest", ANYIO, 1)

    runs(source, "-p", "no:asyncio").assert_outcomes(passed=2)


def test_a_fixture_that_is_missing_or_wrong_is_named(runs, pytester):
    pytester.makeconftest("")
    source = (
        "import pytest\n"
        "def test_it(toril_rig):\n    pass\n"
        "class TestOther:\n"
        "    @pytest.fixture\n"
        "    def toril_app(self):\n        return 'app'\n"
        "    def test_it(self, toril_rig):\n        pass\n"
    )

    result = runs(source)

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*toril_rig needs a fixture 'toril_app'*", "*def toril_app():"])
    result.stdout.fnmatch_lines(["*returned 'app', which is not a toril.App*"])


def test_a_run_that_uses_nothing_of_it_imports_nothing_of_it(runs, pytester):
    pytester.makeconftest("")
    source = (
        "import sys\n"
        "def test_it():\n"
        "    assert 'toril.testing.plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.partition('.')[0] == 'toril'}\n"
        "    assert ours == {'toril', 'toril.testing', 'toril.testing.plugin'}\n"
        "    assert not {'redis', 'msgspec', 'hiredis'} & set(sys.modules)\n"
    )

    runs(source).assert_outcomes(passed=1)
