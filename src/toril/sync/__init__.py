"""The blocking client: the same names, for code without an event loop."""
