"""Write `src/toril/sync` from `src/toril/client`, so that the blocking client is written once.

    python tools/unasync.py            write the files
    python tools/unasync.py --check    say which are out of date, and fail if any is

The source stays ordinary, readable code: only whole words are replaced, by the tables below,
outside of strings and comments (docstrings are translated too, by `PROSE`). A line that ends in
``# unasync: remove`` is left out, and so is everything between ``# unasync: off`` and
``# unasync: on``.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "toril" / "client"
TARGET = ROOT / "src" / "toril" / "sync"

# The modules of the client that have a blocking twin; those that do not exist yet are skipped.
# `embedded.py` and `ids.py` have nothing to await: the blocking client uses them where they are.
FILES = (
    "sockets.py",
    "cluster.py",
    "connection.py",
    "queue.py",
    "adder.py",
    "reading.py",
    "deduplication.py",
    "editing.py",
    "families.py",
    "limits.py",
    "schedulers.py",
    "lanes.py",
    "explaining.py",
    "metrics.py",
    "waiting.py",
    "listening.py",
    "event_cursor.py",
    "event_log.py",
    "groups.py",
    "flow_producer.py",
    "queue_events.py",
    "taken_job.py",
    "manual_worker.py",
    "dead_letters.py",
    "letter_runs.py",
    "views.py",
    "partitions.py",
    "partitioned_events.py",
    "growing.py",
    "agreeing.py",
)

# Modules of the blocking client that are written by hand: sockets, deadlines and batching work
# differently in threads than on a loop.
BY_HAND = ("__init__.py", "background.py", "batching.py", "line.py", "places.py", "transport.py")

# The longest match is replaced.
NAMES = {
    "import redis.asyncio as redis": "import redis",
    "redis.asyncio": "redis",
    "toril.client.embedded": "toril.client.embedded",
    "toril.client import embedded": "toril.client import embedded",
    "toril.client.ids": "toril.client.ids",
    "toril.client": "toril.sync",
    "asyncio.Lock": "threading.Lock",
    "asyncio.Event": "threading.Event",
    "asyncio.Condition": "threading.Condition",
    "asyncio.Semaphore": "threading.Semaphore",
    "asyncio.sleep": "time.sleep",
    "asyncio.TimeoutError": "TimeoutError",
    "contextlib.asynccontextmanager": "contextlib.contextmanager",
    "contextlib.AsyncExitStack": "contextlib.ExitStack",
    "asynccontextmanager": "contextmanager",
    "AsyncContextManager": "ContextManager",
    "AsyncExitStack": "ExitStack",
    "AsyncGenerator": "Generator",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "AsyncConnection": "Connection",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "anext": "next",
    "aiter": "iter",
}

# `import asyncio` becomes imports of those that the translated file needs.
IMPORTS_FOR_ASYNCIO = ("threading", "time")

PROSE = {
    "async with": "with",
    "async for": "for",
    "toril.client": "toril.sync",
    "redis.asyncio": "redis",
}

NOTICE = "# Written by tools/unasync.py from {source}: change that file instead.\n"

Place = tuple[int, int]


def main(arguments: list[str]) -> int:
    is_check = arguments == ["--check"]
    if arguments and not is_check:
        print(__doc__)
        return 2
    wanted = {
        TARGET / name: translate_file(SOURCE / name) for name in FILES if (SOURCE / name).exists()
    }
    stale = [path for path, text in wanted.items() if not is_same(path, text)]
    existing = set(TARGET.glob("*.py"))
    orphans = sorted(existing - wanted.keys() - {TARGET / name for name in BY_HAND})
    if is_check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date; run: python tools/unasync.py")
        for path in orphans:
            print(f"{path.relative_to(ROOT)} has no source in tools/unasync.py; remove it")
        print(f"unasync: {len(wanted)} files, {len(stale) + len(orphans)} to be written")
        return 1 if stale or orphans else 0
    by_hand = [path for path in stale if path.exists() and not is_generated(path)]
    if by_hand:
        for path in by_hand:
            print(f"{path.relative_to(ROOT)} was written by hand; remove it or list it in BY_HAND")
        return 1
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def translate_file(path: Path) -> str:
    notice = NOTICE.format(source=path.relative_to(ROOT).as_posix())
    return tidy(notice + translate(path.read_text()))


def translate(source: str) -> str:
    """The blocking twin of a module's text, before it is formatted."""
    source = leave_out(source)
    pieces: list[str] = []
    for text, is_code in split(source):
        pieces.append(translate_code(text) if is_code else translate_prose(text))
    return translate_imports("".join(pieces))


def leave_out(source: str) -> str:
    source = re.sub(r"(?ms)^[ \t]*# unasync: off\n.*?# unasync: on\n", "", source)
    return re.sub(r"(?m)^.*# unasync: remove\n", "", source)


def split(source: str) -> list[tuple[str, bool]]:
    """The text in pieces: code, and what is not (strings, comments)."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces: list[tuple[str, bool]] = []
    position = 0
    for begin, end in not_code(source):
        first = starts[begin[0] - 1] + begin[1]
        last = starts[end[0] - 1] + end[1]
        pieces += [(source[position:first], True), (source[first:last], False)]
        position = last
    return [*pieces, (source[position:], True)]


def not_code(source: str) -> Iterator[tuple[Place, Place]]:
    """Where strings and comments begin and end.

    From Python 3.12 on an f-string is several tokens; it is one piece here on every Python, so that
    all of them write the same files.
    """
    depth = 0
    begin = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_START":
            begin = begin if depth else token.start
            depth += 1
        elif kind == "FSTRING_END":
            depth -= 1
            if depth == 0:
                yield begin, token.end
        elif kind in ("STRING", "COMMENT") and depth == 0:
            yield token.start, token.end


def translate_code(code: str) -> str:
    code = re.sub(r"\basync (def|with|for)\b", r"\1", code)
    code = re.sub(r"\bawait\s+", "", code)
    code = re.sub(r"\bAwaitable\[([^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*)\]", r"\1", code)
    return _NAMES.sub(lambda match: NAMES[match[0]], code)


def translate_prose(text: str) -> str:
    text = re.sub(r"\bawait ", "", text)
    return _PROSE.sub(lambda match: PROSE[match[0]], text)


def translate_imports(source: str) -> str:
    if not re.search(r"(?m)^import asyncio$", source):
        return source
    needed = [name for name in IMPORTS_FOR_ASYNCIO if re.search(rf"\b{name}\.", source)]
    present = set(re.findall(r"(?m)^import (\w+)$", source))
    new = [name for name in needed if name not in present]
    if re.search(r"(?<!import )\basyncio\b", source):
        new.append("asyncio")
    return re.sub(r"(?m)^import asyncio\n", "".join(f"import {name}\n" for name in new), source)


def tidy(source: str) -> str:
    """Without `await`, lines are shorter: format them again and sort the imports."""
    for command in (
        ["check", "--select", "I,F401", "--fix", "--quiet", "--exit-zero"],
        ["format", "--quiet"],
    ):
        source = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--stdin-filename",
                "src/toril/sync/x.py",
                "-",
            ],
            input=source,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return source


def is_generated(path: Path) -> bool:
    return path.read_text().startswith(NOTICE.split("{", 1)[0])


def is_same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def _any_of(words: dict[str, str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)")


_NAMES = _any_of(NAMES)
_PROSE = _any_of(PROSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
