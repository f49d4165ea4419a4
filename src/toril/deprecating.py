"""Old forms of calls that still work: each warns, and goes with the next version.

The decorators mark methods of ``@checked`` classes, which put the arguments into their new form
before they check them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Args = tuple[Any, ...]


def warn(old: str, new: str, *, level: int = 2) -> None:
    """Say that ``old`` is written ``new`` now; ``level`` counts the frames up to the user's."""
    warnings.warn(
        f"{old} is written {new} now; the old form goes with the next version",
        DeprecationWarning,
        stacklevel=level + 1,
    )


_LEVEL = 4
"""From a translation through the check and its wrapper to whoever made the call."""


def renamed(
    old: str, new: str, convert: Callable[[Any], Any] = lambda value: value
) -> Callable[[F], F]:
    """Let a method take the keyword argument ``old`` in place of ``new``."""

    def decorate(method: F) -> F:
        def translate(args: Args, kwargs: dict[str, Any]) -> Args:
            if old in kwargs:
                warn(f"{method.__name__}({old}=…)", f"{new}=", level=_LEVEL)
                kwargs[new] = convert(kwargs.pop(old))
            return args

        return _translated(method, translate)

    return decorate


def lane_first(setting: str) -> Callable[[F], F]:
    """Let a method of ``(lane, setting)`` take them in the old order, the lane last or left out.

    No lane is a number or a limit, and no setting is a text, so each call has one meaning.
    """

    def decorate(method: F) -> F:
        def translate(args: Args, kwargs: dict[str, Any]) -> Args:
            queue, *given = args
            if len(given) > 1:
                is_old = isinstance(given[1], str) or not isinstance(given[0], str | None)
            elif given:
                is_old = setting not in kwargs
            else:
                is_old = setting in kwargs and "lane" not in kwargs
            if not is_old:
                return args
            name = method.__name__
            warn(f"{name}({setting}, lane)", f"{name}(lane, {setting})", level=_LEVEL)
            value, lane = [*given, None][:2] if given else (kwargs.pop(setting), None)
            return (queue, kwargs.pop("lane", lane), value)

        return _translated(method, translate)

    return decorate


def _translated(method: F, translate: Callable[[Args, dict[str, Any]], Args]) -> F:
    method.__translate__ = translate  # type: ignore[attr-defined]
    return method
