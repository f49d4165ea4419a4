"""The placeholder for the result of another member of a group."""

from __future__ import annotations


class Reference:
    """A placeholder, in the arguments of a call, for the result of another member of its group.

    JSON cannot write it, so it goes nowhere where no group fills it in.
    """

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<result of {self.key!r}>"
