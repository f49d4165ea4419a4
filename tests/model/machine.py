"""Runs one script from one state on a real server, and returns the state after it.

Each script is atomic, so all that several clients can do to each other is the order of their
scripts. A state is everything in the database, written down by the server itself in one canonical
form; to expand it, the server restores it, runs the script and writes down what is there then, all
in one call. Time stands still unless a step moves it, and nothing expires unless a step says so.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

import hiredis
import msgspec

from tests.servers import Server
from toril.protocol import scripts
from toril.protocol.command import Command

EMPTY = b"\x90"
ENDLESS_S = 20.0
START_MS = 1_800_000_000_000
Mutate = Callable[[str, str], str]

# What a script of ours is wrapped in. `%s` is its text.
_WRAPPER = r"""
local function restore(blob)
  redis.call("FLUSHDB", "SYNC")
  local state = cmsgpack.unpack(blob)
  for i = 1, #state, 3 do
    local key, kind, content = state[i], state[i + 1], state[i + 2]
    for j, value in ipairs(content) do
      if string.byte(value) == 1 then
        content[j] = string.gsub(string.sub(value, 2), "..", function(hex)
          return string.char(tonumber(hex, 16))
        end)
      end
    end
    if kind == "string" then
      redis.call("SET", key, content[1])
    elseif kind == "list" then
      redis.call("RPUSH", key, unpack(content))
    elseif kind == "hash" then
      redis.call("HSET", key, unpack(content))
    elseif kind == "set" then
      redis.call("SADD", key, unpack(content))
    else
      redis.call("ZADD", key, unpack(content))
    end
  end
end

local function plain(value)
  if string.find(value, "[\128-\255]") then
    return "\1" .. string.gsub(value, ".", function(character)
      return string.format("%%02x", string.byte(character))
    end)
  end
  return value
end

local function snapshot()
  local keys = redis.call("KEYS", "*")
  table.sort(keys)
  local state, events = {}, {}
  for _, key in ipairs(keys) do
    local kind = redis.call("TYPE", key).ok
    if kind == "stream" then
      for _, entry in ipairs(redis.call("XRANGE", key, "-", "+")) do
        table.insert(entry[2], 1, key)
        events[#events + 1] = entry[2]
      end
    elseif string.sub(key, -14) ~= ":stalled-check" then
      local content
      if kind == "string" then
        content = { plain(redis.call("GET", key)) }
      elseif kind == "list" then
        content = redis.call("LRANGE", key, 0, -1)
      elseif kind == "set" then
        content = redis.call("SMEMBERS", key)
        table.sort(content)
      elseif kind == "hash" then
        local flat = redis.call("HGETALL", key)
        -- Only what we pack ourselves is more than plain text.
        local is_packed = string.find(key, ":toril:", 1, true)
          or string.find(key, ":groups:", 1, true)
        local fields, values = {}, {}
        for j = 1, #flat, 2 do
          fields[#fields + 1] = flat[j]
          values[flat[j]] = is_packed and plain(flat[j + 1]) or flat[j + 1]
        end
        table.sort(fields)
        content = {}
        for j, field in ipairs(fields) do
          content[2 * j - 1], content[2 * j] = field, values[field]
        end
      else
        local flat = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
        content = {}
        for j = 1, #flat, 2 do
          content[j], content[j + 1] = flat[j + 1], flat[j]
        end
      end
      local n = #state
      state[n + 1], state[n + 2], state[n + 3] = key, kind, content
    end
  end
  return cmsgpack.pack(state), events
end

local covered = {}
local function COVER(number, verb)
  covered[#covered + 1] = number
  return verb
end

restore(ARGV[1])
local CLOCK = ARGV[2]
local function run(KEYS, ARGV)
%s
end
local reply = run(KEYS, { unpack(ARGV, 3) })
local state, events = snapshot()
return { state, events, reply == nil and false or reply, covered }
"""

# Steps that no script of ours takes.
_OWN = {
    "expire": 'return redis.call("DEL", KEYS[1])',
    "pop": 'return redis.call("ZPOPMIN", KEYS[1])',
    "nothing": "return 0",
}


class Request(NamedTuple):
    """A script with its keys and arguments."""

    script: str
    keys: tuple[str, ...]
    words: tuple[bytes | str, ...]


class Result(NamedTuple):
    """The state after a request, the events that it wrote, and its reply."""

    state: bytes
    events: list[list[bytes]]
    reply: Any
    covered: list[int]
    """The numbers of the marked lines that were run, if a mutation marks lines with COVER."""


def request_of(command: Command[Any], *, resent: bool = False) -> Request:
    """The request that a command makes."""
    _, _, count, *rest = command.request(resent=resent)
    assert command.script is not None
    assert isinstance(count, int)
    return Request(command.script.name, tuple(rest[:count]), tuple(rest[count:]))  # type: ignore[arg-type]


class Machine:
    """A server that runs requests from given states; ``mutate`` may change the scripts."""

    def __init__(self, server: Server, mutate: Mutate | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.directory / "valkey.sock"))
        self._socket.settimeout(ENDLESS_S)
        self._reader = hiredis.Reader()
        self._mutate = mutate
        self._shas: dict[str, str] = {}
        self.expansions = 0
        self.covered: set[int] = set()

    def close(self) -> None:
        self._socket.close()

    def run(self, state: bytes, clock_ms: int, requests: Iterable[Request]) -> list[Result]:
        """What each request makes of the state."""
        packed = []
        for request in requests:
            sha = self._shas.get(request.script) or self._load(request.script)
            packed.append(
                hiredis.pack_command(
                    (
                        "EVALSHA",
                        sha,
                        len(request.keys),
                        *request.keys,
                        state,
                        str(clock_ms // 1000),
                        *request.words,
                    )
                )
            )
        self._socket.sendall(b"".join(packed))
        self.expansions += len(packed)
        results = [Result(*self._read()) for _ in packed]
        for result in results:
            if result.covered:
                self.covered.update(result.covered)
        return results

    def call(self, *words: Any) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        return self._read()

    def _read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            try:
                self._reader.feed(self._socket.recv(1 << 18))
            except TimeoutError as error:
                raise EndlessScriptError(f"no reply within {ENDLESS_S} s") from error
        if isinstance(reply, Exception):
            raise ScriptError(str(reply))
        return reply

    def _load(self, name: str) -> str:
        source = _source_of(name)
        if self._mutate is not None:
            source = self._mutate(name, source)
        text = "#!lua\n" + _WRAPPER.replace("%s", "\x00").replace("%%", "%").replace("\x00", source)
        sha = sha1(text.encode()).hexdigest()
        self.call("SCRIPT", "LOAD", text)
        self._shas[name] = sha
        return sha


class ScriptError(Exception):
    """The script itself failed: always a bug."""


class EndlessScriptError(ScriptError):
    """The script does not end; the server has to be started anew."""


@cache
def _source_of(name: str) -> str:
    if name in _OWN:
        return _OWN[name]
    source = scripts.load(name).source
    source = re.sub(r"^#!lua.*\n", "", source)
    return source.replace('redis.call("TIME")', '{ CLOCK, "0" }')


_decode = msgspec.msgpack.Decoder(list[Any]).decode


def decode(state: bytes) -> dict[str, tuple[str, list[str]]]:
    """Type and content of each key; pairs of hashes one after another, of zsets score first."""
    flat = _decode(state)
    return {flat[i]: (flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)}
