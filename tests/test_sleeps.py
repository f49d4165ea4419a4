"""No test sleeps and hopes: it waits for what it can see, or says why only time can tell."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def sleeps_in(test: ast.AST) -> Iterator[ast.Call]:
    """The sleeps of a test itself; handlers and programs inside of it may take their time."""
    for node in ast.iter_child_nodes(test):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant(value=0)]):
                pass  # lets others run, and waits for nothing
            case ast.Call(func=ast.Attribute(attr="sleep")):
                yield node
        yield from sleeps_in(node)


def modules(word: str) -> Iterator[tuple[Path, str]]:
    for folder, below, names in os.walk(HERE):
        below[:] = [name for name in below if name != "node_modules"]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and word in (text := path.read_text()):
                yield path, text


def test_no_test_sleeps_without_a_reason():
    found = [
        f"{path.relative_to(HERE)}:{sleep.lineno}"
        for path, text in modules("sleep(")
        for test in ast.walk(ast.parse(text))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        and test.name.startswith("test_")
        for sleep in sleeps_in(test)
    ]

    assert found == [], "use wait_until, or let_pass(seconds, why) of tests.helpers"


SHORTEST_S = 30
"""A wait ends when what it waits for is there, so a long deadline costs nothing; a busy machine may
need a hundred times as long as a quiet one."""
_IN_S = {
    "wait_until",
    "wait_until_sync",
    "until_renewed",
    "until_finished",
    "until_active",
    "letters",
    "hear",
    "ended",
    "wait_for_finished",
    "wait_for_state",
    "communicate",
    "urlopen",
    "event",
    "wait",
    "join",
}
_IN_MS = {
    "wait_for",
    "wait_for_group",
    "wait_for_selector",
    "wait_until_empty",
    "result",
    "get_next_job",
}
_ALONE = {"wait_until_empty", "wait", "join"}
"""Their first argument is the time; the others wait for something first."""


def deadlines_in(module: ast.Module) -> Iterator[tuple[int, float]]:
    """The line and the seconds of every wait whose end is a number, not a name."""
    for node in ast.walk(module):
        ends: Sequence[ast.expr | None] = []
        unit = 1
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("asyncio"), "wait_for" | "timeout")):
                ends = node.args[-1:]
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(name)) if name in _IN_S | _IN_MS:
                ends = [one.value for one in node.keywords if one.arg == "timeout"]
                ends = ends or (node.args if name in _ALONE else node.args[1:2])
                unit = 1000 if name in _IN_MS else 1
            case ast.BinOp(
                left=ast.Call(func=ast.Attribute(attr="monotonic" | "time")), op=ast.Add()
            ):
                ends = [node.right]
            case ast.arguments():
                named = [*zip(reversed(node.args), reversed(node.defaults), strict=False)]
                named += zip(node.kwonlyargs, node.kw_defaults, strict=True)
                ends = [value for name, value in named if name.arg == "timeout"]
        for end in ends:
            if isinstance(end, ast.Constant) and type(end.value) in (int, float):
                yield end.lineno, end.value / unit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("await asyncio.wait_for(began.wait(), 20)", 20),
        ("async with asyncio.timeout(5): pass", 5),
        ("await queue.wait_for(job.id, timeout=2_000)", 2),
        ("await queue.wait_until_empty(5000)", 5),
        ("await wait_until(is_done, 9)", 9),
        ("assert process.wait(10) == 0", 10),
        ("thread.join(timeout=5)", 5),
        ("deadline = time.monotonic() + 10", 10),
        ("def look(what, timeout=10.0): pass", 10),
        ("async def look(what, *, timeout=10.0): pass", 10),
    ],
)
def test_a_deadline_is_seen(text, seconds):
    assert [*deadlines_in(ast.parse(text))] == [(1, seconds)]


def test_no_wait_gives_up_early():
    """Less than a second is a wait in vain: nothing is to come."""
    found = [
        f"{path.relative_to(HERE)}:{line}: {seconds:g} s"
        for path, text in modules("")
        for line, seconds in deadlines_in(ast.parse(text))
        if 1 <= seconds < SHORTEST_S
    ]

    assert found == [], f"a deadline is {SHORTEST_S} s or more"
