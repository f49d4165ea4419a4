"""What people type: durations, JSON, and yes before something is destroyed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from toril.protocol.visible_text import visible

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _TypeOfNumber = click.ParamType[int]
else:
    _TypeOfNumber = click.ParamType

LONGEST_MS = 100 * 365 * 86_400_000
"""A hundred years: a longer duration is a slip, and no calendar can count it."""
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


class DurationType(_TypeOfNumber):
    """``500`` (milliseconds), ``500ms``, ``10s``, ``5m``, ``2h``, ``7d``, ``1h30m``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if text.isdecimal():
            text += "ms"
        if not _DURATION.fullmatch(text):
            self.fail(f"{value!r} is no duration; write 500ms, 10s, 5m, 2h or 7d", param, ctx)
        ms = sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
        if ms > LONGEST_MS:
            self.fail(f"{text[:40]!r} is longer than a hundred years", param, ctx)
        return int(ms)


DURATION = DurationType()


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text that was typed, of ``@file``, or of ``-`` for stdin."""
    if text == "-":
        return parse_json(sys.stdin.buffer.read(), what)
    if not text.startswith("@"):
        return parse_json(text, what)
    try:
        content = Path(text[1:]).read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read {text[1:]!r}: {error.strerror}") from error
    return parse_json(content, what)


def parse_json(text: str | bytes, what: str) -> Any:
    """The value of a JSON text; one that comes out of a file names no other file."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except ValueError as error:
        raise click.UsageError(
            f"{what} is not JSON: {error}; quote it for the shell, as in '{{\"order\": 123}}'"
        ) from error


def yes_option(command: F) -> F:
    """``--yes``, for what destroys something."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Go on if the person says yes; nothing is done otherwise."""
    if not yes:
        click.confirm(visible(question), abort=True, err=True)  # noqa: TID251 (it is visible)


def confirm_name(question: str, name: str) -> None:
    """Go on if the person types this name; nothing is done otherwise."""
    typed = click.prompt(visible(question), default="", err=True)  # noqa: TID251 (it is visible)
    if typed != name:
        raise click.ClickException(f"nothing was done: {typed!r} is not {name!r}")


def refuse_given(*names: str, because: str) -> None:
    """Refuse options that would do nothing here; dropping them would look like obeying them."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in names and given is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[-1]} does nothing here: {because}")


def counted(number: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
