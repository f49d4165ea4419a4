"""The loggers of Toril: one line is one event, whatever the names and errors in it contain."""

from __future__ import annotations

import logging
import sys
import traceback
from functools import partial
from typing import Any

from toril.protocol.visible_text import visible, visible_lines


def get_logger(name: str) -> logging.Logger:
    """The logger ``name``, whose records cannot carry anything that a terminal would obey.

    What a program's own filters and handlers raise does not reach whoever logs: a line that is lost
    must not cost a job its outcome, or its lock.
    """
    logger = logging.getLogger(name)  # noqa: TID251 (here it is made safe)
    logger.addFilter(_make_visible)
    logger._log = partial(_log_safely, logger)  # type: ignore[method-assign]
    return logger


def _log_safely(logger: logging.Logger, *args: Any, **options: Any) -> None:
    options["stacklevel"] = options.get("stacklevel", 1) + 1  # the record names our caller
    try:
        type(logger)._log(logger, *args, **options)
    except Exception:  # noqa: BLE001 (the user's code)
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()


def warn_once(message: str, *args: str) -> None:
    """Say something that a whole process need hear only once, whoever finds it out first."""
    if (message, *args) not in _said:
        _said.add((message, *args))
        _of_all.warning(message, *args)


_said: set[tuple[str, ...]] = set()


class _Shown(str):
    """The visible text of something; its ``repr`` is that of the original."""

    __slots__ = ("_repr",)
    _repr: str

    @classmethod
    def of(cls, value: Any) -> _Shown:
        shown = cls(visible(str(value)))
        shown._repr = visible(repr(value))
        return shown

    def __repr__(self) -> str:
        return self._repr


def _make_visible(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(_shown(value) for value in record.args)
    elif record.args:
        record.args = {name: _shown(value) for name, value in record.args.items()}
    if isinstance(record.msg, str):
        # Ours are plain; those of steps' logs are written by users, who may put names into them.
        record.msg = visible_lines(record.msg)
    if record.exc_info and not record.exc_text:
        trace = logging.Formatter().formatException(record.exc_info)
        if (shown := visible_lines(trace)) != trace:
            # Every formatter takes the text that is there before it writes one itself.
            record.exc_text = shown
    return True


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value
    if str(value).isprintable() and repr(value).isprintable():
        return value
    return _Shown.of(value)


_of_all = get_logger("toril")
