"""`make demo`: the first thing that a stranger runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from toril.cli.demo import saga
from toril.cli.demo.stage import Stage


def busyness() -> float:
    """How many programs want each core: what a minute of a machine of one's own becomes here."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.first
def test_the_demo_shows_the_whole_in_under_a_minute_and_leaves_nothing_behind(
    cli_env: dict[str, str], tmp_path: Path
):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "toril", "demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=cli_env,
        timeout=400,
    )
    taken_s, busy = time.monotonic() - began, busyness()

    assert done.returncode == 0, done.stdout + done.stderr
    facts = {
        " ".join(cells[0].split()): cells[1].strip()
        for line in done.stdout.splitlines()
        if len(cells := line.strip("│ ").split("│")) == 2
    }
    assert facts["order 1"] == "COMPLETED"
    assert facts["order 2"] == "FAILED, r-2 refunded"
    assert facts["lanes in order"] == "3 of 3"
    assert facts["customers served at once"] == "up to 3"
    assert facts["dead letters"] == facts["replayed"] == facts["delivered in the end"] == "8"
    assert int(facts["jobs per second in the burst"].replace(",", "")) > 100 / busy
    assert re.search(r"send-email +mail +- +cancelled", done.stdout), "the mail was kept back"
    assert "1 2 3 4 5 6" in done.stdout
    assert "monitor" in done.stdout.partition("Try next")[2]
    assert taken_s < 60 * busy
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []

    told = done.stdout.partition("Try next")[2]
    commands = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    assert [line.split()[-1] for line in commands[-2:]] == ["queues", "monitor"]
    typed = "\n".join(["set -e", *commands[:-1], f"{commands[-1]} --json"])
    env = {name: value for name, value in cli_env.items() if name != "TORIL_URL"}
    tried = subprocess.run(
        ["sh", "-c", typed], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert '"queue": "payments"' in tried.stdout, "what it says to try next works as it says it"


async def test_a_mail_is_kept_back_however_late_the_steps_before_it_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real_sleep = asyncio.sleep

    async def sleep_late(seconds: float) -> None:
        await real_sleep(seconds + 1 if seconds == saga._STEP_S else seconds)

    busy = SimpleNamespace(sleep=sleep_late, create_task=asyncio.create_task)
    monkeypatch.setattr(saga, "asyncio", busy)
    shown = StringIO()

    facts = await saga.order_that_fails(Stage(Console(file=shown)), f"embedded:{tmp_path}/data")

    assert facts == {"order 2": "FAILED, r-2 refunded"}
    assert re.search(r"send-email +mail +- +cancelled", shown.getvalue()), shown.getvalue()


def test_make_demo_runs_it():
    root = Path(__file__).parent.parent.parent
    dry = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=root, capture_output=True, text=True, timeout=60
    )

    assert "python -m toril demo" in dry.stdout
