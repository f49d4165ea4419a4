"""The Lua scripts: found, put together and hashed when first used.

A script's first line of code names its keys, ``local base, wait = unpack(KEYS)``; Python orders the
keys by that line.  ``--- @include "includes/name"`` is replaced by that file, once per script.

The server runs a whole script at every call, and defining a function costs it time even when
nobody calls it.  So includes that begin with ``--- @lazily`` (what most jobs do not need: groups,
lanes, parents …) are wrapped into one function, which defines theirs when one of them is called.
``--- @lazily for letters`` makes a function of its own for those includes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

_KEY_LINE = re.compile(r"^local ([\w, ]+) = unpack\(KEYS\)$", re.MULTILINE)
_INCLUDE = re.compile(r'^--- @include "includes/(\w+)"$')
_LAZILY = re.compile(r"--- @lazily(?: for (\w+))?\n")
_HEADER = re.compile(r"--\[\[.*?\]\]", re.DOTALL)
_COMMENT_LINE = re.compile(r"^\s*--.*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_CONSTANT = re.compile(
    r"^local \w+(?:, \w+)* = (?:\"[^\"\n]*\"|-?[\d.]+)(?:, (?:\"[^\"\n]*\"|-?[\d.]+))*\n",
    re.MULTILINE,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"^local (?!function\b)(\w+)", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """One script as it is sent to the server."""

    name: str
    source: str
    sha: str
    key_names: tuple[str, ...]

    @property
    def is_reading(self) -> bool:
        """Does the server see to it that this script writes nothing?"""
        return "no-writes" in self.source.partition("\n")[0]


@cache
def load(name: str) -> Script:
    """The script ``lua/<name>.lua`` with its includes."""
    source = put_together(_folder().joinpath(f"{name}.lua").read_text("utf-8"))
    key_line = _KEY_LINE.search(source)
    if key_line is None:
        raise ValueError(f"script {name!r} does not begin with `local … = unpack(KEYS)`")
    key_names = tuple(part.strip() for part in key_line.group(1).split(","))
    digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, digest, key_names)


def names() -> list[str]:
    """Every script there is."""
    return sorted(
        entry.name.removesuffix(".lua")
        for entry in _folder().iterdir()
        if entry.name.endswith(".lua")
    )


def read_include(name: str) -> str:
    """The text of ``lua/includes/<name>.lua``."""
    return _folder().joinpath("includes", f"{name}.lua").read_text("utf-8")


def _folder() -> Traversable:
    return files("toril").joinpath("lua")


class _Part:
    """A run of lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def put_together(source: str, read: Callable[[str], str] | None = None) -> str:
    """``source`` with its includes, without its comments: they are for readers."""
    assembly = _Assembly(read or read_include)
    assembly.assemble(_HEADER.sub("", source))
    before, after = (_COMMENT_LINE.sub("", part.text) for part in (assembly.plain, assembly.body))
    lazy = {name: _COMMENT_LINE.sub("", part.text) for name, part in assembly.lazy.items()}
    return _defined_late(before, lazy, after)


class _Assembly:
    """Sorts the lines of a script: plain includes, lazy ones, and the body after them.

    Each include is put in once.  What a plain one needs is plain, even when a lazy one asks first.
    """

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._seen: set[str] = set()
        self._needed_at_once: set[str] = set()
        self.plain = _Part()
        self.lazy: dict[str, _Part] = defaultdict(_Part)
        """What is defined late, by what it is needed for."""
        self.body = _Part()

    def assemble(self, source: str) -> None:
        self._find_needed_at_once(source)
        lines = source.splitlines()
        last = max((i for i, line in enumerate(lines) if _INCLUDE.match(line)), default=-1)
        self._add(lines[: last + 1], self.plain)
        self.body.lines = lines[last + 1 :]

    def _find_needed_at_once(self, text: str) -> None:
        for name in _included(text):
            nested = self._read(name)
            if name not in self._needed_at_once and not _LAZILY.match(nested):
                self._needed_at_once.add(name)
                self._find_needed_at_once(nested)

    def _add(self, lines: list[str], part: _Part) -> None:
        for line in lines:
            match = _INCLUDE.match(line)
            if match is None:
                part.lines.append(line)
            elif match[1] not in self._seen:
                self._seen.add(match[1])
                text = self._read(match[1])
                if match[1] in self._needed_at_once:
                    self._add(text.splitlines(), self.plain)
                elif lazily := _LAZILY.match(text):
                    self._add(text.splitlines(), self.lazy[lazily[1] or ""])
                else:
                    self._add(text.splitlines(), part)


def _included(text: str) -> list[str]:
    return [match[1] for line in text.splitlines() if (match := _INCLUDE.match(line))]


def _defined_late(before: str, lazy: dict[str, str], after: str) -> str:
    """Functions that define the lazy ones, and a stand-in for each that is called from elsewhere.

    The stand-ins are declared first, so that the plain functions find them.
    """
    constants, declared, definers = "", [], ""
    for purpose, text in lazy.items():
        others = (other for name, other in lazy.items() if name != purpose)
        used_elsewhere = set(_WORD.findall("".join((before, after, *others))))
        constants += "".join(match[0] for match in _CONSTANT.finditer(text))
        part = _CONSTANT.sub("", text)
        for name in _VARIABLE.findall(part):
            if name in used_elsewhere:
                raise ValueError(f"a lazy include keeps {name!r}, which other code uses")
        exported = [name for name in _FUNCTION.findall(part) if name in used_elsewhere]
        declared += exported
        definers += _definer(f"defineLate{purpose.capitalize()}", part, exported)
    if not declared:
        return f"{before}{after}"
    first_line, newline, rest = before.partition("\n")
    return f"{first_line}{newline}local {', '.join(declared)}\n{constants}{rest}{definers}{after}"


def _definer(name: str, part: str, exported: list[str]) -> str:
    """A function that defines what ``part`` does, and the stand-ins that call it first."""

    def assigned(match: re.Match[str]) -> str:
        return f"{match[1]} = function" if match[1] in exported else match[0]

    if not exported:
        return ""
    stand_ins = "".join(
        f"{each} = function(...) {name}() return {each}(...) end\n" for each in exported
    )
    return f"local function {name}()\n{_FUNCTION.sub(assigned, part)}end\n{stand_ins}"
