"""The Lua: one library of functions, put together and named when it is first used.

``lua/calls`` holds one verb a file, ``lua/rooms`` one noun: a table of functions that the calls and
the other rooms use by its name, ``lanes.release(…)``.  The library is their text, one behind the
other, and ``lua/library.lua`` around it.  A call's first line names its keys,
``local base, wait = unpack(KEYS)``; Python orders the keys by that line.

The server keeps the library under a name with its hash in it, so two versions live side by side.
Where it has no functions, or a user no right to load them, a call is the same text as a script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, cached_property
from hashlib import sha1
from importlib.resources import files

import msgspec

from toril.protocol.refusals import Refusal

_KEY_LINE = re.compile(r"^ *local ([\w, ]+) = unpack\(KEYS\)$", re.MULTILINE)
_FLAGS = re.compile(r"^  Flags +(.+)$", re.MULTILINE)
_HEADER = re.compile(r"--\[\[.*?\]\]\n", re.DOTALL)
_FUNCTION = re.compile(r"^(?:local )?function ([\w.]+)\b.*?^end$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"[\w.]+")
_COMMENT_LINE = re.compile(r"^\s*--.*\n", re.MULTILINE)


class Script(msgspec.Struct, frozen=True, dict=True):
    """One call of the library, as it is sent to the server."""

    name: str
    function: str
    """Its name on the server."""
    home: Library
    key_names: tuple[str, ...]
    is_reading: bool
    """Does the server see to it that it writes nothing?"""

    @property
    def library(self) -> str:
        """What ``FUNCTION LOAD`` is given."""
        return self.home.source

    @cached_property
    def source(self) -> str:
        """The same as a script of its own, for servers without functions: made when it is needed,
        since it is as long as the whole library."""
        return self.home.as_script(self.name)

    @cached_property
    def sha(self) -> str:
        return _hash(self.source)


class Library:
    """Rooms and calls by name, and the texts that a server is sent.

    Tests plant bugs in some of the texts; the one that is used is ``library()``.
    """

    def __init__(self, rooms: Mapping[str, str], calls: Mapping[str, str], frame: str) -> None:
        self.rooms = rooms
        self.calls = calls
        self._frame = frame

    def text(self, file: str) -> str:
        """The text of ``rooms/<name>``, or of a call by its name alone."""
        room = file.removeprefix("rooms/")
        return self.calls[file] if room == file else self.rooms[room]

    def with_texts(self, texts: Mapping[str, str]) -> Library:
        """The same with other texts in place of some, named as in ``text``."""
        rooms = {name: texts.get(f"rooms/{name}", text) for name, text in self.rooms.items()}
        calls = {name: texts.get(name, text) for name, text in self.calls.items()}
        return Library(rooms, calls, self._frame)

    @cached_property
    def code(self) -> str:
        """All rooms and calls, without their comments: they are for readers."""
        texts = [*self.rooms.values(), *self.calls.values()]
        parts = [f"do\n{_without_comments(text)}end\n" for text in texts]
        names = ", ".join(self.rooms)
        tables = ", ".join(["{}"] * len(self.rooms))
        codes = ", ".join(f"{refusal.name} = {refusal.value}" for refusal in Refusal)
        head = f"local calls, {names} = {{}}, {tables}\nlocal refusals = {{ {codes} }}\n"
        return f"{head}{_without_comments(self._frame)}{''.join(parts)}"

    @cached_property
    def version(self) -> str:
        """The first digits of the hash of the code, by which two versions are told apart."""
        return _hash(self.code)[:8]

    @cached_property
    def name(self) -> str:
        return f"toril_{self.version}"

    @cached_property
    def source(self) -> str:
        """What ``FUNCTION LOAD`` is given."""
        served = "".join(self._registration(name) for name in self.calls)
        return f"#!lua name={self.name}\n{self.code}{served}"

    def _registration(self, name: str) -> str:
        flags = ", ".join(f'"{flag}"' for flag in self._flags(name))
        return (
            f'register{{ function_name = "{name}_{self.version}", '
            f"callback = serve(calls.{name}), flags = {{ {flags} }} }}\n"
        )

    def _flags(self, name: str) -> list[str]:
        flags = _FLAGS.search(self.calls[name])
        return [flag.strip() for flag in flags[1].split(",")] if flags else []

    def reach(self, name: str) -> str:
        """The code of a call and of every function that it may come to, without comments."""
        homes = {room: _functions(_without_comments(text)) for room, text in self.rooms.items()}
        body = _without_comments(self.calls[name])
        own = _functions(body)
        parts = [_FUNCTION.sub("", body)]
        waiting = [("", parts[0]), *(("", text) for text in own.values())]
        seen: set[tuple[str, str]] = set()
        while waiting:
            room, text = waiting.pop()
            parts.append(text)
            for word in set(_NAME.findall(text)):
                home = word.partition(".")[0]
                there = (home, homes[home]) if home in homes else (room, homes.get(room, own))
                if word in there[1] and (there[0], word) not in seen:
                    seen.add((there[0], word))
                    waiting.append((there[0], there[1][word]))
        return "\n".join(parts)

    def script(self, name: str) -> Script:
        """The call ``lua/calls/<name>.lua``."""
        key_line = _KEY_LINE.search(self.calls[name])
        if key_line is None:
            raise ValueError(f"call {name!r} does not begin with `local … = unpack(KEYS)`")
        # A key named like a word of Lua's, or like a room, has an underscore behind it: `repeat_`.
        key_names = tuple(part.strip().removesuffix("_") for part in key_line[1].split(","))
        return Script(
            name=name,
            function=f"{name}_{self.version}",
            home=self,
            key_names=key_names,
            is_reading="no-writes" in self._flags(name),
        )

    def as_script(self, name: str) -> str:
        """The text of a call that is sent as a script."""
        flags = self._flags(name)
        first = f"#!lua flags={','.join(flags)}" if flags else "#!lua"
        return f"{first}\n{self.code}return serve(calls.{name})(KEYS, ARGV)\n"


def _functions(text: str) -> dict[str, str]:
    """The functions at the top of a file, whole, by name."""
    return {match[1]: match[0] for match in _FUNCTION.finditer(text)}


def _without_comments(text: str) -> str:
    return _COMMENT_LINE.sub("", _HEADER.sub("", text))


def _hash(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def library() -> Library:
    """The library of this version."""
    return Library(_read("rooms"), _read("calls"), _read("")["library"])


@cache
def load(name: str) -> Script:
    """The call ``name`` of the library."""
    return library().script(name)


def names() -> list[str]:
    """Every call there is."""
    return list(library().calls)


def _read(folder: str) -> dict[str, str]:
    """The texts in a folder of ``lua``, by name."""
    entries = files("toril").joinpath("lua", folder).iterdir()
    found = {entry.name: entry for entry in entries if entry.name.endswith(".lua")}
    return {name.removesuffix(".lua"): found[name].read_text("utf-8") for name in sorted(found)}
