"""Write ``docs/reference`` from the code; with ``--check`` only say what is out of date.

Names, types and defaults come from the code; what an option does is in ``reference_texts.py``.
An option, an error or a doctor code without a text there is an error here, and so is a text for
something that is gone.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

import reference_texts as texts
from toril import errors, options
from toril.cli.catalogue import CATALOGUE
from toril.cli.main import toril as cli
from toril.client.queue import Queue
from toril.doctor import ailments
from toril.doctor.ailments import Ailment
from toril.doctor.codes import CODES
from toril.outbox.relay import Relay
from toril.tasks.app import App
from toril.worker.events import EVENTS
from toril.worker.worker import Worker

TARGET = ROOT / "docs" / "reference"
WRITTEN = "<!-- Written by tools/reference.py: change the code or tools/reference_texts.py. -->"
BY_HAND = {"api.md"}


class Incomplete(Exception):
    """Something public has no text, or a text is about something that is gone."""


def main() -> int:
    pages = make()
    stale = [name for name, text in pages.items() if _read(TARGET / name) != text]
    extra = [
        path
        for path in sorted(TARGET.rglob("*.md"))
        if path.relative_to(TARGET).as_posix() not in {*pages, *BY_HAND}
    ]
    if "--check" in sys.argv:
        for name in [*stale, *(str(path.relative_to(TARGET)) for path in extra)]:
            print(f"docs/reference/{name} is out of date; run make format")
        return 1 if stale or extra else 0
    for name in stale:
        (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / name).write_text(pages[name])
    for path in extra:
        path.unlink()
    return 0


def make() -> dict[str, str]:
    """Every page of the reference, by its name."""
    pages = {
        "options.md": _options(),
        "errors.md": _errors(),
        "events.md": _events(),
        "cli.md": _cli(),
        "doctor/README.md": _doctor(),
    }
    pages |= {f"doctor/{code}.md": _code(code) for code in CODES}
    return pages


# ---------------------------------------------------------------------- options


def _options() -> str:
    lines = [
        "# Options",
        "",
        WRITTEN,
        "",
        "Each option is shown with its type and its unit. A duration is an `int` of milliseconds, or a `timedelta`.",
        "An option that you do not give is decided by the queue's or app's defaults, then by the worker, then by the default here.",
        "",
        "## Options of a job",
        "",
        "They are keyword arguments of `queue.add`, and of `NewJob`, `FlowJob` and `GroupJob`, `outbox.add`, and a scheduler's `template`.",
        "They can also be defaults: `Queue(default_job_options=…)`, `App(…)` and `@app.task(…)`; `task.using(…)` overrides them for one call.",
        "The column *also* names other places that take the option.",
        "*Node* is what a BullMQ program sees or writes.",
        "",
        "| option | without it | what it does | also | Node |",
        "|---|---|---|---|---|",
    ]
    annotations = options.JobOptions.__annotations__
    _same(annotations, texts.JOB_OPTIONS, "options of a job")
    flags = _flags_of("add")
    for name, row in texts.JOB_OPTIONS.items():
        also = ["replay"] if name in options.REPLAY_OPTION_NAMES else []
        if name in flags:
            also.append(f"`toril add {flags[name]}`")
        lines.append(
            _row(
                _named(f"`{name}`", _type(annotations[name]), row.unit),
                row.default or "none",
                row.does,
                ", ".join(also) or "–",
                row.node or "–",
            )
        )
    lines += [
        "",
        "*Replay* means `replay_dead_letter` and `replay_all_dead_letters`.",
        "`repeat=` on `queue.add` is short for a [scheduler](../guides/schedulers.md).",
    ]
    for title, target, rows, about in (
        ("Queue", Queue.__init__, texts.QUEUE, "`toril.sync.Queue` takes the same."),
        (
            "Worker",
            Worker.__init__,
            texts.WORKER,
            "`ManualWorker` takes those that make sense without a handler.",
        ),
        ("App", App.__init__, texts.APP, "Every other keyword is an option of a job."),
        ("@app.task", App.task, texts.TASK, "Every other keyword is an option of a job."),
        (
            "Relay",
            Relay.__init__,
            texts.RELAY,
            "A relay reads rows that any language may write; Node sees the jobs.",
        ),
    ):
        lines += ["", f"## {title}", "", about, ""]
        has_node = any(row.node for row in rows.values())
        lines += (
            [
                "| option | default | what it does | Node |",
                "|---|---|---|---|",
            ]
            if has_node
            else ["| option | default | what it does |", "|---|---|---|"]
        )
        lines += _parameters(title, target, rows, has_node)
    return "\n".join(lines) + "\n"


def _parameters(
    title: str, target: Any, rows: Mapping[str, texts.Option], has_node: bool
) -> Iterator[str]:
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(target).parameters.items()
        if name not in ("self", "function")
    }
    _same(parameters, rows, f"options of {title}")
    for name, row in rows.items():
        parameter = parameters[name]
        default = row.default or _default(parameter)
        label = f"`{name}`" if parameter.kind is not parameter.VAR_KEYWORD else "options of a job"
        kind = "" if parameter.kind is parameter.VAR_KEYWORD else _type(parameter.annotation)
        cells = [_named(label, kind, row.unit), default, row.does]
        yield _row(*cells, *([row.node or "–"] if has_node else []))


def _named(label: str, kind: str, unit: str) -> str:
    """An option with its type and its unit, on separate lines."""
    return "<br>".join(part for part in (label, kind, unit) if part)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "required" if parameter.kind is not parameter.VAR_KEYWORD else "none"
    value = parameter.default
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if hasattr(value, "total_seconds"):
        return f"{int(value.total_seconds() // 3600)} hours"
    return f"`{value!r}`"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('(.*?)'.*?\)", r"\1", text)
    text = re.sub(r"\b(?:typing|collections\.abc|toril(?:\.\w+)+|datetime)\.", "", text)
    text = text.replace("int | datetime.timedelta", "Duration").replace(
        "int | timedelta", "Duration"
    )
    text = re.sub(r" \| None$", "", text)
    return f"`{text}`"


def _flags_of(command: str) -> dict[str, str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    flags = {
        parameter.name or "": parameter.opts[0]
        for parameter in found.params
        if isinstance(parameter, click.Option)
    }
    return {**flags, "job_id": flags.get("job_id", "--id")}


# ---------------------------------------------------------------------- errors and events


def error_classes() -> dict[str, type[BaseException]]:
    return {
        name: one
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, errors.TorilError)
    }


def _errors() -> str:
    classes = error_classes()
    _same(classes, texts.ERRORS, "errors")
    import toril

    lines = [
        "# Errors",
        "",
        WRITTEN,
        "",
        "Import them from `toril.errors`; those marked • are also in `toril`.",
        "Every message says what happened, to what, and what to do.",
        "A call that raises `InvalidInputError`, `RefusedError` or `ServerUnavailableError` has changed nothing.",
        "",
        "| error | is also | when you meet it | what to do |",
        "|---|---|---|---|",
    ]
    for name, depth in _tree(errors.TorilError, classes, 0):
        one = classes[name]
        parents = ", ".join(
            f"`{base.__name__}`" for base in one.__bases__ if base.__name__ in classes
        )
        builtin = [base.__name__ for base in one.__bases__ if base.__module__ == "builtins"]
        if builtin and name != "TorilError":
            parents += f", `{', '.join(builtin)}`"
        mark = " •" if name in toril.__all__ else ""
        text = texts.ERRORS[name]
        lines.append(
            _row(
                f"{'· ' * depth}`{name}`{mark}",
                parents or "`Exception`",
                text.when,
                text.remedy,
            )
        )
    return "\n".join(lines) + "\n"


def _tree(root: type, classes: Mapping[str, type], depth: int) -> Iterator[tuple[str, int]]:
    yield root.__name__, depth
    for one in classes.values():
        if one.__bases__[0] is root:
            yield from _tree(one, classes, depth + 1)


def events_of_scripts() -> set[str]:
    """The names that the headers of the scripts announce."""
    names: set[str] = set()
    for script in (ROOT / "src" / "toril" / "lua").rglob("*.lua"):
        match = re.search(
            r"^ *(?:--)? *Emits +(.*?)(?=^ *(?:--)? *[A-Z][a-z]+  |\]\])",
            script.read_text(),
            re.MULTILINE | re.DOTALL,
        )
        if match:
            plain = re.sub(r"\([^)]*\)", "", match[1])
            names |= set(re.findall(r"[a-z][\w:-]*", plain))
    return names - {"of", "a", "the", "what", "and", "none", "nothing", "each", "that", "for"}


def _events() -> str:
    _same(EVENTS, texts.WORKER_EVENTS, "events of a worker")
    if missing := {name for name in events_of_scripts() if name not in texts.QUEUE_EVENTS}:
        raise Incomplete(f"events of scripts without a text: {', '.join(sorted(missing))}")
    lines = [
        "# Events",
        "",
        WRITTEN,
        "",
        "## Events of a queue",
        "",
        "They are written to the queue's stream by whoever makes the change, in Python or Node.",
        "`QueueEvents` reads them; the fields are in `event.data`, in snake_case.",
        "BullMQ uses the same names, except for `deadLettered` and `group:…`, which are Toril's own.",
        "",
        "| event | when | `event.data` |",
        "|---|---|---|",
        *(
            _row(f"`{name}`", when, data or "–")
            for name, (when, data) in texts.QUEUE_EVENTS.items()
        ),
        "",
        "## Events of a worker",
        "",
        "`worker.on(name, callback)` hears what this one worker does; callbacks may be async.",
        "",
        "| event | when | arguments |",
        "|---|---|---|",
        *(
            _row(f"`{name}`", when, args or "–")
            for name, (when, args) in texts.WORKER_EVENTS.items()
        ),
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------- the command line


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its path, each group followed by its commands."""
    for name in CATALOGUE:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for sub in command.list_commands(click.Context(command)):
                found = command.get_command(click.Context(command), sub)
                assert found is not None
                yield f"{name} {sub}", found


def _cli() -> str:
    lines = [
        "# Command line",
        "",
        WRITTEN,
        "",
        "`--url`, `--prefix` and `--json` belong to every command that talks to a server and are not repeated here.",
        "[The guide](../guides/command-line.md) explains durations, exit codes and JSON.",
    ]
    for path, command in commands():
        context = click.Context(command, info_name=f"toril {path}", max_content_width=100)
        lines += ["", f"## toril {path}", ""]
        usage = command.get_usage(context).removeprefix("Usage: ")
        help_text = inspect.cleandoc(command.help or "")
        prose, _, examples = help_text.partition("\b\n")
        lines += [*_prose(prose)]
        lines += ["```text", " ".join(usage.split()), "```"]
        if examples:
            shown = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
            lines += ["", "```sh", *shown, "```"]
        rows = [
            row
            for parameter in command.params
            if parameter.name not in ("url", "prefix", "as_json", "help")
            and isinstance(parameter, click.Option)
            and (row := parameter.get_help_record(context))
        ]
        if rows:
            lines += ["", "| option | what it does |", "|---|---|"]
            lines += [_row(f"`{flag}`", " ".join(text.split()) or "–") for flag, text in rows]
    return "\n".join(lines) + "\n"


def _prose(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n\n"):
        joined = " ".join(paragraph.split())
        yield re.sub(r"(?<=[a-z)\d]\.) +(?=[A-Z])", "\n", joined)
        yield ""


# ---------------------------------------------------------------------- the doctor


def ailments_by_code() -> dict[str, list[Ailment]]:
    """What the doctor can find, by code; a code may have several forms."""
    found: dict[str, list[Ailment]] = {}
    for one in vars(ailments).values():
        if isinstance(one, Ailment):
            found.setdefault(one.code, []).append(one)
    return found


def codes_in_use() -> set[str]:
    return set(ailments_by_code())


_AREAS = {
    "1": "The server",
    "2": "Queues",
    "3": "Handlers and workers",
    "4": "The outbox",
    "5": "The keyspace",
}


def _doctor() -> str:
    _same(codes_in_use(), CODES, "codes of the doctor")
    lines = [
        "# Doctor",
        "",
        WRITTEN,
        "",
        "`toril doctor` examines a running system and prints findings; each has a code.",
        "`toril doctor --explain D201` prints the page of a code in your terminal.",
    ]
    for digit, area in _AREAS.items():
        lines += ["", f"## {area}", "", "| code | finding | severity |", "|---|---|---|"]
        lines += [
            _row(f"[{code}]({code}.md)", one.title, _severities(code))
            for code, one in CODES.items()
            if code[1] == digit
        ]
    return "\n".join(lines) + "\n"


def _severities(code: str) -> str:
    found = [
        severity.value
        for one in ailments_by_code()[code]
        for severity in (one.severity, one.worst)
        if severity is not None
    ]
    return ", ".join(dict.fromkeys(found))


def _code(code: str) -> str:
    one = CODES[code]
    steps = [f"{number}. {_coded(step)}" for number, step in enumerate(one.steps, 1)]
    return "\n".join(
        [
            f"# {code}: {one.title}",
            "",
            WRITTEN,
            "",
            f"Severity: {_severities(code)}.",
            "",
            "## What the doctor looks at",
            "",
            _coded(one.looks_at),
            "",
            "## Why it matters",
            "",
            _coded(one.why),
            "",
            "## What to do",
            "",
            *steps,
            "",
        ]
    )


def _coded(text: str) -> str:
    """The text with links to the other codes that it names."""
    return re.sub(r"\bD(\d{3})\b", r"[D\1](D\1.md)", text)


# ---------------------------------------------------------------------- helpers


def _same(known: Iterable[str], described: Iterable[str], what: str) -> None:
    missing, gone = set(known) - set(described), set(described) - set(known)
    if missing:
        raise Incomplete(f"{what} without a text: {', '.join(sorted(missing))}")
    if gone:
        raise Incomplete(f"{what} that do not exist: {', '.join(sorted(gone))}")


def _row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
