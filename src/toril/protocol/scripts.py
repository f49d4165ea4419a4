"""The Lua scripts: found, put together and hashed when first used.

A script's first line of code names its keys, ``local base, wait = unpack(KEYS)``; Python orders the
keys by that line.  ``--- @include "includes/name"`` is replaced by that file, once per script.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

_KEY_LINE = re.compile(r"^local ([\w, ]+) = unpack\(KEYS\)$", re.MULTILINE)
_INCLUDE = re.compile(r'^--- @include "includes/(\w+)"$', re.MULTILINE)
_COMMENT = re.compile(r"--\[\[.*?\]\]", re.DOTALL)


class Script(msgspec.Struct, frozen=True):
    """One script as it is sent to the server."""

    name: str
    source: str
    sha: str
    key_names: tuple[str, ...]


@cache
def load(name: str) -> Script:
    """The script ``lua/<name>.lua`` with its includes."""
    source = _resolve(_folder().joinpath(f"{name}.lua").read_text("utf-8"), set())
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


def _folder() -> Traversable:
    return files("toril").joinpath("lua")


def _resolve(source: str, included: set[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in included:
            return ""
        included.add(name)
        text = _folder().joinpath("includes", f"{name}.lua").read_text("utf-8")
        return _resolve(text, included)

    return _INCLUDE.sub(replace, _strip_comments(source))


def _strip_comments(source: str) -> str:
    """Without the header: it is for readers, and every byte is sent when the server restarts."""
    return _COMMENT.sub("", source)
