"""Explores every order in which clients can run their scripts, on a real server.

Each script is atomic, so all that clients can do to each other is the order of their scripts, and
what happens between two of them: a reply gets lost, a client dies, a lock expires. A ``Universe``
says which steps are possible in a state; the explorer takes each of them from each state that it
finds, once, and checks every state.

A state is what the server holds and where each client is. To take a step, the server is given back
what it held, the step is run, and what it holds then is written down. Two states that differ only
in what does not matter (the universe says what) are one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from typing import Any, NamedTuple, Protocol

import redis

from tests.servers import Server
from toril.protocol import scripts
from toril.protocol.command import Command

CLOCK_S = 1_800_000_000
"""The time of every script: it stands still, so that equal states look equal."""

View = dict[str, Any]
"""What the server holds: strings as text, lists and streams as lists, sets as sorted lists, hashes
and sorted sets as dictionaries."""

Dumps = dict[bytes, bytes]

_SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
  local kind = redis.call("TYPE", key).ok
  local content
  if kind == "string" then content = redis.call("GET", key)
  elseif kind == "list" then content = redis.call("LRANGE", key, 0, -1)
  elseif kind == "set" then content = redis.call("SMEMBERS", key)
  elseif kind == "hash" then content = redis.call("HGETALL", key)
  elseif kind == "zset" then content = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  else
    content = {}
    for i, entry in ipairs(redis.call("XRANGE", key, "-", "+")) do content[i] = entry[2] end
  end
  found[#found + 1] = { key, kind, redis.call("DUMP", key), content }
end
return found
"""


class Step(NamedTuple):
    """Something that can happen now. ``act`` does it and returns where the clients are then.

    A fault may happen or not; without any, everything must come to a good end.
    """

    name: str
    act: Callable[[Tape], Any]
    is_fault: bool = False


class Universe(Protocol):
    """Clients, what they can do, and what must hold."""

    def begin(self, tape: Tape) -> Any:
        """Prepare the server; returns where the clients are, which must be hashable."""

    def steps(self, view: View, clients: Any) -> Iterable[Step]:
        """What can happen in this state."""

    def essence(self, view: View, clients: Any) -> Hashable:
        """All that matters of a state: those with the same essence are explored once."""

    def check(self, view: View, clients: Any) -> Iterable[str]:
        """What is wrong with a state."""

    def check_end(self, view: View, clients: Any) -> Iterable[str]:
        """What is wrong with a state in which nothing but faults can happen."""


class Violation(NamedTuple):
    """What is wrong, and the steps that lead there."""

    problem: str
    path: list[str]


class Exploration(NamedTuple):
    """How much there was, and what was wrong with it."""

    states: int
    transitions: int
    ends: int
    names: set[str]
    violations: list[Violation]


class Tape:
    """A server that can be wound back to any state it was in."""

    def __init__(self, server: Server) -> None:
        self._client = redis.Redis.from_url(server.unix_url, protocol=2)
        self._snapshot = self._client.script_load(_SNAPSHOT)
        self._there: Dumps = {}
        self._loaded: set[str] = set()
        self._client.flushall()

    def close(self) -> None:
        self._client.close()

    def run(self, command: Command[Any], *, resent: bool = False) -> Any:
        """Run a command as a client would, and read its answer."""
        if command.script is not None and command.script.sha not in self._loaded:
            self._client.script_load(command.script.source)
            self._loaded.add(command.script.sha)
        words = command.request(resent=resent)
        if words[0] == "EVALSHA":
            return command.parse(self._client.execute_command(*words))
        # Without the parsing that redis-py does by the command's name.
        return command.parse(self._client.execute_command(*words, NEVER_DECODE=True))

    def delete(self, *keys: str) -> None:
        self._client.delete(*keys)

    def write_down(self) -> tuple[Dumps, View]:
        """Everything that the server holds now."""
        dumps: Dumps = {}
        view: View = {}
        for key, kind, dump, content in self._client.evalsha(self._snapshot, 0):
            dumps[key] = dump
            view[key.decode()] = _plain(kind.decode(), content)
        self._there = dumps
        return dumps, view

    def wind_back(self, dumps: Dumps) -> None:
        """Give the server back what it held, after ``write_down``; only what differs is sent."""
        pipeline = self._client.pipeline(transaction=False)
        gone = [key for key in self._there if key not in dumps]
        if gone:
            pipeline.delete(*gone)
        for key, dump in dumps.items():
            if self._there.get(key) != dump:
                pipeline.restore(key, 0, dump, replace=True)
        pipeline.execute()
        self._there = dumps


def explore(
    server: Server, universe: Universe, *, most_states: int = 1_000_000, stop_at: int = 1
) -> Exploration:
    """Explore a universe whole, or until ``stop_at`` violations were found."""
    tape = Tape(server)
    try:
        return _explore(tape, universe, most_states, stop_at)
    finally:
        tape.close()


def _explore(tape: Tape, universe: Universe, most_states: int, stop_at: int) -> Exploration:
    clients = universe.begin(tape)
    dumps, view = tape.write_down()
    states: list[tuple[Dumps, View, Any]] = [(dumps, view, clients)]
    came_from: list[tuple[int, str]] = [(-1, "begin")]
    seen = {universe.essence(view, clients)}
    waiting = deque([0])
    names: set[str] = set()
    violations: list[Violation] = []
    transitions = ends = 0

    def path_to(index: int) -> list[str]:
        path: list[str] = []
        while index >= 0:
            index, name = came_from[index]
            path.append(name)
        return path[::-1]

    def note(problems: Iterable[str], index: int) -> None:
        violations.extend(Violation(problem, path_to(index)) for problem in problems)

    note(universe.check(view, clients), 0)
    while waiting and len(violations) < stop_at:
        index = waiting.popleft()
        dumps, view, clients = states[index]
        states[index] = ({}, {}, None)  # what was explored is not needed again
        steps = list(universe.steps(view, clients))
        if all(step.is_fault for step in steps):
            ends += 1
            note(universe.check_end(view, clients), index)
        for step in steps:
            tape.wind_back(dumps)
            after = step.act(tape)
            new_dumps, new_view = tape.write_down()
            transitions += 1
            names.add(step.name.split(" ")[0])
            essence = universe.essence(new_view, after)
            if essence in seen:
                continue
            seen.add(essence)
            came_from.append((index, step.name))
            states.append((new_dumps, new_view, after))
            note(universe.check(new_view, after), len(states) - 1)
            if len(states) >= most_states:
                raise RuntimeError(f"more than {most_states} states; make the universe smaller")
            waiting.append(len(states) - 1)
    return Exploration(len(seen), transitions, ends, names, violations)


@contextmanager
def scripts_as_explored(
    change: Callable[[str, str], str] = lambda name, source: source,
) -> Iterator[None]:
    """Let the scripts see a clock that stands still; ``change`` may plant a bug in them."""
    original = scripts.load
    made: dict[str, scripts.Script] = {}

    def load(name: str) -> scripts.Script:
        if name not in made:
            script = original(name)
            source = change(name, script.source)
            source = source.replace('redis.call("TIME")', f'{{ "{CLOCK_S}", "0" }}')
            sha = sha1(source.encode(), usedforsecurity=False).hexdigest()
            made[name] = scripts.Script(script.name, source, sha, script.key_names)
        return made[name]

    scripts.load = load  # type: ignore[assignment]
    try:
        yield
    finally:
        scripts.load = original


def planted(include: str, old: str, new: str) -> Callable[[str, str], str]:
    """A bug for ``scripts_as_explored``: ``old`` of an include is replaced wherever it is used."""
    from importlib.resources import files

    home = files("toril").joinpath("lua", "includes", f"{include}.lua").read_text()
    assert home.count(old) == 1, f"{include}.lua does not have exactly one {old!r}"

    def change(name: str, source: str) -> str:
        return source.replace(old, new)

    return change


def _plain(kind: str, content: Any) -> Any:
    if kind == "string":
        return _text(content)
    if kind == "stream":
        return [_pairs(entry) for entry in content]
    if kind in ("hash", "zset"):
        return _pairs(content)
    items = [_text(item) for item in content]
    return sorted(items) if kind == "set" else items


def _pairs(flat: list[bytes]) -> dict[str, str]:
    return {_text(flat[i]): _text(flat[i + 1]) for i in range(0, len(flat), 2)}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
