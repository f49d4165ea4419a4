"""Errors on their way between a worker and its processes.

Most errors can be pickled.  Unpickling calls the class with the error's ``args``, though, which
fails if its ``__init__`` takes more than the message.  Such an error is sent in parts and put
together without ``__init__``, so that it keeps its class: that decides whether a job is retried.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
import types
from typing import Any


class RemoteTraceback(Exception):
    """Where an error was raised in another process: the cause of the error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def describe(error: BaseException) -> dict[str, Any]:
    """An error to send to another process: pickled or in parts, and its text in any case."""
    text = _text_of(error)
    pickled = _pickled(error, text)
    return {
        "error": pickled,
        "parts": None if pickled is not None else _parts_of(error),
        "type": type(error).__name__,
        "message": text.encode("utf-8", "replace"),
        "trace": "".join(traceback.format_exception(error)).encode("utf-8", "replace"),
    }


def revive(message: dict[str, Any]) -> BaseException:
    """The error that ``describe`` described; what cannot be sent keeps its name and text."""
    unpickled = _unpickled(message["error"])
    error = unpickled if isinstance(unpickled, BaseException) else _put_together(message)
    error.__cause__ = RemoteTraceback(message["trace"].decode())
    return error


def _text_of(error: object) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (the user's class)
        return "its message cannot be shown"


def _pickled(value: object, text: str | None = None) -> bytes | None:
    """``value`` pickled, if it can be read again and then still has this ``text``."""
    try:
        pickled = pickle.dumps(value)
        copy = pickle.loads(pickled)  # noqa: S301 (written above)
    except Exception:  # noqa: BLE001 (the user's class)
        return None
    return pickled if text is None or _text_of(copy) == text else None


def _unpickled(pickled: bytes | None) -> Any:
    """What our other process pickled; None if it cannot be read here."""
    if pickled is None:
        return None
    try:
        return pickle.loads(pickled)  # noqa: S301 (our own process's)
    except Exception:  # noqa: BLE001 (the user's class)
        return None


def _parts_of(error: BaseException) -> dict[str, Any]:
    """References to its class and those above, and what can be sent of its content."""
    above = [_pickled(cls) for cls in type(error).__mro__ if issubclass(cls, Exception)]
    args = error.args if _pickled(error.args) is not None else ()
    attributes = {name: value for name, value in vars(error).items() if _pickled(value) is not None}
    return {
        "classes": [reference for reference in above if reference is not None],
        "content": _pickled((args, attributes)),
    }


def _put_together(message: dict[str, Any]) -> Exception:
    """An error of the class that is named, or if that is not known here, of those above it."""
    name, text = message["type"], message["message"].decode()
    parts = message.get("parts") or {"classes": [], "content": None}
    content: tuple[Any, dict[str, Any]] = _unpickled(parts["content"]) or ((text,), {})
    classes = [cls for one in parts["classes"] if (cls := _unpickled(one)) is not None]
    while classes:
        with contextlib.suppress(Exception):  # a class may have any __new__
            return _made(classes, name, text, content)
        del classes[0]
    error: Exception = type(name, (Exception,), {})(text)
    return error


def _made(
    classes: list[type[Exception]], name: str, text: str, content: tuple[Any, dict[str, Any]]
) -> Exception:
    nearest = classes[0]
    if nearest.__name__ == name:
        error = _filled(nearest, *content)
        if _text_of(error) == text:
            return error
    # Some class, or what its text is made of, stayed behind.
    like_it = types.new_class(
        name, tuple(classes), exec_body=lambda body: body.update(__str__=lambda _: text)
    )
    return _filled(like_it, *content)


def _filled(cls: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
