"""Measure Toril and its peers on this machine: the entry point of ``make bench``.

Prints the tables and writes ``RESULTS.md``. A peer that cannot be installed and a program that
fails are reported and left out: a benchmark never fails a build.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import installing
import measuring
import report

import servers

RESULTS = installing.BENCHMARKS / "RESULTS.md"
FULL = measuring.Sizes(jobs=20_000, samples=500, many=1_000_000, memory=100_000)
QUICK = measuring.Sizes(jobs=2_000, samples=50, many=20_000, memory=10_000)


def main() -> None:
    given = _arguments()
    sizes = QUICK if given.quick else FULL
    if given.jobs:
        sizes = measuring.Sizes(given.jobs, sizes.samples, sizes.many, sizes.memory)
    rounds = given.rounds or (1 if given.quick else 3)
    try:
        places = servers.find(given.server)
    except servers.NoServerError as reason:
        print(f"nothing measured: {reason}", file=sys.stderr)
        return
    subjects = _subjects(given.only)
    measures = [name for name in measuring.MEASURES if name in given.only] or measuring.MEASURES
    runs = []
    for place in places:
        results = measuring.measure_all(place, subjects, measures, sizes, rounds)
        report.show(results, subjects)
        runs.append(results)
    if given.write or not (given.quick or given.only):
        report.write(Path(given.output), runs, subjects, rounds, _caveat(given))
        print(f"written to {given.output}")


def _subjects(only: set[str]) -> list[measuring.Subject]:
    """Those that ``--only`` names, or all; Toril is always first."""
    names = only - set(measuring.MEASURES)
    ready = [each for each in measuring.toril_subjects() if not names or each.name in names]
    for peer in installing.PEER_LIST:
        if names and peer.name not in names:
            continue
        try:
            ready.append(measuring.peer_subject(peer))
        except installing.NotInstallableError as reason:
            print(f"{peer.label} left out: {reason}", file=sys.stderr)
    return ready


def _caveat(given: argparse.Namespace) -> str:
    if given.quick:
        return "A quick run: it shows that everything runs; its figures and verdicts mean nothing."
    return "A partial run." if given.only else ""


def _arguments() -> argparse.Namespace:
    known = [measuring.TORIL, measuring.TORIL_UVLOOP, *(peer.name for peer in installing.PEER_LIST)]
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Measure Toril and its peers.",
        epilog=f"measures: {', '.join(measuring.MEASURES)}. queues: {', '.join(known)}.",
    )
    parser.add_argument("--jobs", type=int, help=f"jobs per measurement (default {FULL.jobs:,})")
    parser.add_argument("--rounds", type=int, help="alternating rounds (default 3; 1 with --quick)")
    parser.add_argument(
        "--only", default="", type=_names, help="measures and queues, separated by commas"
    )
    parser.add_argument(
        "--server", help="valkey, redis, or the URL of an empty server (default: all found here)"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers: does everything run?")
    parser.add_argument(
        "--write", action="store_true", help="also write the results of a quick or partial run"
    )
    parser.add_argument("--output", default=str(RESULTS), help="where to (default RESULTS.md)")
    given = parser.parse_args()
    if unknown := given.only - set(known) - set(measuring.MEASURES):
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}")
    return given


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


if __name__ == "__main__":
    main()
