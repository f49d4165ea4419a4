"""Planted bugs in Python, each a small change of one expression or statement.

A condition is negated; a comparison of numbers, tokens or names of calls always holds; a limit is a
thousand times as large; a `continue`, or a call that closes, drops, wakes or cancels something, is
left out.  The list is made from the syntax trees of the modules in ``TESTS``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import toril

SOURCE = Path(toril.__file__).parent

_WORKER = (
    "tests/test_how_long.py",
    "tests/worker/test_dead_flights.py",
    "tests/worker/test_services.py",
    "tests/worker/test_lost_replies.py",
    "tests/worker/test_closing.py",
    "tests/worker/test_running.py",
)
_SENDING = (
    "tests/test_how_long.py",
    "tests/protocol/test_sending.py",
    "tests/client/test_socket_pool.py",
    "tests/client/test_read_only.py",
    "tests/client/test_pipelining.py",
    "tests/client/test_failovers.py",
    "tests/client/test_lines.py",
)
TESTS: dict[str, tuple[str, ...]] = {
    "worker/pump": (
        "tests/worker/test_pump.py",
        *_WORKER,
        "tests/worker/test_local_events.py",
        "tests/worker/test_big_jobs.py",
        "tests/worker/test_cost.py",
    ),
    "worker/flight": (
        "tests/worker/test_refusing_servers.py",
        *_WORKER,
        "tests/worker/test_handlers.py",
    ),
    "worker/outbox": (*_WORKER, "tests/worker/test_crashes.py"),
    "worker/lease": (
        *_WORKER,
        "tests/worker/test_crashes.py",
        "tests/worker/test_outage_log.py",
        "tests/client/test_cancelling.py",
    ),
    "worker/crew": (
        "tests/worker/test_crew.py",
        *_WORKER,
        "tests/worker/test_callbacks_at_the_end.py",
    ),
    "client/line": (*_SENDING, "tests/client/test_waiting_behind.py", "tests/client/test_loops.py"),
    "client/transport": (
        *_SENDING,
        "tests/client/test_waiting_behind.py",
        "tests/client/test_replicas.py",
        "tests/client/test_bounds.py",
        "tests/test_embedded.py::test_it_stops_with_the_queue_that_started_it",
    ),
    "client/connection": (
        *_SENDING,
        "tests/client/test_waiting_behind.py",
        "tests/features/parcels/test_handing_over.py",
        "tests/client/test_bounds.py",
        "tests/client/test_sharing.py",
        "tests/client/test_sockets.py",
        "tests/client/test_on_a_cluster.py",
        "tests/features/parcels/test_seeing_off.py",
        "tests/features/parcels/test_couriers.py",
    ),
    "client/waiting": ("tests/test_how_long.py", "tests/client/test_wait_for.py"),
    "client/batching": (
        "tests/test_how_long.py",
        "tests/client/test_adding.py",
        "tests/client/test_closing.py",
        "tests/client/test_bounds.py",
        "tests/client/test_pipelining.py",
    ),
    "protocol/sending": (
        *_SENDING,
        "tests/client/test_made_once.py",
        "tests/features/parcels/test_couriers.py",
        "tests/features/parcels/test_handing_over.py",
    ),
    "protocol/confirming": ("tests/worker/test_lost_replies.py",),
    "protocol/failovers": ("tests/protocol/test_failovers.py",),
    "protocol/numbering": ("tests/client/test_made_once.py",),
}
"""The quick tests that are to notice a bug in each module, the quickest first."""

_SAID = re.compile(r"request|token|number|fence|step|run|owner|generation|epoch")
_ENDS = re.compile(r"close|drop|discard|disconnect|release|cancel|notify|wake|set|remove|clear")


@dataclass(frozen=True)
class Mutant:
    """One bug: where it is, and what the module says with it."""

    module: str
    name: str
    first: int
    last: int
    text: str

    def planted(self) -> str:
        """The source of its module with the bug."""
        source = read(self.module)
        return source[: self.first] + self.text + source[self.last :]


def read(module: str) -> str:
    return (SOURCE / f"{module}.py").read_text()


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Every planted bug, by module; equal ones in one function are numbered."""
    return tuple(mutant for module in TESTS for mutant in _mutants(module))


def _mutants(module: str) -> Iterator[Mutant]:
    source = read(module)
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    raw = source.encode()
    seen: Counter[str] = Counter()

    def place(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    for scope, node, change in _changes(ast.parse(source)):
        first = place(node.lineno, node.col_offset)
        last = place(node.end_lineno or node.lineno, node.end_col_offset or 0)
        name = f"{module} {scope}: {change} for {' '.join(ast.unparse(node).split())[:80]}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" #{seen[name]}"
        yield Mutant(module, name, first, last, change)


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    for scope, node in _walk(tree, "module"):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Constant(value=limit) as value
            ) if scope == "module" and name.isupper() and type(limit) in (int, float) and limit:
                yield scope, value, repr(limit * 1000)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.Constant):
                    yield scope, test, f"(not ({ast.unparse(test)}))"
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() as how]):
                if _SAID.search(ast.unparse(node)) and "None" not in ast.unparse(node):
                    yield scope, node, str(isinstance(how, (ast.Eq, ast.Is)))
            case ast.Continue():
                yield scope, node, "pass"
            case ast.Expr(value=ast.Call() | ast.Await() as call):
                if _ENDS.search(ast.unparse(call).partition("(")[0].rpartition(".")[2]):
                    yield scope, node, "pass"


def _walk(tree: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = child.name if scope == "module" else f"{scope}.{child.name}"
        yield inner, child
        yield from _walk(child, inner)
