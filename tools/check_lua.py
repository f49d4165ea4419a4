"""Check the calls and the rooms of the library against their headers and the house rules, and let a
real server load it.

A call is one verb in `src/toril/lua/calls/<verb>.lua`:

    --[[
      releaseLane: let the next job of a lane go, once its head is done.

      Keys      lane list, wait list, marker zset, events stream
      Args      job_id str (the head that finished), jobs list of {id, name}
      Returns   id of the job let go, or nil when the lane is empty
      Refuses   NOT_HEAD  job_id is not the head of the lane           NotLaneHeadError
      Emits     waiting
      Keeps     I4
      Flags     allow-oom
      Cost      O(1)
    ]]
    function calls.releaseLane(KEYS, a, ARGV)
      local lane, wait, marker, events = unpack(KEYS)

The first word of each item under Keys and Args is its name. Text in parentheses or braces, and
sentences that begin with a capital letter on a line of their own, are for the reader; but of a list
`of {…}` the names in the braces are the fields that its items may have.
A read that could return any number of elements carries ``-- bounded: why`` in its line or above.

What `hashes.values` reads goes to locals named after the fields.

A room is one noun in `src/toril/lua/rooms/<noun>.lua`: functions `noun.verb`, and what is private
to them as locals of the file. A function assigns only to its own locals, or to `memory`, which is
created afresh for every call: nothing else may outlive a call.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from lua_scopes import Reader
from toril import errors
from toril.client import embedded
from toril.protocol import scripts
from toril.protocol.refusals import Refusal
from toril.protocol.scripts import Library

LUA = Path(__file__).parent.parent / "src" / "toril" / "lua"

REQUIRED = ("Keys", "Args", "Returns", "Cost")
OPTIONAL = ("Refuses", "Emits", "Keeps", "Flags")
FLAGS = {"no-writes", "allow-oom"}
LONGEST = 60
"""How many lines a function may have."""
OF_LUA = {
    *("redis", "cjson", "cmsgpack", "string", "table", "math", "unpack", "ipairs", "pairs", "next"),
    *("type", "tonumber", "tostring", "pcall", "error", "rawget", "setmetatable", "memory"),
    "refusals",
}
"""Names that a room or a call may use although no room defines them."""

HEADER = re.compile(r"--\[\[\n(?P<text>.*?)\n\]\]\n", re.DOTALL)
FIELD = re.compile(r"^  (?P<name>[A-Z][a-z]+)(?: +(?P<text>\S.*))?$")
KEY_LINE = re.compile(r"^  local ([\w, ]+) = unpack\(KEYS\)$", re.MULTILINE)
PAYLOAD_LINE = re.compile(r" *local \w+ = ARGV\[\d+\]")
REFUSAL = re.compile(r"\brefusals\.(\w+)")
REFUSAL_LINE = re.compile(r"^([A-Z_]+)\s+(.*?)(?:\s+(\w+))?$")
CALL = re.compile(r'redis\.p?call\(\s*"([A-Z]+)"')
NAMED_VALUES = re.compile(r"(?:local ([\w, ]+?) =\s*)?hashes\.values\(([^()]*)\)")

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
    library = scripts.library()
    problems: list[str] = []
    for name, text in library.rooms.items():
        where = f"rooms/{name}.lua"
        problems += check_body(where, text)
        problems += check_names(where, text, name, library)
    for name, text in library.calls.items():
        problems += check_call(name, text, library)
    problems += check_on_server(library)
    for problem in problems:
        print(problem)
    counts = f"{len(library.calls)} calls, {len(library.rooms)} rooms"
    print(f"lua: {counts}, {len(problems)} problems")
    return 1 if problems else 0


def check_call(name: str, text: str, library: Library) -> Iterator[str]:
    where = f"calls/{name}.lua"
    header = HEADER.match(text)
    if header is None:
        yield f"{where}:1: no header comment at its beginning"
        return
    fields = read_fields(header["text"])
    if not re.match(rf"  {name}: \S", header["text"]):
        yield f"{where}:2: the header does not begin with '{name}: what it does'"
    for field in REQUIRED:
        if not fields.get(field):
            yield f"{where}: the header has no {field}"
    for field in fields.keys() - set(REQUIRED) - set(OPTIONAL):
        yield f"{where}: the header has the unknown field {field!r}"
    for flag in set(filter(None, re.split(r"[, ]+", fields.get("Flags", "")))) - FLAGS:
        yield f"{where}: the flag {flag!r} is none of {sorted(FLAGS)}"
    body = without_comments(text[header.end() :])
    if f"function calls.{name}(KEYS, a, ARGV)\n" not in body:
        yield f"{where}: has no 'function calls.{name}(KEYS, a, ARGV)'"
        return
    reachable = library.with_texts({name: text}).reach(name)
    yield from check_keys_and_args(where, body, fields, reachable)
    yield from check_refusals(where, fields, reachable)
    yield from check_names(where, text, "calls", library)
    yield from check_body(where, text)


def check_names(where: str, text: str, own: str, library: Library) -> Iterator[str]:
    """The file uses only what exists, assigns only to its own names, and has short functions."""
    there = {name: exports(name, room) for name, room in library.rooms.items()}
    reader = Reader(text).read()
    for use in reader.uses:
        place = f"{where}:{use.line}"
        if use.is_assigned and use.depth > 0 and use.name != "memory":
            yield f"{place}: assigns to {use.name}, which outlives the call"
        elif use.is_assigned and use.depth == 0 and not use.is_of_file and use.name != own:
            yield f"{place}: assigns to {use.name}, which is not its own"
        elif use.is_of_file or use.name in OF_LUA or use.name == "calls" == own:
            continue
        elif use.name not in there:
            yield f"{place}: uses {use.name}, which is neither a room nor a word of Lua"
        elif use.member is not None and use.member not in there[use.name]:
            yield f"{place}: uses {use.name}.{use.member}, which that room does not have"
    for function in reader.functions:
        lines = function.last_line - function.first_line + 1
        if lines > LONGEST:
            name = function.name or "a function"
            yield f"{where}:{function.first_line}: {name} has {lines} lines, {LONGEST} are enough"


def exports(name: str, text: str) -> set[str]:
    """What a room offers to others: its functions, and constants that it sets at the top."""
    found = set(re.findall(rf"^function {name}\.(\w+)", text, re.MULTILINE))
    for line in re.findall(rf"^({name}\.\w+(?:, {name}\.\w+)*) = ", text, re.MULTILINE):
        found |= {part.strip().removeprefix(f"{name}.") for part in line.split(",")}
    return found


def check_keys_and_args(
    where: str, body: str, fields: dict[str, str], reachable: str
) -> Iterator[str]:
    first = body[body.index("function calls.") :].splitlines()[1]
    key_line = KEY_LINE.fullmatch(first)
    if key_line is None:
        yield f"{where}: the first line of the call is not 'local … = unpack(KEYS)'"
        return
    # A key named like a Lua keyword, or like a room, gets a trailing underscore: `repeat_`.
    named = [part.strip().removesuffix("_") for part in key_line[1].split(",")]
    listed = item_names(fields.get("Keys", ""))
    if named != listed:
        yield f"{where}: the key line has {named}, the header {listed}"

    told = set(item_names(fields.get("Args", "")))
    used = set(re.findall(r"(?<!\w)a\.(\w+)", reachable))
    for name in sorted(used - told):
        yield f"{where}: a.{name} is used and not listed under Args"
    for name in sorted(told - used):
        yield f"{where}: {name} is listed under Args and never used"
    yield from check_nested(where, body, fields, reachable)


def check_nested(where: str, body: str, fields: dict[str, str], reachable: str) -> Iterator[str]:
    """Of a list of {…}: nothing is read of an item that is not listed, and all that is listed is.

    An item is known by the name of its list in the singular, as in `for _, job in ipairs(a.jobs)`.
    """
    read_anywhere = set(re.findall(r"\.(\w+)", reachable))
    for name, listed in nested_fields(fields.get("Args", "")).items():
        for field in sorted(listed - read_anywhere):
            yield f"{where}: {field} is listed under {name} and never read"
        item = re.search(rf"for [\w]+, (\w+) in ipairs\(a\.{name}", body)
        if item is None:
            continue
        read = set(re.findall(rf"(?<![\w.]){item[1]}\.(\w+)", body))
        for field in sorted(read - listed - set(written_fields(body, item[1]))):
            yield f"{where}: {item[1]}.{field} is read and not listed under {name}"


def written_fields(body: str, item: str) -> list[str]:
    """What the call itself writes into an item."""
    return re.findall(rf"(?<![\w.]){item}\.(\w+)(?:, [\w.]+)* = ", body)


def nested_fields(text: str) -> dict[str, set[str]]:
    """The fields in the braces behind `name list of`, by name."""
    flat = text.replace("\n", " ")
    found = {}
    for match in re.finditer(r"(\w+) list of \{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", flat):
        inner = match[2]
        while (plain := re.sub(r"\([^()]*\)|\{[^{}]*\}", "", inner)) != inner:
            inner = plain
        found[match[1]] = {part.split()[0] for part in inner.split(",") if part.strip()}
    return found


def check_refusals(where: str, fields: dict[str, str], reachable: str) -> Iterator[str]:
    told: dict[str, str | None] = {}
    for line in fields.get("Refuses", "").splitlines():
        match = REFUSAL_LINE.match(line)
        if match:
            told[match[1]] = match[3]
    given = set(REFUSAL.findall(reachable))
    for name in sorted(given - set(Refusal.__members__)):
        yield f"{where}: refuses with {name}, which is none of protocol/refusals.py"
    for name in sorted(given - told.keys()):
        yield f"{where}: refuses with {name}, which is not listed under Refuses"
    for name in sorted(told.keys() - given):
        yield f"{where}: lists the refusal {name}, which nothing gives"
    for name, error in told.items():
        if error is None or not hasattr(errors, error):
            yield f"{where}: the refusal {name} names no class of toril.errors ({error!r})"


def check_body(where: str, body: str) -> Iterator[str]:
    lines = body.splitlines()
    for number, line in enumerate(lines):
        code = without_comments(line)
        if re.search(r"\bKEYS\[", code):
            yield f"{where}:{number + 1}: KEYS by number; name it in the first line"
        is_named = PAYLOAD_LINE.fullmatch(code.rstrip())
        if re.search(r"\bARGV\[\d+\]", code) and not is_named:
            yield f"{where}:{number + 1}: ARGV by number; give it a name"
    yield from check_named_values(where, without_comments(body))
    for call in calls(body):
        reason = unbounded(call)
        start = body.count("\n", 0, call.start)
        end = start + call.text.count("\n")
        around = lines[max(0, start - 1) : end + 1]
        if reason and not any("-- bounded:" in text for text in around):
            yield (
                f"{where}:{start + 1}: {reason}; limit it, or say why it is small in "
                f"a comment '-- bounded: why'"
            )


def check_named_values(where: str, body: str) -> Iterator[str]:
    """Values that are read by position have the names of their fields, in the same order."""
    for match in NAMED_VALUES.finditer(body):
        fields = [part.strip() for part in match[2].split(",")][1:]
        names = [part.strip() for part in (match[1] or "").split(",")]
        if names != [local_name(field) for field in fields]:
            yield f"{where}: hashes.values of {', '.join(fields)} goes to {match[1] or 'no local'}"


def local_name(field: str) -> str:
    """`"x.group"` is `group`, `"parentKey"` is `parent_key`; what is not a string has no name."""
    if not re.fullmatch(r'"[\w.]+"', field):
        return ""
    last = field.strip('"').rpartition(".")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()


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


def check_on_server(library: Library) -> Iterator[str]:
    """Let a real server load the library, and compile every call as a script."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        embedded.start(directory) as server,
        redis.Redis.from_url(server.url, socket_timeout=60) as client,  # the disk may be busy
    ):
        try:
            client.execute_command("FUNCTION", "LOAD", library.source)
        except redis.ResponseError as error:
            yield f"the library: {error}"
        for name in library.calls:
            try:
                client.script_load(library.script(name).source)
            except (redis.ResponseError, ValueError) as error:
                yield f"calls/{name}.lua: {error}"


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


def without_comments(code: str) -> str:
    return re.sub(r"--(?!\[\[)[^\n]*", "", re.sub(r"--\[\[.*?\]\]", "", code, flags=re.DOTALL))


if __name__ == "__main__":
    sys.exit(main())
