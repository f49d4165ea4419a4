"""What every measuring program in Python shares: arguments, stop-watch, one line of output.

A program is called ``PROGRAM MEASURE --url URL --jobs N --concurrency C`` and prints one JSON
object as its last line. Only the standard library is used: each peer has its own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

CHUNK = 1000
TASKS = 100
WARM_UP = 100


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def rate(self, jobs: int) -> float:
        return jobs / self.seconds()


def arguments(measures: Iterable[str]) -> argparse.Namespace:
    """Read the command line that ``run.py`` writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=sorted(measures))
    parser.add_argument("--url", required=True)
    parser.add_argument("--other-url", help="a second server, empty as well; growth needs two")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    return parser.parse_args()


def quantile(samples: Iterable[float], share: float) -> float:
    """The sample below which ``share`` of all samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """The two figures of a pick-up measurement, in ms."""
    return {"p50": quantile(seconds, 0.5) * 1e3, "p99": quantile(seconds, 0.99) * 1e3}


def chunks(count: int, size: int = CHUNK) -> Iterator[range]:
    """``range(count)`` in slices of ``size``."""
    for start in range(0, count, size):
        yield range(start, min(count, start + size))


def finish(**figures: float) -> NoReturn:
    """Print the figures and leave at once, since no measure includes closing."""
    print(json.dumps(figures), flush=True)
    sys.stderr.flush()
    os._exit(0)
