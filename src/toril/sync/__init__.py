"""The blocking client: the same names, for code without an event loop."""

from toril.sync.queue import Queue

__all__ = ["Queue"]
