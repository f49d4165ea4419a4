"""The log of a long-running command: lines for people, or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from toril.cli.printing import echo, log_to_terminal
from toril.logs import get_logger

F = TypeVar("F", bound=Callable[..., Any])

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


logger = get_logger("toril.cli")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever ``extra`` brought."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}"
            f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return _as_json(entry)
        except Exception:  # noqa: BLE001 (what the user's code brought may raise anything)
            return _as_json({name: _sayable(value) for name, value in entry.items()})


def _as_json(entry: dict[str, Any]) -> str:
    return json.dumps(entry, default=str, allow_nan=False)


def _sayable(value: Any) -> Any:
    """The value, or as much of it as JSON can say: the rest of its line must not be lost."""
    try:
        _as_json({"value": value})
    except Exception:  # noqa: BLE001 (as above)
        return _described(value)
    return value


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 (as above)
        return f"({type(value).__name__}, which cannot be shown: {type(error).__name__})"


def log_options(command: F) -> F:
    """``--log-format`` and ``--verbose``."""
    command = click.option("-v", "--verbose", is_flag=True, help="Log more.")(command)
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Lines for people, or one JSON object per line.",
    )(command)


def set_up_logging(log_format: str, *, verbose: bool) -> None:
    """Send everything that is logged to stderr."""
    if log_format == "text":
        log_to_terminal(verbose=verbose)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


def notice(text: str) -> None:
    """Tell the operator something on stderr: a plain line, or an entry of a JSON log."""
    if any(isinstance(each.formatter, JsonFormatter) for each in logging.root.handlers):
        logger.info(text)
    else:
        echo(text, err=True)
