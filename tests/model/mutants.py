"""Planted bugs, each a small change of one line of a script.

A server call is left out, or exchanged for its opposite; a limit is a thousand times as large; a
comparison of the numbers or tokens of calls always holds.

The list is made from the text of the scripts: every statement that is a call of the server or of a
helper that writes, in the calls and rooms that the universes use.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from toril.protocol import scripts
from toril.protocol.scripts import Library

OF_GROUPS = frozenset(
    {
        *("addGroup", "settleMember", "retryGroup", "retryCompensation", "resolveGroup"),
        *("reconcileGroups", "cancelGroup", "dueGroups"),
        *("rooms/groups", "rooms/stages", "rooms/retreats", "rooms/members", "rooms/endings"),
    }
)
"""What no world finds of these is in `tested`, what is not found of the others in `outside`."""

READERS = frozenset(
    {
        *("clock", "count", "eraseKeys", "explain", "glance", "glanceActive", "glanceGroups"),
        *("glanceChildren", "glanceLanes", "glanceLetter", "groupResults", "judgeReplay"),
        *("listGroup", "locate", "readLane", "surveyDeadLetters"),
        *("rooms/clock", "rooms/letters", "rooms/texts"),
    }
)
"""They only read: what they say is compared word by word in the tests of their features."""

FILES = tuple(
    file
    for file in (
        *sorted(scripts.library().calls),
        *(f"rooms/{room}" for room in sorted(scripts.library().rooms)),
    )
    if file not in READERS
)
"""Every call and every room that writes."""

_WRITERS = (
    r"redis\.p?call|call|writeFailure|undoNext|cancelMembers|endGroup|limitUndoing|noteEnd|goOn|"
    r"cancelHere|"
    r"hurry|await|offer|clear|lookAgain|reconcile|keepFromOrphans|ask|hear|removeJob|removeChildren|"
    r"requests\.remember|removeCompensation|writeAll|writeRecord|writePlan|startMembers|index|bringRound|"
    r"retreats\.\w+|turns\.save|remotes\.\w+|parcels\.send|seek|noteAway|"
    r"stages\.(?:log|share|ring|insert|close|signal|tell|block|unblock|revive|advance|advanceAll|begin|"
    r"announce|cancelPlanned|skipFailed|removeLetter|forgetPlan|keep)|"
    r"journal\.(?:emit|emitTrimmed)|places\.(?:wake|wakeWhenDue|ready|first|delay|promoteDue)|"
    r"batches\.release|arrivals\.(?:wake|close)|jobs\.(?:delete|insert|remove|removeAny)|"
    r"lanes\.(?:release|place|enter|dropHolder|saveHolders|giveBack|putOff|wake|wakeWhenDue)|"
    r"groups\.(?:onSettled|settle|turn|emit|memberEnded|compensationEnded|reopen|close|delete|forget)|"
    r"deduplication\.(?:release|forget)|"
    r"parents\.(?:childEnded|release|unlink)|dropHolder|saveHolders"
)
_ANY = r"(?!tell\(|table\.|error\()[\w.]+"
"""Outside the scripts of groups every call that stands alone counts."""
_STATEMENT = re.compile(rf"^(?P<indent> *)(?P<call>(?:{_WRITERS})\()", re.MULTILINE)
_IN_A_LINE = re.compile(rf" (?:then|do) (?P<call>(?:{_WRITERS}|keep|note)\()")
_OPPOSITES = {
    "LPUSH": "RPUSH",
    "RPUSH": "LPUSH",
    "RPOP": "LPOP",
    "LPOP": "RPOP",
    "ZPOPMIN": "ZPOPMAX",
    "SADD": "SREM",
    "SREM": "SADD",
}
_HEADER = re.compile(r"--\[\[.*?\]\]", re.DOTALL)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_LIMIT = re.compile(r"^local MOST_\w+ = (?P<limit>\d+)$", re.MULTILINE)
_ANY_STATEMENT = re.compile(rf"^(?P<indent> *)(?P<call>{_ANY}\()", re.MULTILINE)
_ANY_IN_A_LINE = re.compile(rf" (?:then|do) (?P<call>{_ANY}\()")
_ANY_LIMIT = re.compile(r"^local [A-Z_]+ = (?P<limit>\"?\d{1,12}\"?)(?:$| --)", re.MULTILINE)
_COMPARISON = re.compile(
    r"(?:if|and) (?P<comparison>[^\n]*?[\w.\[\]\")]+ (?:==|~=|>=?|<=?)"
    r" [\w.]*(?:request|token|call\[2\])) then"
)
_VERB = re.compile(r'"(' + "|".join(_OPPOSITES) + r')"')


@dataclass(frozen=True)
class Mutant:
    """One change of one line: ``before`` occurs in the file and is replaced by ``after``."""

    file: str
    line: int
    before: str
    after: str
    offset: int
    nth: int = 1
    """Which of those in the file that read the same."""

    @property
    def name(self) -> str:
        """Says nothing of lines: they move whenever somebody writes above them."""
        verb = "without" if not self.after.strip("; \n") else f"{self.after.strip()} for"
        nth = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.file}: {verb} {' '.join(self.before.split())}{nth}"

    def library(self) -> Library:
        """Our library with this change."""
        start = _places(self.file)[self.offset]
        text = _text(self.file)
        changed = text[:start] + self.after + text[start + len(self.before) :]
        return scripts.library().with_texts({self.file: changed})


@cache
def all_mutants() -> tuple[Mutant, ...]:
    found = []
    for file in FILES:
        text = _code(file)
        statement, in_a_line, limit = (
            (_STATEMENT, _IN_A_LINE, _LIMIT)
            if file in OF_GROUPS
            else (_ANY_STATEMENT, _ANY_IN_A_LINE, _ANY_LIMIT)
        )
        for match in statement.finditer(text):
            start = match.start("call")
            before = _whole_call(text, start)
            if before is None or _is_value(text, start):
                continue
            found.append(Mutant(file, _line(text, start), before, "", start))
        for match in in_a_line.finditer(text):
            start = match.start("call")
            before = _whole_call(text, start, "end")
            if before is not None:
                found.append(Mutant(file, _line(text, start), before, "", start))
        for match in _VERB.finditer(text):
            after = f'"{_OPPOSITES[match.group(1)]}"'
            found.append(
                Mutant(file, _line(text, match.start()), match.group(), after, match.start())
            )
        found += [
            _in_place_of(file, text, match, "limit", _larger(match["limit"]))
            for match in limit.finditer(text)
        ]
        found += [
            _in_place_of(file, text, match, "comparison", "true")
            for match in _COMPARISON.finditer(text)
        ]
    return _numbered(sorted(found, key=lambda mutant: (mutant.file, mutant.offset)))


def _larger(limit: str) -> str:
    return f'{limit[:-1]}000"' if limit.endswith('"') else f"{limit}000"


def _numbered(mutants: list[Mutant]) -> tuple[Mutant, ...]:
    seen: Counter[str] = Counter()
    numbered = []
    for mutant in mutants:
        seen[mutant.name] += 1
        numbered.append(replace(mutant, nth=seen[mutant.name]))
    return tuple(numbered)


def _in_place_of(file: str, text: str, match: re.Match[str], group: str, after: str) -> Mutant:
    return Mutant(file, _line(text, match.start(group)), match[group], after, match.start(group))


@cache
def marked() -> Library:
    """Our library, in which every line that a mutant changes says that it was run."""
    found: dict[str, dict[tuple[int, str], list[int]]] = {}
    for number, mutant in enumerate(all_mutants()):
        place = (_places(mutant.file)[mutant.offset], mutant.before)
        found.setdefault(mutant.file, {}).setdefault(place, []).append(number)
    texts = {file: _marked(_text(file), places) for file, places in found.items()}
    return scripts.library().with_texts(texts)


def _marked(text: str, places: dict[tuple[int, str], list[int]]) -> str:
    for (place, before), numbers in sorted(places.items(), reverse=True):
        if before.startswith('"') or not before.endswith(")"):
            word = before
            for number in numbers:
                word = f"COVER({number}, {word})"
            text = text[:place] + word + text[place + len(before) :]
        else:
            marks = " ".join(f"COVER({number})" for number in numbers)
            text = f"{text[:place]}{marks} {text[place:]}"
    return text


@cache
def _text(file: str) -> str:
    return scripts.library().text(file)


@cache
def _places(file: str) -> list[int]:
    """Where each character of the code is in the file: comments are no code."""
    text, places = _text(file), list(range(len(_text(file))))
    for pattern in (_HEADER, _COMMENT):
        left, end = [], 0
        for match in pattern.finditer(text):
            left += places[end : match.start()]
            end = match.end()
        places = left + places[end:]
        text = pattern.sub("", text)
    return places


@cache
def _code(file: str) -> str:
    return _COMMENT.sub("", _HEADER.sub("", _text(file)))


def _whole_call(text: str, start: int, behind: str = "") -> str | None:
    """The call that begins here, up to its last parenthesis, if the line ends then."""
    depth, place, in_text = 0, text.index("(", start), False
    for index in range(place, len(text)):
        character = text[index]
        if character == '"':
            in_text = not in_text
        elif not in_text and character in "([{":
            depth += 1
        elif not in_text and character in ")]}":
            depth -= 1
            if depth == 0:
                rest = text[index + 1 :].split("\n", 1)[0].split("--", maxsplit=1)[0].strip()
                return text[start : index + 1] if rest == behind else None
    return None


def _is_value(text: str, start: int) -> bool:
    """Does the line before go on here, so that this is no statement?"""
    before = text[:start].rstrip().rsplit("\n", 1)[-1].split("--")[0].rstrip()
    return before.endswith(("=", "(", ",", "and", "or", "..", "return", "not"))


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
