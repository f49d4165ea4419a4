"""Runs scripts from given states on a real server, and tells the state after each of them.

Each script is atomic, so all that several clients can do to each other is the order of their
scripts. The server is brought from the last state to the next by what differs; there it runs every
step, tells what it changed and takes that back, all in one call. Time stands still unless a step
moves it, and nothing expires unless a step says so.
"""

from __future__ import annotations

import socket
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import hiredis

from tests.model.states import Cell, Cells, State, state_of
from tests.servers import Server
from toril.protocol import parceling, scripts
from toril.protocol.command import Command, Resend
from toril.protocol.parceling import Parcel
from toril.protocol.scripts import Library
from toril.protocol.sending import PARCELS

ENDLESS_S = 10.0
START_MS = 1_800_000_000_000
OWN = (
    *("nothing", "delete", "pop", "write", "everything", "removeOrphans", "retryFinished"),
    *("bullPromote", "bullRemove", "bullTake", "bullEnd"),
)
"""Steps that no script of ours takes; from the sixth on what BullMQ does to the keys."""

_FRAME = (Path(__file__).parent / "machine.lua").read_text()


class Request(NamedTuple):
    """A script with its keys and arguments."""

    script: str
    keys: tuple[str, ...]
    words: tuple[bytes | str, ...]


NOTHING = Request("nothing", (), ())
MOST_KNOWN = 20_000
"""Of how many states it is remembered what came of them."""
EVERYTHING = Request("everything", (), ())


@dataclass(frozen=True, slots=True)
class Result:
    """The state after a request, the events that it wrote, its reply, and which keys were given a
    time to live, in ms."""

    state: State
    events: list[list[bytes]]
    reply: Any
    renewed: dict[str, int]
    handed: tuple[Parcel, ...] = ()
    """The parcels that the reply brought."""
    checked: set[Hashable] = field(default_factory=set)
    """As whose acts it was looked at: the same act comes to the same, whoever else is there."""


Timed = tuple[int, Request]
"""A request and the time in ms at which it runs."""


class ScriptError(Exception):
    """The script itself failed: always a bug."""


class EndlessScriptError(ScriptError):
    """The script does not end; the server has to be started anew."""


Known = dict[Timed, Result | ScriptError]
"""What came of requests to one state."""


class _Asked(NamedTuple):
    """What is asked of one state; only what is new went to the server."""

    state: State
    requests: Sequence[Timed]
    known: Known
    new: list[Timed]


def request_of(
    command: Command[Any],
    *,
    resent: bool = False,
    flight: str = "",
    is_spread: bool = False,
    carries: bool = False,
) -> Request:
    """The request that a command makes; one that is numbered is the first call of ``flight``.

    If ``is_spread``, it goes to a cluster and may leave parcels, which its reply brings if whoever
    sends it ``carries`` them.
    """
    number = None
    if flight and command.resend is Resend.NUMBERED:
        number = {"flight": flight, "request": "0000000000000001"}
    told = {"spread": True} if is_spread else {}
    if is_spread and carries:
        told["carries"] = True
    _, _, count, *rest = command.request(resent=resent, number=number, told=told)
    assert command.script is not None
    assert isinstance(count, int)
    return Request(command.script.name, tuple(rest[:count]), tuple(rest[count:]))  # type: ignore[arg-type]


class Machine:
    """A server that runs requests from given states, by our library or one with a planted bug.

    ``ask`` sends, ``answer`` reads what was asked first: several may be under way. What comes of a
    request depends on the state and the time alone, so that it is run once, however many moments
    have that state.
    """

    def __init__(self, server: Server, library: Library | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.directory / "valkey.sock"))
        self._socket.settimeout(ENDLESS_S)
        self._reader = hiredis.Reader()
        self._cells = Cells()
        self._there: dict[str, Cell] = {}
        self._known: OrderedDict[State, Known] = OrderedDict()
        self._asked: deque[_Asked] = deque()
        self._early: deque[Any] = deque()
        self.covered: set[int] = set()
        self.runs = 0
        self._call("FLUSHALL")
        code = (library or scripts.library()).code
        self._call("FUNCTION", "LOAD", "REPLACE", _FRAME.replace("--LIBRARY--", code))

    def close(self) -> None:
        """Whoever comes next finds nothing under way."""
        with suppress(ScriptError, OSError):  # the server hangs or is gone
            self._receive_early()
        self._socket.close()

    def run(self, state: State, clock_ms: int, request: Request) -> Result:
        """What one request makes of the state."""
        (told,), covered = self._call(*self._words(state, [(clock_ms, request)]))
        self.covered.update(covered)
        result = self._result(state, {cell.key: cell for cell in state}, told)
        if isinstance(result, ScriptError):
            raise result
        return result

    def holds(self, state: State) -> bool:
        """Is the server, brought to this state, really in it? Nothing was left of other steps."""
        return self.run(state, START_MS, EVERYTHING).state == state

    def ask(self, wanted: Sequence[tuple[State, Sequence[Timed]]]) -> None:
        """Let the server expand each of these states by the requests; equal ones are run once."""
        packed = []
        for state, requests in wanted:
            known = self._known_of(state)
            new = [request for request in dict.fromkeys(requests) if request not in known]
            self._asked.append(_Asked(state, requests, known, new))
            if new:
                packed.append(hiredis.pack_command(tuple(self._words(state, new))))
                self.runs += len(new)
        self._socket.sendall(b"".join(packed))

    def answer(self) -> list[Result | ScriptError]:
        """The results for the state that was asked about first, one for each of its requests."""
        asked = self._asked.popleft()
        if asked.new:
            told, covered = self._early.popleft() if self._early else self._read()
            self.covered.update(covered)
            there = {cell.key: cell for cell in asked.state}
            for request, one in zip(asked.new, told, strict=True):
                asked.known[request] = self._result(asked.state, there, one)
        return [asked.known[request] for request in asked.requests]

    def _known_of(self, state: State) -> Known:
        known = self._known.setdefault(state, {})
        self._known.move_to_end(state)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    def _result(self, state: State, there: dict[str, Cell], told: Any) -> Result | ScriptError:
        if isinstance(told, bytes):
            return ScriptError(told.decode(errors="replace"))
        changes, events, reply, ends = told
        handed: tuple[Parcel, ...] = ()
        if isinstance(reply, list) and len(reply) in (2, 4) and reply[0] == PARCELS:
            handed = parceling.handed(*reply[2:]).parcels if len(reply) == 4 else ()
            reply = reply[1]
        after: dict[str, Cell] | None = None
        for i in range(0, len(changes), 3):
            key, kind, packed = changes[i : i + 3]
            if not kind:
                after = after or dict(there)
                del after[key.decode()]
            elif not key.endswith(b":stalled-check"):
                cell = self._cells.cell(key, kind, packed)
                if there.get(cell.key) is not cell:
                    after = after or dict(there)
                    after[cell.key] = cell
        renewed = {ends[i].decode(): ends[i + 1] for i in range(0, len(ends), 2)}
        now = state if after is None else state_of(after.values())
        return Result(now, events, reply, renewed, handed)

    def _words(self, state: State, requests: list[Timed]) -> list[Any]:
        wanted = {cell.key: cell for cell in state}
        gone = [key for key, cell in self._there.items() if wanted.get(key) is not cell]
        lacking = [cell.key for cell in state if self._there.get(cell.key) is not cell]
        self._there = wanted
        words: list[Any] = ["FCALL", "explore", 0, len(state)]
        for cell in state:
            words += (cell.key, cell.kind, cell.packed)
        words += (len(gone), *gone, len(lacking), *lacking, len(requests))
        for clock_ms, request in requests:
            words += (request.script, clock_ms // 1000, len(request.keys), *request.keys)
            words += (len(request.words), *request.words)
        return words

    def _call(self, *words: Any) -> Any:
        self._receive_early()
        self._socket.sendall(hiredis.pack_command(words))
        return self._read()

    def _receive_early(self) -> None:
        while len(self._early) < sum(bool(asked.new) for asked in self._asked):
            self._early.append(self._read())

    def _read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            try:
                self._reader.feed(self._socket.recv(1 << 18))
            except TimeoutError as error:
                raise EndlessScriptError(f"no reply within {ENDLESS_S} s") from error
        if isinstance(reply, Exception):
            raise ScriptError(str(reply))
        return reply
