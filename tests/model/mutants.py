"""Planted bugs: one server call of a script left out, or exchanged for its opposite.

The list is made from the text of the scripts: every statement that is a call of the server or of a
helper that writes, in the scripts and includes that the universes use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

# script or include -> the universes in which it matters, the likeliest first
WHERE: dict[str, tuple[str, ...]] = {
    "settle": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "a group of three",
        "a lane of three",
        "dead letters",
        "a parent and two children",
    ),
    "sweep": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "a lane of three",
        "a group of three",
    ),
    "renew": ("one job and many faults", "pause, promote and retry"),
    "remove": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "a parent and two children",
        "a lane of three",
    ),
    "promote": ("pause, promote and retry",),
    "retry": ("pause, promote and retry",),
    "pause": ("pause, promote and retry",),
    "resume": ("pause, promote and retry",),
    "changePriority": ("pause, promote and retry",),
    "replayDeadLetter": ("one letter", "dead letters"),
    "cancelGroup": ("a group of three",),
    "advanceScheduler": ("a scheduler and two workers",),
    "add": ("idle workers are woken", "deduplication", "keep the last one"),
    "includes/finish": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "a group of three",
        "a lane of three",
        "dead letters",
    ),
    "includes/take": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "a lane of three",
    ),
    "includes/takeLanes": (
        "idle workers are woken",
        "a lane of three",
    ),
    "includes/lanes": (
        "idle workers are woken",
        "a lane of three",
    ),
    "includes/batch": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
    ),
    "includes/place": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "pause, promote and retry",
        "a lane of three",
    ),
    "includes/promoteDue": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
    ),
    "includes/promoteJob": ("pause, promote and retry",),
    "includes/removeJob": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
        "a parent and two children",
        "deduplication",
    ),
    "includes/takeOut": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
    ),
    "includes/deleteJob": (
        "one job and many faults",
        "idle workers are woken",
        "two workers",
    ),
    "includes/insertJob": ("idle workers are woken", "deduplication", "a group of three"),
    "includes/deduplicate": ("deduplication", "keep the last one"),
    "includes/deduplication": ("deduplication", "keep the last one"),
    "includes/deadLetter": ("one letter", "dead letters"),
    "includes/replay": ("one letter", "dead letters"),
    "includes/retryJob": ("pause, promote and retry",),
    "includes/parents": ("a parent and two children",),
    "includes/groups": ("a group of three",),
    "includes/cancelWaiting": ("a group of three",),
    "includes/schedule": ("a scheduler and two workers",),
}

_WRITERS = (
    r"redis\.call|wake|wakeWhenDue|emit|emitTrimmed|placeReady|placeFirst|placeDelayed|deleteJob|"
    r"releaseBatch|promoteDue|releaseLane|placeLane|enterLane|dropLaneHolder|saveLaneHolders|"
    r"returnToLane|putOffInLane|wakeForLanes|wakeLanesWhenDue|groupOnSettled|settleGroup|endGroup|"
    r"turnGroup|cancelMembers|undoNext|emitGroup|releaseDeduplication|forgetDeduplication|"
    r"childCompleted|childFailed|releaseParent|unlinkFromParent|removeJob|insertJob|writeFailure"
)
_STATEMENT = re.compile(rf"^(?P<indent> *)(?P<call>(?:{_WRITERS})\()", re.MULTILINE)
_OPPOSITES = {
    "LPUSH": "RPUSH",
    "RPUSH": "LPUSH",
    "RPOP": "LPOP",
    "LPOP": "RPOP",
    "ZPOPMIN": "ZPOPMAX",
    "SADD": "SREM",
    "SREM": "SADD",
}
_VERB = re.compile(r'"(' + "|".join(_OPPOSITES) + r')"')


@dataclass(frozen=True)
class Mutant:
    """One change of one line: ``before`` occurs in the file and is replaced by ``after``."""

    file: str
    line: int
    before: str
    after: str
    offset: int

    @property
    def name(self) -> str:
        verb = "without" if not self.after.strip("; \n") else f"{self.after.strip()} for"
        return f"{self.file}:{self.line} {verb} {' '.join(self.before.split())}"

    @property
    def universes(self) -> tuple[str, ...]:
        return WHERE[self.file]

    def __call__(self, name: str, source: str) -> str:
        """The text of a script with this change; unchanged when it does not use the file."""
        changed, text = _texts(self)
        if text in source:
            return source.replace(text, changed, 1)
        return source


def _texts(mutant: Mutant) -> tuple[str, str]:
    """The file with and without the change, as scripts contain it: a window around the line."""
    text = _code(mutant.file)
    start = max(0, mutant.offset - 200)
    end = mutant.offset + len(mutant.before) + 60
    changed = (
        text[start : mutant.offset] + mutant.after + text[mutant.offset + len(mutant.before) : end]
    )
    return changed, text[start:end]


def all_mutants() -> list[Mutant]:
    found = []
    for file in WHERE:
        text = _code(file)
        for match in _STATEMENT.finditer(text):
            start = match.start("call")
            before = _whole_call(text, start)
            if before is None or _is_value(text, start):
                continue
            found.append(Mutant(file, _line(text, start), before, "", start))
        for match in _VERB.finditer(text):
            after = f'"{_OPPOSITES[match.group(1)]}"'
            found.append(
                Mutant(file, _line(text, match.start()), match.group(), after, match.start())
            )
    return found


def _code(file: str) -> str:
    text = files("toril").joinpath("lua", f"{file}.lua").read_text("utf-8")
    text = re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL)
    # Where includes are put in, the text of a script is another one.
    return max(re.split(r'^--- @include ".*"$', text, flags=re.MULTILINE), key=len)


def _whole_call(text: str, start: int) -> str | None:
    """The call that begins here, up to its last parenthesis."""
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
                return text[start : index + 1] if not rest else None
    return None


def _is_value(text: str, start: int) -> bool:
    """Does the line before go on here, so that this is no statement?"""
    before = text[:start].rstrip().rsplit("\n", 1)[-1].split("--")[0].rstrip()
    return before.endswith(("=", "(", ",", "and", "or", "..", "return", "not"))


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
