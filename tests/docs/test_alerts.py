"""Prometheus accepts the rules, and every alert fires when it should and only then.

Each alert has two small histories of series, in promtool's notation: `1+2x60` is 1, 3, 5 … for 60
more minutes, `_x5` is five minutes without a sample.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.helpers import not_run

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "toril.rules.yaml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
MAIL = {"queue": "mail"}


class History(NamedTuple):
    at: str
    series: dict[str, str]


class Case(NamedTuple):
    """``fires`` raises the alert with these labels and this summary; ``silent`` does not."""

    labels: dict[str, str]
    summary: str
    fires: History
    silent: History


def waits(seconds: int) -> dict[str, str]:
    """One job a minute that waited between 30 s and 60 s, or more."""
    fast = "0+1x40" if seconds <= 60 else "0x40"
    return {
        'toril_job_wait_seconds_bucket{queue="mail",le="30"}': "0x40",
        'toril_job_wait_seconds_bucket{queue="mail",le="60"}': fast,
        'toril_job_wait_seconds_bucket{queue="mail",le="300"}': "0+1x40",
        'toril_job_wait_seconds_bucket{queue="mail",le="+Inf"}': "0+1x40",
    }


def attempts(failed: str, completed: str) -> dict[str, str]:
    return {
        'toril_attempts_total{queue="mail",outcome="retried"}': failed,
        'toril_attempts_total{queue="mail",outcome="completed"}': completed,
    }


def waiting(jobs: str) -> str:
    return f'toril_jobs{{queue="mail",state="{jobs}"}}'


CASES = {
    "TorilServerDown": Case(
        {},
        "Redis does not answer the exporter",
        History("3m", {"toril_up": "1 0 0 0 0"}),
        History("3m", {"toril_up": "1 0 1 0 1"}),
    ),
    "TorilExporterMissing": Case(
        {},
        "No exporter reports what the queues hold",
        History("12m", {"toril_up": "1 _x20"}),
        History("12m", {"toril_up": "1 1 1 _x4 1x20"}),
    ),
    "TorilNoWorkers": Case(
        MAIL,
        "Jobs wait in mail and no worker reports for it",
        History("6m", {waiting("waiting"): "3x10"}),
        History("6m", {waiting("waiting"): "3x10", 'toril_running_jobs{queue="mail"}': "0x10"}),
    ),
    "TorilBacklogGrows": Case(
        MAIL,
        "mail is growing: 2360 jobs are waiting",
        History("68m", {waiting("waiting"): "1000+20x80"}),
        History("68m", {waiting("waiting"): "3000-20x80"}),
    ),
    "TorilJobsWaitLong": Case(
        MAIL,
        "One job in twenty of mail waits more than a minute",
        History("25m", waits(120)),
        History("25m", waits(50)),
    ),
    "TorilManyFailures": Case(
        MAIL,
        "More than 20 % of the attempts in mail fail",
        History("25m", attempts("0+3x40", "0+7x40")),
        History("25m", attempts("0+1x40", "0+9x40")),
    ),
    "TorilDeadLetters": Case(
        MAIL,
        "Jobs of mail failed for good",
        History("10m", {'toril_dead_lettered_jobs_total{queue="mail"}': "0x5 1x20"}),
        History("30m", {'toril_dead_lettered_jobs_total{queue="mail"}': "0x5 1x40"}),
    ),
    "TorilDeadLettersWait": Case(
        {"queue": "mail-dlq"},
        "mail-dlq has held 2 dead letters for a day",
        History("1450m", {'toril_dead_letters{queue="mail-dlq"}': "2x1500"}),
        History("1450m", {'toril_dead_letters{queue="mail-dlq"}': "2x700 0 2x800"}),
    ),
    "TorilGroupNeedsPerson": Case(
        MAIL,
        "A group of mail is half done and needs a person",
        History("1m", {'toril_groups_needing_person{queue="mail"}': "1x5"}),
        History("1m", {'toril_groups{queue="mail",state="COMPENSATING"}': "1x5"}),
    ),
    "TorilJobsStall": Case(
        MAIL,
        "Workers of mail die or freeze while they run jobs",
        History("14m", {'toril_stalled_jobs_total{queue="mail"}': "0+1x20"}),
        History("14m", {'toril_stalled_jobs_total{queue="mail"}': "0x5 2x20"}),
    ),
    "TorilLocksLost": Case(
        MAIL,
        "Workers of mail lost locks; jobs may have run twice",
        History("10m", {'toril_lost_jobs_total{queue="mail"}': "0x5 1x20"}),
        History("10m", {'toril_lost_jobs_total{queue="mail"}': "4x20"}),
    ),
    "TorilThreadsAbandoned": Case(
        MAIL,
        "Handlers of mail hang past their timeout",
        History("16m", {'toril_abandoned_threads{queue="mail"}': "1x30"}),
        History("16m", {'toril_abandoned_threads{queue="mail"}': "1x10 0 1x20"}),
    ),
    "TorilOutboxLag": Case(
        {"outbox": "outbox"},
        "Committed jobs of outbox are not in Redis",
        History("4m", {'toril_outbox_lag_seconds{outbox="outbox"}': "0 90+60x10"}),
        History("4m", {'toril_outbox_lag_seconds{outbox="outbox"}': "0 90 0 90 0 90"}),
    ),
    "TorilOutboxParked": Case(
        {"outbox": "outbox"},
        "Rows of outbox cannot be sent and were parked",
        History("1m", {'toril_outbox_parked_rows{outbox="outbox"}': "1x5"}),
        History("1m", {'toril_outbox_parked_rows{outbox="outbox"}': "0x5"}),
    ),
    "TorilNoRelay": Case(
        {"outbox": "outbox"},
        "No relay reports for outbox; committed jobs wait there",
        History("15m", {'toril_outbox_pending_rows{outbox="outbox",pod="a"}': "0 0 _x20"}),
        History(
            "15m",
            {
                'toril_outbox_pending_rows{outbox="outbox",pod="a"}': "0 0 _x20",
                'toril_outbox_pending_rows{outbox="outbox",pod="b"}': "_ _ 0x20",
            },
        ),
    ),
}


def promtool(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    if not shutil.which("promtool"):
        not_run("promtool is not there; on Debian: apt install prometheus")
    return subprocess.run(
        ["promtool", *words], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_every_alert_has_a_case():
    assert list(CASES) == list(ALERTS)


def test_prometheus_accepts_the_rules_and_the_configuration(tmp_path: Path):
    shutil.copy(FOLDER / "toril.rules.yaml", tmp_path)
    settings = (FOLDER / "prometheus.yaml").read_text()
    assert "/etc/prometheus/toril.rules.yaml" in settings
    (tmp_path / "prometheus.yaml").write_text(settings.replace("/etc/prometheus/", ""))

    rules = promtool("check", "rules", "toril.rules.yaml", cwd=tmp_path)
    whole = promtool("check", "config", "prometheus.yaml", cwd=tmp_path)

    assert (rules.returncode, whole.returncode) == (0, 0), rules.stderr + whole.stderr
    assert f"{len(ALERTS)} rules found" in rules.stdout


def expected(name: str, case: Case) -> dict[str, Any]:
    rule = ALERTS[name]
    return {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }


def history(name: str, past: History, alerts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in past.series.items()],
        "alert_rule_test": [{"eval_time": past.at, "alertname": name, "exp_alerts": alerts}],
    }


def verdict(tests: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(FOLDER / "toril.rules.yaml", folder)
    whole = {"rule_files": ["toril.rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(whole))
    return promtool("test", "rules", "tests.yaml", cwd=folder)


@pytest.mark.first
def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path):
    tests = [
        history(name, past, alerts)
        for name, case in CASES.items()
        for past, alerts in ((case.fires, [expected(name, case)]), (case.silent, []))
    ]

    done = verdict(tests, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("state", ["prioritized", "delayed"])
def test_whatever_waits_waits_for_workers(tmp_path: Path, state: str):
    """All tasks of Django have a priority, and the next job of a schedule is delayed."""
    case = CASES["TorilNoWorkers"]
    past = History("6m", {waiting(state): "3x10"})

    done = verdict([history("TorilNoWorkers", past, [expected("TorilNoWorkers", case)])], tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_letter_with_which_a_series_begins_is_told(tmp_path: Path):
    """Prometheus sees no increase in it: a worker that knows no other letter of the name."""
    case = CASES["TorilDeadLetters"]
    series = 'toril_dead_lettered_jobs_total{queue="mail",name="charge"}'
    tests = [
        history("TorilDeadLetters", History("12m", {series: values}), alerts)
        for values, alerts in (
            ("_x10 1x30", [expected("TorilDeadLetters", case)]),
            ("_x10 0x30", []),
        )
    ]
    tests.append(history("TorilDeadLetters", History("35m", {series: "_x10 1x30"}), []))

    done = verdict(tests, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_is_found(tmp_path: Path):
    """So that the test above says something."""
    case = CASES["TorilServerDown"]

    assert verdict([history("TorilServerDown", case.fires, [])], tmp_path).returncode != 0
