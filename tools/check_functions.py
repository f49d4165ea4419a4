"""Check that no function of `src/toril` has more than 60 lines, from its `def` to its last line.

A longer function does more than one thing. `STILL_LONG` names the functions that nobody has split
yet; remove a function from the list once it is split.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "toril"
LONGEST = 60

STILL_LONG: set[str] = set()


def main() -> int:
    lengths: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name, length in functions(ast.parse(path.read_text())):
            known = f"{path.relative_to(SOURCE).as_posix()} {name}"
            lengths[known] = max(length, lengths.get(known, 0))
    problems = list(check(lengths, STILL_LONG))
    for problem in problems:
        print(problem)
    print(f"functions: {len(lengths)}, {len(problems)} problems")
    return 1 if problems else 0


def check(lengths: dict[str, int], still_long: set[str]) -> Iterator[str]:
    for name, length in lengths.items():
        if length > LONGEST and name not in still_long:
            yield f"{name} has {length} lines; cut it to {LONGEST} or fewer"
    for name in sorted(still_long):
        if lengths.get(name, 0) <= LONGEST:
            yield f"{name} is not long any more; take it off STILL_LONG"


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The functions of a module with their lengths, those inside of others included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                yield name, node.end_lineno - node.lineno + 1
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


if __name__ == "__main__":
    sys.exit(main())
