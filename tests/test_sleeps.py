"""No test sleeps and hopes: it waits for what it can see, or says why only time can tell."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

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


def modules() -> Iterator[tuple[Path, str]]:
    for folder, below, names in os.walk(HERE):
        below[:] = [name for name in below if name != "node_modules"]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and "sleep(" in (text := path.read_text()):
                yield path, text


def test_no_test_sleeps_without_a_reason():
    found = [
        f"{path.relative_to(HERE)}:{sleep.lineno}"
        for path, text in modules()
        for test in ast.walk(ast.parse(text))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        and test.name.startswith("test_")
        for sleep in sleeps_in(test)
    ]

    assert found == [], "use wait_until, or let_pass(seconds, why) of tests.helpers"
