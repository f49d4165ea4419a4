"""Testing code that uses Toril: a context without a server, and a real server for the rest.

Each name is imported when it is first used: pytest loads this package's plugin in every test run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toril.tasks.recording import TestContext, make_context
    from toril.testing.rig import BlockingRig, Enqueued, Ran, Rig, running, running_sync
    from toril.testing.server import server_url

__all__ = [
    "BlockingRig",
    "Enqueued",
    "Ran",
    "Rig",
    "TestContext",
    "make_context",
    "running",
    "running_sync",
    "server_url",
]

_HOME_OF = {
    "TestContext": "toril.tasks.recording",
    "make_context": "toril.tasks.recording",
    "server_url": "toril.testing.server",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'toril.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF.get(name, "toril.testing.rig")), name)
    globals()[name] = value
    return value
