"""Fixtures for pytest, loaded by its entry point; nothing happens until a test uses one.

They are plain fixtures, so that they work with pytest-asyncio, with anyio and in blocking tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from toril.testing.rig import Rig

_APP = "toril_app"


@pytest.fixture(scope="session")
def toril_url() -> str:
    """The URL of this test process's real server; ``TORIL_TEST_URL`` replaces it."""
    from toril.testing.server import server_url

    return server_url()


@pytest.fixture
def toril_rig(request: pytest.FixtureRequest, toril_url: str) -> Iterator[Rig]:
    """A rig for the app that your fixture ``toril_app`` returns (``toril.testing.running``).

    Its jobs use the test's own prefix: ``await toril_rig.drain()``, or
    ``toril_rig.sync.drain()`` in a blocking test.
    """
    try:
        app = request.getfixturevalue(_APP)
    except pytest.FixtureLookupError as error:
        if error.argname != _APP:
            raise
        pytest.fail(
            "toril_rig needs a fixture 'toril_app' that returns your App; put this into"
            " conftest.py:\n\n"
            "    @pytest.fixture\n"
            "    def toril_app():\n"
            "        from your_program import app\n\n"
            "        return app",
            pytrace=False,
        )
    from toril.tasks.app import App
    from toril.testing.rig import running_sync

    if not isinstance(app, App):
        pytest.fail(f"'toril_app' returned {app!r}, which is not a toril.App", pytrace=False)
    with running_sync(app, url=toril_url) as rig:
        yield rig
