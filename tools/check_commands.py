"""Check every Python command that runs a script against the header of that script.

Reads the calls ``script("name", keys, {"argument": …}, …, extra={"key": …})`` in
`src/toril/protocol` without running them; ``beside=`` gives the keys of a second queue. Arguments
and extra keys are known as far as they are written as dictionaries in the same function; computed
ones are trusted.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from check_lua import HEADER, KEY_LINE, LUA, item_names, items, read_fields
from toril.protocol.keys import FOREIGN, LANE_KEYS, OWN_KEYS, QUEUE_KEYS

PROTOCOL = LUA.parent / "protocol"
COMMON_KEYS = {"base"} | {name.replace("-", "_") for name in QUEUE_KEYS}
COMMON_KEYS |= {f"lanes_{name}" for name in LANE_KEYS} | OWN_KEYS

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Names:
    """The keys of a dictionary: those always there, those that may be, and whether that is all."""

    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    is_all: bool = True


@dataclass(frozen=True)
class Use:
    """One command that runs a script."""

    where: str
    script: str
    args: Names
    extra: Names
    is_marked: bool
    has_beside: bool = False


def main() -> int:
    problems: list[str] = []
    uses = [use for path in sorted(PROTOCOL.glob("*.py")) for use in find_uses(path)]
    texts = {path.stem: path.read_text() for path in LUA.glob("calls/*.lua")}
    for use in uses:
        if use.script in texts:
            problems += check_use(use, texts[use.script])
        else:
            problems.append(f"{use.where}: there is no script {use.script!r}")
    for name in sorted(texts.keys() - {use.script for use in uses}):
        problems.append(f"{name}.lua: no command runs it")
    for problem in problems:
        print(problem)
    print(f"commands: {len(uses)} run {len(texts)} scripts, {len(problems)} problems")
    return 1 if problems else 0


def check_use(use: Use, lua: str) -> Iterator[str]:
    header = HEADER.search(lua)
    key_line = KEY_LINE.search(lua)
    if header is None or key_line is None:
        return  # check_lua.py reports it
    told = items(read_fields(header["text"]).get("Args", ""))
    known = set(item_names(read_fields(header["text"]).get("Args", "")))
    needed = {item.split()[0] for item in told if not item.endswith("?")} & known
    needed.discard("resend")
    given = use.args.always | use.args.sometimes
    for name in sorted(given - known):
        yield f"{use.where}: gives {name!r}, which the header of {use.script}.lua does not list"
    if use.args.is_all:
        for name in sorted(needed - use.args.always):
            yield f"{use.where}: {use.script}.lua needs {name!r}, which may be missing"
    if use.is_marked and "resend" not in known:
        yield f"{use.where}: marks what it sends again, but {use.script}.lua knows no 'resend'"
    if not use.is_marked and "resend" in known:
        yield f"{use.where}: {use.script}.lua asks for 'resend', which only Resend.MARKED gives"

    names = {name.strip().removesuffix("_") for name in key_line[1].split(",")}
    extra = {name.removesuffix("_") for name in use.extra.always | use.extra.sometimes}
    for name in sorted(extra - names):
        yield f"{use.where}: gives the key {name!r}, which {use.script}.lua does not name"
    common = COMMON_KEYS | ({FOREIGN + name for name in COMMON_KEYS} if use.has_beside else set())
    if use.extra.is_all:
        for name in sorted(names - common - extra):
            yield f"{use.where}: {use.script}.lua needs the key {name!r}"


def find_uses(path: Path) -> Iterator[Use]:
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if not isinstance(function, Function):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and is_script_call(call):
                options = {option.arg: option.value for option in call.keywords}
                yield Use(
                    where=f"{path.name}:{call.lineno}",
                    script=call.args[0].value,  # type: ignore[attr-defined]
                    args=names_in(call.args[2], function),
                    extra=names_in(options.get("extra"), function),
                    is_marked="MARKED" in ast.dump(options.get("resend", ast.Constant(None))),
                    has_beside="beside" in options,
                )


def is_script_call(call: ast.Call) -> bool:
    is_named = re.fullmatch(r"(command\.)?script", ast.unparse(call.func)) is not None
    return is_named and len(call.args) >= 3 and isinstance(call.args[0], ast.Constant)


def names_in(node: ast.expr | None, function: Function) -> Names:
    """What the text of the function that makes a dictionary says about its keys."""
    if node is None:
        return Names()
    if isinstance(node, ast.Dict):
        literal = {key.value for key in node.keys if isinstance(key, ast.Constant)}
        return Names(frozenset(map(str, literal)), is_all=len(literal) == len(node.keys))
    if isinstance(node, ast.Name):
        return names_of_variable(node.id, function)
    return Names(is_all=False)


def names_of_variable(variable: str, function: Function) -> Names:
    begin = Names(is_all=False)
    later: set[str] = set()
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id == variable:
                begin = names_in(node.value, function)  # type: ignore[attr-defined]
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) == variable:
                is_literal = isinstance(target.slice, ast.Constant)
                later.add(str(target.slice.value) if is_literal else "")  # type: ignore[attr-defined]
    return Names(begin.always, frozenset(later - {""}), is_all=begin.is_all and "" not in later)


if __name__ == "__main__":
    sys.exit(main())
