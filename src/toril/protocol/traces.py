"""Stack traces as text, as Python prints them, at a price that a storm of failures can pay.

Formatting one trace takes longer than everything else that a failure costs, and failures come in
numbers, from the same few places.  So the text of each frame is kept.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

MOST_FRAMES = 40
MOST_KEPT = 2048

_kept: dict[tuple[CodeType, int], str] = {}


def formatted(error: BaseException) -> str:
    """What ``traceback.format_exception`` would give."""
    if not _is_plain(error):
        return "".join(traceback.format_exception(error))
    frames: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        if len(frames) == MOST_FRAMES:  # recursion is told in fewer words
            return "".join(traceback.format_exception(error))
        frames.append(_frame(trace))
        trace = trace.tb_next
    head = "Traceback (most recent call last):\n" if frames else ""
    return f"{head}{''.join(frames)}{_last_line(error)}"


def _is_plain(error: BaseException) -> bool:
    """Is there nothing to tell but the frames, the type and the message?"""
    return (
        error.__cause__ is None
        and (error.__context__ is None or error.__suppress_context__)
        and not isinstance(error, (SyntaxError, BaseExceptionGroup, NameError, AttributeError))
        and not isinstance(error, ImportError)
        and not hasattr(error, "__notes__")
    )


def _frame(trace: TracebackType) -> str:
    key = (trace.tb_frame.f_code, trace.tb_lasti)
    text = _kept.get(key)
    if text is None:
        text = traceback.format_tb(trace, limit=1)[0]
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = text
    return text


def _last_line(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  (as Python does)
        message = "<exception str() failed>"
    return f"{name}: {message}\n" if message else f"{name}\n"
