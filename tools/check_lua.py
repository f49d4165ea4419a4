"""Check every Lua script against its header, against the house rules, and on a real server.

A script is one verb in `src/toril/lua/<verb>.lua`:

    #!lua
    --[[
      releaseLane: let the next job of a lane go, once its head is done.

      Keys      lane list, wait list, marker zset, events stream
      Args      job_id str (the head that finished), now_ms int
      Returns   id of the job let go, or nil when the lane is empty
      Refuses   -121  job_id is not the head of the lane               NotLaneHead
      Emits     waiting
      Keeps     I4
      Cost      O(1)
    ]]
    local lane, wait, marker, events = unpack(KEYS)
    local a = cmsgpack.unpack(ARGV[1])
    --- @include "includes/wake"

The first word of each item under Keys and Args is its name. Text in parentheses or braces, and
sentences that begin with a capital letter on a line of their own, are for the reader.
A read that could return any number of elements carries ``-- bounded: why`` in its line or above.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from toril import errors
from toril.client import embedded
from toril.protocol import scripts

LUA = Path(__file__).parent.parent / "src" / "toril" / "lua"

REQUIRED = ("Keys", "Args", "Returns", "Cost")
OPTIONAL = ("Refuses", "Emits", "Keeps")

SHEBANG = re.compile(r"#!lua( flags=[\w,-]+)?")
HEADER = re.compile(r"--\[\[\n(?P<text>.*?)\n\]\]\n", re.DOTALL)
FIELD = re.compile(r"^  (?P<name>[A-Z][a-z]+)(?: +(?P<text>\S.*))?$")
KEY_LINE = re.compile(r"local ([\w, ]+) = unpack\(KEYS\)")
IN_EVERY_CALL = {"skew_ms"}
"""What tests may add to the arguments of any script."""
ARGS_LINE = "local a = cmsgpack.unpack(ARGV[1])"
PAYLOAD_LINE = re.compile(r"local \w+ = ARGV\[\d+\]")
INCLUDE = re.compile(r'^--- @include "includes/(\w+)"$', re.MULTILINE)
REFUSAL = re.compile(r"\b(?:return|and|or)\s+(?:\{ )?(-\d+)\b")
REFUSAL_LINE = re.compile(r"^(-\d+)\s+(.*?)(?:\s+(\w+))?$")
FUNCTION = re.compile(r"\blocal function (\w+)")
WHOLE_FUNCTION = re.compile(r"^local function (\w+)\b.*?^end$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r'redis\.p?call\(\s*"([A-Z]+)"')

# The commands that read without a limit, and what in their arguments would be one.
ALWAYS_UNBOUNDED = {"KEYS", "SMEMBERS", "HKEYS", "HVALS", "SUNION", "SINTER", "SDIFF"}
WHOLE_RANGE = {"LRANGE", "ZRANGE", "ZREVRANGE"}
NEEDS_LIMIT = {
    "ZRANGEBYSCORE": "LIMIT",
    "ZREVRANGEBYSCORE": "LIMIT",
    "ZRANGEBYLEX": "LIMIT",
    "XRANGE": "COUNT",
    "XREVRANGE": "COUNT",
    "XREAD": "COUNT",
}


def main() -> int:
    problems: list[str] = []
    includes = {path.stem: path.read_text() for path in sorted(LUA.glob("includes/*.lua"))}
    for name, text in includes.items():
        where = f"includes/{name}.lua"
        problems += check_body(where, text, first_line=1)
    names = scripts.names()
    for name in names:
        text = (LUA / f"{name}.lua").read_text()
        problems += check_script(name, text, includes)
    problems += check_on_server(names)
    for problem in problems:
        print(problem)
    print(f"lua: {len(names)} scripts, {len(includes)} includes, {len(problems)} problems")
    return 1 if problems else 0


def check_script(name: str, text: str, includes: dict[str, str]) -> Iterator[str]:
    where = f"{name}.lua"
    first, _, rest = text.partition("\n")
    if not SHEBANG.fullmatch(first):
        yield f"{where}:1: begins with {first!r} instead of '#!lua'"
        return
    header = HEADER.match(rest)
    if header is None:
        yield f"{where}:2: no header comment after '#!lua'"
        return
    body = rest[header.end() :]
    body_line = text[: len(text) - len(body)].count("\n") + 1

    fields = read_fields(header["text"])
    if not re.match(rf"  {name}: \S", header["text"]):
        yield f"{where}:3: the header does not begin with '{name}: what it does'"
    for field in REQUIRED:
        if not fields.get(field):
            yield f"{where}: the header has no {field}"
    for field in fields.keys() - set(REQUIRED) - set(OPTIONAL):
        yield f"{where}: the header has the unknown field {field!r}"

    missing = [found for found in included(body, includes) if found not in includes]
    for found in missing:
        yield f"{where}: includes/{found}.lua does not exist"
    if missing:
        return
    everything = without_comments(resolve(body, includes))
    yield from check_key_and_args_lines(where, body, fields, everything)
    yield from check_refusals(where, fields, what_may_run(everything))
    yield from check_definitions(where, everything, includes)
    yield from check_body(where, body, first_line=body_line)


def check_key_and_args_lines(
    where: str, body: str, fields: dict[str, str], everything: str
) -> Iterator[str]:
    lines = body.splitlines()
    key_line = KEY_LINE.fullmatch(lines[0]) if lines else None
    if key_line is None:
        yield f"{where}: the first line of code is not 'local … = unpack(KEYS)'"
        return
    # A key named like a word of Lua's has an underscore behind it: `repeat_`.
    named = [part.strip().removesuffix("_") for part in key_line[1].split(",")]
    listed = [name.removesuffix("_") for name in item_names(fields.get("Keys", ""))]
    if named != listed:
        yield f"{where}: the key line has {named}, the header {listed}"

    told = set(item_names(fields.get("Args", "")))
    used = set(re.findall(r"(?<![\w.])a\.(\w+)", everything))
    has_args_line = len(lines) > 1 and lines[1] == ARGS_LINE
    if (told or used) and not has_args_line:
        yield f"{where}: the second line of code is not {ARGS_LINE!r}"
    for name in sorted(used - told - IN_EVERY_CALL):
        yield f"{where}: a.{name} is used and not listed under Args"
    for name in sorted(told - used):
        yield f"{where}: {name} is listed under Args and never used"


def check_refusals(where: str, fields: dict[str, str], reachable: str) -> Iterator[str]:
    told: dict[int, str | None] = {}
    for line in fields.get("Refuses", "").splitlines():
        match = REFUSAL_LINE.match(line)
        if match:
            told[int(match[1])] = match[3]
    given = {int(code) for code in REFUSAL.findall(reachable)}
    for code in sorted(given - told.keys()):
        yield f"{where}: returns {code}, which is not listed under Refuses"
    for code in sorted(told.keys() - given):
        yield f"{where}: lists the refusal {code}, which nothing returns"
    for code, error in told.items():
        if error is None or not hasattr(errors, error):
            yield f"{where}: the refusal {code} names no class of toril.errors ({error!r})"


def what_may_run(everything: str) -> str:
    """The code without the functions that nothing in the script calls."""
    functions = {match[1]: match[0] for match in WHOLE_FUNCTION.finditer(everything)}
    code = WHOLE_FUNCTION.sub("", everything)
    words = set(re.findall(r"\w+", code))
    while called := [name for name in functions if name in words]:
        bodies = "\n".join(functions.pop(name) for name in called)
        words |= set(re.findall(r"\w+", bodies))
        code += "\n" + bodies
    return code


def check_definitions(where: str, everything: str, includes: dict[str, str]) -> Iterator[str]:
    """A local function that is not included, or included too late, is nil when it is called."""
    homes = {
        function: name for name, text in includes.items() for function in FUNCTION.findall(text)
    }
    used = _first_places(r"(?<![\w.:])(?<!function )(\w+)\(", everything)
    defined = _first_places(r"\blocal (?:function )?(\w+)", everything)
    for function, home in homes.items():
        if function in used and defined.get(function, len(everything)) > used[function]:
            yield f"{where}: calls {function}() before includes/{home} is included"


def _first_places(pattern: str, text: str) -> dict[str, int]:
    """Where each name stands first, by name."""
    places: dict[str, int] = {}
    for match in re.finditer(pattern, text):
        places.setdefault(match[1], match.start())
    return places


def check_body(where: str, body: str, *, first_line: int) -> Iterator[str]:
    lines = body.splitlines()
    for number, line in enumerate(lines):
        code = without_comments(line)
        if re.search(r"\bKEYS\[", code):
            yield f"{where}:{first_line + number}: KEYS by number; name it in the first line"
        is_named = line == ARGS_LINE or PAYLOAD_LINE.fullmatch(code.rstrip())
        if re.search(r"\bARGV\[\d+\]", code) and not is_named:
            yield f"{where}:{first_line + number}: ARGV by number; give it a name"
    for call in calls(body):
        reason = unbounded(call)
        start = body.count("\n", 0, call.start)
        end = start + call.text.count("\n")
        around = lines[max(0, start - 1) : end + 1]
        if reason and not any("-- bounded:" in text for text in around):
            yield (
                f"{where}:{first_line + start}: {reason}; limit it, or say why it is small in "
                f"a comment '-- bounded: why'"
            )


@dataclass(frozen=True)
class Call:
    """One `redis.call`, its command and the text of its arguments."""

    command: str
    text: str
    start: int


def calls(body: str) -> Iterator[Call]:
    for match in CALL.finditer(body):
        depth, end = 1, match.end()
        while depth and end < len(body):
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        yield Call(match[1], body[match.end() : end - 1], match.start())


def unbounded(call: Call) -> str | None:
    """Why the call may return any number of elements, if it may."""
    arguments = call.text
    if call.command in ALWAYS_UNBOUNDED:
        return f"{call.command} reads everything"
    if call.command == "HGETALL" and not re.match(r"\s*,\s*\w*(job|key)\w*\s*$", arguments):
        return "HGETALL of something that is not called a job"
    if call.command in WHOLE_RANGE and re.search(r",\s*\"?-1\"?\s*(,|$)", arguments):
        return f"{call.command} up to the end"
    limit = NEEDS_LIMIT.get(call.command)
    if limit and f'"{limit}"' not in arguments:
        return f"{call.command} without {limit}"
    return None


def check_on_server(names: list[str]) -> Iterator[str]:
    """Let a real server compile every script as it will be sent."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        embedded.start(directory) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        for name in names:
            try:
                client.script_load(scripts.load(name).source)
            except (redis.ResponseError, FileNotFoundError, ValueError) as error:
                yield f"{name}.lua: {error}"


def read_fields(header: str) -> dict[str, str]:
    """The fields of a header; continued lines are joined by newlines, without their indent."""
    fields: dict[str, str] = {}
    current: str | None = None
    for line in header.splitlines():
        match = FIELD.match(line)
        if match and (match["name"] in REQUIRED + OPTIONAL or re.match(r"  [A-Z]\w+ {3,}", line)):
            current = match["name"]
            fields[current] = (match["text"] or "").strip()
        elif current and line.startswith(" " * 12):
            fields[current] += "\n" + line.strip()
        else:
            current = None
    return fields


def item_names(text: str) -> list[str]:
    """The first words of a list such as "lane list, jobs list of {id, name}, resend bool?"."""
    names = [item.split()[0] for item in items(text)]
    return [] if names in (["none"], ["-"], ["–"]) else names  # noqa: RUF001


def items(text: str) -> list[str]:
    """The items of such a list, without what is in parentheses or braces."""
    lines = text.splitlines()
    listed = [lines[0]] if lines else []
    for line in lines[1:]:
        if line[:1].isupper():
            break
        listed.append(line)
    plain = " ".join(listed)
    while (stripped := re.sub(r"\([^(){}]*\)|\{[^(){}]*\}", "", plain)) != plain:
        plain = stripped
    return [item.strip() for item in plain.split(",") if item.strip()]


def included(text: str, includes: dict[str, str], seen: set[str] | None = None) -> list[str]:
    """Every include of a text, and of those, in the order in which they are put in."""
    seen = set() if seen is None else seen
    order = []
    for name in INCLUDE.findall(text):
        if name not in seen:
            seen.add(name)
            order += [*included(includes.get(name, ""), includes, seen), name]
    return order


def resolve(text: str, includes: dict[str, str], seen: set[str] | None = None) -> str:
    seen = set() if seen is None else seen

    def put_in(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return resolve(includes[match[1]], includes, seen)

    return INCLUDE.sub(put_in, text)


def without_comments(code: str) -> str:
    return re.sub(r"--(?!\[\[)[^\n]*", "", re.sub(r"--\[\[.*?\]\]", "", code, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main())
