"""Stack traces as text, as Python prints them, at a price that a storm of failures can pay.

Formatting one trace takes longer than everything else that a failure costs, and failures come in
numbers, from the same few places.  So the text of each frame is kept, as it is and as JSON has it.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from json.encoder import encode_basestring
from types import CodeType, TracebackType

MOST_FRAMES = 40
MOST_KEPT = 2048

_HEAD = "Traceback (most recent call last):\n"
_Frame = tuple[CodeType, str, str]

_kept: dict[tuple[int, int], _Frame] = {}
"""By the address of the code, which lives as long as it is kept here, and the place in it."""


def formatted(error: BaseException) -> str:
    """What ``traceback.format_exception`` would give."""
    frames = _frames(error)
    if frames is None:
        return "".join(traceback.format_exception(error))
    head = _HEAD if frames else ""
    return f"{head}{''.join([text for _, text, _ in frames])}{_last_line(error)}"


def formatted_json(error: BaseException, longest: int) -> str:
    """The same as a JSON text, of which the last ``longest`` characters are enough."""
    frames = _frames(error)
    if frames is not None:
        text = _put_together(tuple([text for _, _, text in frames]), _last_line(error), longest)
        if text is not None:
            return text
    return quoted(formatted(error)[-longest:])


@lru_cache(maxsize=256)
def _put_together(frames: tuple[str, ...], last_line: str, longest: int) -> str | None:
    """The text of a trace from those of its frames; None if that is too long.

    Equal failures get the same text, so that whoever compares them need not look into it.
    """
    head = _HEAD_INSIDE if frames else ""
    text = f'"{head}{"".join(frames)}{quoted(last_line[-longest:])[1:]}'
    return text if len(text) <= longest else None


def quoted(text: str) -> str:
    """A text as JSON; half of a surrogate pair, which UTF-8 cannot carry, is replaced."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return encode_basestring(text)


_HEAD_INSIDE = quoted(_HEAD)[1:-1]


def _frames(error: BaseException) -> list[_Frame] | None:
    """The frames of an error; None when there is more to tell than frames, type and message."""
    if not _is_plain(error):
        return None
    frames: list[_Frame] = []
    trace = error.__traceback__
    while trace is not None:
        if len(frames) == MOST_FRAMES:  # recursion is told in fewer words
            return None
        code = trace.tb_frame.f_code
        frames.append(_kept.get((id(code), trace.tb_lasti)) or _keep(code, trace))
        trace = trace.tb_next
    return frames


def _keep(code: CodeType, trace: TracebackType) -> _Frame:
    text = traceback.format_tb(trace, limit=1)[0]
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    frame = (code, text, quoted(text)[1:-1])
    _kept[id(code), trace.tb_lasti] = frame
    return frame


_TOLD_OTHERWISE = (SyntaxError, BaseExceptionGroup, NameError, AttributeError, ImportError)


def _is_plain(error: BaseException) -> bool:
    return (
        error.__cause__ is None
        and (error.__context__ is None or error.__suppress_context__)
        and not isinstance(error, _TOLD_OTHERWISE)
        and not hasattr(error, "__notes__")
    )


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
