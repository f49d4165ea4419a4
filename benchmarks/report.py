"""The tables of a run: on the terminal and in ``RESULTS.md``."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bars import NOTHING, Bar, judge
from measuring import BASIC, IN_TURNS, ONCE, SWEEPS, TORIL, Results, Sizes, Subject

HEADINGS = {
    "add": "add, one by one",
    "add_bulk": "add, bulk",
    "add_concurrent": "add, 100 tasks",
    "drain": "drain",
    "latency": "pick-up p50 / p99, ms",
}
UNITS = {
    "rate": "/s",
    "wall_rate": "/s",
    "bare_rate": "/s",
    "whole_groups": "/s",
    "add_wall_rate": "/s",
    "bytes": " bytes",
    "p99": " ms",
    "longest_ms": " ms",
    "cpu_percent": " %",
}


def show(results: Results, subjects: Sequence[Subject]) -> None:
    """Print the tables, with rich where it is installed."""
    _print_table(
        f"Jobs per second on {results.server} (how many times as fast Toril is)",
        *_comparison(results, subjects),
    )
    _print_table("Toril's own", *_own(results, subjects))
    _print_table("Bars", *_bars(judge(results, subjects)))
    if results.reasons:
        print(_reasons(results))


def write(
    path: Path, runs: Sequence[Results], subjects: Sequence[Subject], rounds: int, caveat: str = ""
) -> None:
    """Write everything a reader needs to trust or to repeat the run."""
    sections = [_preamble(subjects, runs[0].sizes, rounds)]
    if caveat:
        sections.append(f"**{caveat}**")
    for results in runs:
        sections += [
            f"## {results.server}",
            "Jobs per second, and in brackets how many times as fast Toril is.",
            _markdown(*_comparison(results, subjects)),
            "### Toril's own",
            _markdown(*_own(results, subjects)),
            "### Bars",
            _markdown(*_bars(judge(results, subjects))),
        ]
        if results.reasons:
            sections += ["### Not measured", _reasons(results)]
    path.write_text("\n\n".join(sections) + "\n")


def _comparison(results: Results, subjects: Sequence[Subject]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for subject in subjects:
        cells = [_rate(results, subject.name, measure) for measure in BASIC if measure != "latency"]
        rows.append([subject.label, *cells, _latency(results, subject.name)])
    return ["", *HEADINGS.values()], rows


def _rate(results: Results, subject: str, measure: str) -> str:
    seen = results.median(subject, measure)
    if seen is None:
        return NOTHING
    ours = results.median(TORIL, measure)
    if ours is None or subject == TORIL:
        return f"{seen:,.0f}"
    return f"{seen:,.0f} ({ours / seen:.1f}x)"


def _latency(results: Results, subject: str) -> str:
    middle = results.median(subject, "latency", "p50")
    worst = results.median(subject, "latency", "p99")
    if middle is None or worst is None:
        return NOTHING
    ours = results.median(TORIL, "latency", "p50")
    ratio = f" ({middle / ours:.1f}x)" if ours and subject != TORIL else ""
    return f"{middle:.2f} / {worst:.2f}{ratio}"


def _own(results: Results, subjects: Sequence[Subject]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for measure in (*IN_TURNS, *ONCE):
        seen = results.figures.get((TORIL, measure), [])
        if not seen:
            continue
        names = dict.fromkeys(name for each in seen for name in each)
        figures = [_figure(name, results.median(TORIL, measure, name) or 0.0) for name in names]
        for subject in (each for each in subjects if not each.is_toril):
            rate = results.median(subject.name, measure)
            server_us = results.median(subject.name, measure, "server_us")
            if rate:
                spent = "" if server_us is None else f" (server {server_us:.0f} µs)"
                figures.append(f"{subject.label} {rate:,.0f}/s{spent}")
        label = f"bulk: {measure}" if measure in SWEEPS else measure
        rows.append([label.replace("_", " "), ", ".join(figures)])
    return ["", "medians"], rows


def _figure(name: str, value: float) -> str:
    unit = UNITS.get(name, "")
    if name.endswith("_us"):
        return f"{name.removesuffix('_us').replace('_', ' ')} {value:.0f} µs"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{name.replace('_', ' ')} {text}{unit}"


def _bars(bars: Iterable[Bar]) -> tuple[list[str], list[list[str]]]:
    rows = [[bar.what, bar.target, bar.seen, bar.verdict] for bar in bars]
    return ["bar", "target", "seen", ""], rows


def _preamble(subjects: Sequence[Subject], sizes: Sizes, rounds: int) -> str:
    lines = [
        "# Results",
        "",
        f"Measured on {datetime.now(UTC):%Y-%m-%d} by `make bench`: {_machine()}.",
        f"{sizes.jobs:,} no-op jobs with a small payload, worker concurrency 100.",
        f"Medians of {rounds} alternating rounds.",
        "Every measurement ran in its own process on an empty server.",
        "Servers that the run started itself keep nothing on disk.",
        "A figure is only good against another of the same run.",
        "",
        "| | version |",
        "|---|---|",
        *(f"| {subject.label} | {subject.version}{_note(subject)} |" for subject in subjects),
        *(f"| {name} | {version} |" for name, version in _runtimes()),
    ]
    return "\n".join(lines)


def _note(subject: Subject) -> str:
    return f" ({subject.note})" if subject.note else ""


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{os.cpu_count()} cores, {model}, {platform.system()}"


def _runtimes() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    if node := shutil.which("node"):
        done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
        found.append(("Node", done.stdout.strip().removeprefix("v")))
    for package in ("redis", "hiredis", "msgspec"):
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _markdown(headings: list[str], rows: list[list[str]]) -> str:
    alignment = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, alignment, *rows))


def _reasons(results: Results) -> str:
    return "\n".join(
        f"- {subject}, {measure.replace('_', ' ')}: {_portable(reason)}"
        for (subject, measure), reason in results.reasons.items()
    )


def _portable(reason: str) -> str:
    """A message without the paths of this machine."""
    here = str(Path(__file__).resolve().parent.parent)
    return reason.replace(here, ".").replace(str(Path.home()), "~")


def _print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _print_plain(title, headings, rows)
        return
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(_coloured(cell) for cell in row))
    Console().print(table)


def _coloured(cell: str) -> str:
    colour = {"pass": "green", "miss": "red", "not measured": "dim"}.get(cell)
    return f"[{colour}]{cell}[/]" if colour else cell


def _print_plain(title: str, headings: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    print(f"\n{title}")
    for row in (headings, *rows):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
