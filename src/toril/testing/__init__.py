"""Testing what you write with Toril: a context without a server, and a real server for the rest."""

from toril.tasks.recording import TestContext, make_context
from toril.testing.rig import Enqueued, Ran, Rig, running
from toril.testing.server import server_url

__all__ = [
    "Enqueued",
    "Ran",
    "Rig",
    "TestContext",
    "make_context",
    "running",
    "server_url",
]
