"""Reads the names in Lua code: which are local where, which are free, what is assigned to.

Knows the syntax of Lua 5.1 without parsing expressions: blocks, functions, ``local``, ``for``, and
the targets of assignments. That is enough to find what a function touches that is not its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<comment>--\[\[.*?\]\]|--[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<space>\s+)
    |(?P<sign>\.\.\.|\.\.|==|~=|<=|>=|[^\w\s])""",
    re.DOTALL | re.VERBOSE,
)
WORDS = frozenset(
    {
        *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in"),
        *("local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
    }
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


@dataclass
class Scope:
    """A block; ``is_function`` when it is the body of one."""

    is_function: bool = False
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Use:
    """A name that is not local to the file, or an assignment to what the function does not own."""

    name: str
    member: str | None
    line: int
    is_assigned: bool
    depth: int
    """How many functions enclose it."""
    is_of_file: bool
    """Is it a local of the file, outside of all functions?"""


@dataclass(frozen=True)
class Function:
    name: str
    first_line: int
    last_line: int


def tokens(text: str) -> list[Token]:
    found, line = [], 1
    for match in TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind not in ("comment", "space"):
            kind = "word" if kind == "name" and match[0] in WORDS else kind
            found.append(Token(kind, match[0], line))
        line += match[0].count("\n")
    return found


class Reader:
    """Walks through the tokens of a file once."""

    def __init__(self, text: str) -> None:
        self._tokens = [*tokens(text), Token("end", "", text.count("\n") + 1)]
        self._at = 0
        self._scopes = [Scope()]
        self._openers: list[tuple[str, str, int]] = []
        self._brackets = 0
        self.uses: list[Use] = []
        self.functions: list[Function] = []

    def read(self) -> Reader:
        while self._here.kind != "end":
            self._step()
        return self

    @property
    def _here(self) -> Token:
        return self._tokens[self._at]

    def _ahead(self, by: int = 1) -> Token:
        return self._tokens[min(self._at + by, len(self._tokens) - 1)]

    def _step(self) -> None:
        token = self._here
        if token.kind == "word":
            self._word(token)
        elif token.kind == "name":
            self._name(token)
        else:
            self._brackets += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(token.text, 0)
            self._at += 1

    def _word(self, token: Token) -> None:
        self._at += 1
        match token.text:
            case "function":
                self._function(token.line)
            case "local" if self._here.text == "function":
                self._scopes[-1].names.add(self._ahead().text)
            case "local":
                self._local()
            case "for":
                self._for(token.line)
            case "do" | "then" | "repeat":
                self._open(token.text, "", token.line)
            case "else":
                self._close()
                self._open("else", "", token.line)
            case "elseif":
                self._close()
            case "end" | "until":
                self._close()

    def _open(self, opener: str, name: str, line: int, *, is_function: bool = False) -> None:
        self._openers.append((opener, name, line))
        self._scopes.append(Scope(is_function))

    def _close(self) -> None:
        opener, name, line = self._openers.pop()
        self._scopes.pop()
        if opener == "function":
            last = self._tokens[self._at - 1].line
            self.functions.append(Function(name, line, last))

    def _function(self, line: int) -> None:
        parts = []
        while self._here.text != "(":
            parts.append(self._here.text)
            self._at += 1
        if parts and len(parts) == 1 and not self._is_local(parts[0]):
            self._note(parts[0], None, line, is_assigned=True)
        if len(parts) > 1:
            self._note(parts[0], parts[2], line, is_assigned=True)
        self._at += 1
        self._open("function", "".join(parts), line, is_function=True)
        while self._here.text != ")":
            if self._here.kind == "name":
                self._scopes[-1].names.add(self._here.text)
            self._at += 1
        self._at += 1

    def _local(self) -> None:
        names = []
        while self._here.kind == "name":
            names.append(self._here.text)
            self._at += 1
            if self._here.text != ",":
                break
            self._at += 1
        # The right-hand side does not see the names yet; they are never used there.
        self._scopes[-1].names.update(names)

    def _for(self, line: int) -> None:
        names = []
        while self._here.text not in ("in", "="):
            if self._here.kind == "name":
                names.append(self._here.text)
            self._at += 1
        self._at += 1
        while self._here.text != "do":
            self._step()
        self._at += 1
        self._open("for", "", line)
        self._scopes[-1].names.update(names)

    def _name(self, token: Token) -> None:
        before = self._tokens[self._at - 1].text if self._at else ""
        behind = self._ahead().text
        self._at += 1
        if before in (".", ":"):
            return
        in_table = self._brackets > 0 and behind == "=" and before in ("{", ",")
        if in_table:
            return
        member = self._ahead().text if behind == "." else None
        self._note(token.text, member, token.line, is_assigned=self._is_target(behind))

    def _is_target(self, behind: str) -> bool:
        """Is what begins with this name assigned to?"""
        if self._brackets > 0:
            return False
        at, depth = self._at, 0
        while True:
            token = self._tokens[at]
            if token.text in "([{" and token.kind == "sign":
                if token.text == "(" and depth == 0:
                    return False
                depth += 1
            elif token.text in (")", "]", "}"):
                depth -= 1
                if depth < 0:
                    return False
            elif depth == 0:
                if token.text == "=":
                    return True
                if token.text not in (".", ",") and token.kind != "name":
                    return False
                is_next = token.kind == "name" and self._tokens[at - 1].text not in (".", ",")
                if is_next:
                    return False
            at += 1

    def _is_local(self, name: str) -> bool:
        return any(name in scope.names for scope in self._scopes)

    def _note(self, name: str, member: str | None, line: int, *, is_assigned: bool) -> None:
        depth = sum(scope.is_function for scope in self._scopes)
        for index in range(len(self._scopes) - 1, -1, -1):
            if name in self._scopes[index].names:
                of_file = not any(scope.is_function for scope in self._scopes[: index + 1])
                if of_file and is_assigned:
                    self.uses.append(Use(name, member, line, True, depth, True))
                return
        self.uses.append(Use(name, member, line, is_assigned, depth, False))


def free_names(text: str) -> Iterator[Use]:
    """The names of a file that are not local to it, and what it assigns to its own locals late."""
    yield from Reader(text).read().uses


def functions(text: str) -> list[Function]:
    """All functions of a file, with the lines where they begin and end."""
    return Reader(text).read().functions
