"""The files in deploy/ fit what they are read by, and name only what exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.cli.test_examples import parse
from tests.helpers import not_run, wait_until_sync
from tests.servers import Server, free_port
from toril.cli.main import toril as cli
from toril.contrib.prometheus import BUCKETS_S, QueueCollector, RelayCollector, _Meters
from toril.outbox.relay import RelayMetrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(set((DEPLOY / "kubernetes").glob("*.yaml")))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "toril.rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
BOARD = json.loads((DEPLOY / "grafana" / "toril.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
RUNBOOKS = (ROOT / "docs" / "operations" / "alerts.md").read_text()


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def check_command(words: list[str]) -> None:
    """Toril understands the command line, and a Python file is there."""
    if words[0] == "toril":
        parse(words, cli)
    elif words[:2] == ["python", "-m"]:
        assert words[2] in ("models", "exporter"), "the tutorial's module, and the one in deploy/"


# ---------------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_fits_the_schema_of_kubernetes(path: Path):
    for document in documents(path):
        if document["kind"] != "Kustomization":
            kubernetes_validate.validate(document, "1.30", strict=True)


def test_the_manifests_fit_together():
    every = [document for path in MANIFESTS for document in documents(path)]
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in every
        if each["kind"] == "Deployment"
    ]
    listed = next(each for each in every if each["kind"] == "Kustomization")["resources"]

    assert sorted(listed) == sorted(
        path.name for path in MANIFESTS if path.name != "kustomization.yaml"
    )
    for each in every:
        spec = each.get("spec", {})
        if each["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"] in labels
        if each["kind"] == "Service":
            assert spec["selector"] in labels
        if each["kind"] == "Deployment":
            (container,) = spec["template"]["spec"]["containers"]
            check_command(container["command"])
            assert container["securityContext"]["readOnlyRootFilesystem"]
            names = {port["name"] for port in container["ports"]}
            for probe in ("livenessProbe", "readinessProbe"):
                assert (
                    container.get(probe, {"httpGet": {"port": "http"}})["httpGet"]["port"] in names
                )


def test_kustomize_puts_them_together():
    if not shutil.which("kubectl"):
        not_run("kubectl is not there; see https://kubernetes.io/docs/tasks/tools/")
    made = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, timeout=60
    )

    assert made.returncode == 0, made.stderr
    kinds = [each["kind"] for each in yaml.safe_load_all(made.stdout)]
    assert kinds.count("Deployment") == 4


# ---------------------------------------------------------------------- Compose, Docker, systemd


def test_the_compose_file_names_only_what_it_has():
    services = COMPOSE["services"]

    assert {"valkey", "worker", "relay", "exporter", "dashboard"} <= set(services)
    for name, service in services.items():
        assert "image" in service, name
        for other, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for {other} to be healthy"
            else:
                assert services[other]["restart"] == "no", f"{name} waits for {other} to end"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
        if "toril" in service.get("command", ())[:1] or "python" in service.get("command", ())[:1]:
            check_command(service["command"])


def docker_compose_config(**variables: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("docker-compose"):
        not_run("docker-compose is not there; on Debian: apt install docker-compose")
    # Debian's docker-compose is 1.29: it knows all of the file but the name at its top.
    text = (DEPLOY / "compose.yaml").read_text().replace("\nname: shop\n", "\n")
    return subprocess.run(
        ["docker-compose", "-p", "shop", "-f", "-", "--profile", "watch", "config"],
        input=text,
        cwd=DEPLOY,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_docker_compose_accepts_the_compose_file():
    done = docker_compose_config(TORIL_DASHBOARD_PASSWORD="correct-horse")

    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(COMPOSE["services"])


def test_docker_compose_asks_for_a_password():
    done = docker_compose_config()

    assert done.returncode != 0
    assert "set a password for the dashboard" in done.stderr


def test_the_dockerfile_runs_a_command_that_exists():
    """tests/docs/test_learn.py follows its other lines."""
    text = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    extras = re.search(r"toril\[([\w,]+)\]", text)

    assert json.loads(command) == COMPOSE["services"]["worker"]["command"]
    check_command(json.loads(command))
    assert extras is not None
    offered = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras[1].split(",")) <= set(offered)


def test_docker_is_sent_what_the_dockerfile_copies():
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)

    assert "*" in ignore
    assert sorted(sent) == sorted(source for line in copied for source in line.split())


@pytest.mark.parametrize(
    "path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name
)
def test_a_unit_runs_a_command_that_exists(path: Path):
    (start,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
    words = [word.replace("%i", "1").replace("%H", "host") for word in start.split()]

    check_command([Path(words[0]).name, *words[1:]] if "toril" in words[0] else ["other"])
    if "python" in words[0]:
        assert (DEPLOY / Path(words[1]).name).exists()


def test_systemd_accepts_the_units(tmp_path):
    if not shutil.which("systemd-analyze"):
        not_run("systemd-analyze is not there; on Debian: apt install systemd")
    for path in (DEPLOY / "systemd").glob("*.service"):
        text = re.sub(r"/srv/shop/.venv/bin/\w+", "/bin/true", path.read_text())
        (tmp_path / path.name).write_text(text)

    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")


def seconds(words: list[str]) -> int:
    """What a command line says after ``--timeout``."""
    return int(words[words.index("--timeout") + 1].removesuffix("s"))


def grace(name: str) -> list[tuple[str, int, int]]:
    """Who kills a process, the process's own limit, and how long is waited before the kill."""
    (pod,) = [
        each["spec"]["template"]["spec"]
        for each in documents(DEPLOY / "kubernetes" / f"{name}.yaml")
        if each["kind"] == "Deployment"
    ]
    (unit,) = (DEPLOY / "systemd").glob(f"toril-{name}*.service")
    (start,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE)
    service = COMPOSE["services"][name]
    return [
        (
            "kubernetes",
            seconds(pod["containers"][0]["command"]),
            pod["terminationGracePeriodSeconds"],
        ),
        ("systemd", seconds(start.split()), int(stop)),
        ("compose", seconds(service["command"]), int(service["stop_grace_period"].rstrip("s"))),
    ]


@pytest.mark.parametrize("name", ["worker", "relay"])
def test_there_is_time_to_stop(name: str):
    """Whoever kills waits longer than the process's own limit."""
    for who, limit, waits in grace(name):
        assert waits > limit, who


# ---------------------------------------------------------------------- what is watched


@pytest.fixture(scope="module")
def metrics(server: Server) -> set[str]:
    """The names of all samples that Toril can give."""
    names: set[str] = set()
    workers = CollectorRegistry()
    meters = _Meters(workers, BUCKETS_S)
    for meter in vars(meters).values():
        if hasattr(meter, "labels"):
            meter.labels(*["x"] * len(meter._labelnames))
    queues = QueueCollector(
        ["any"], connection=server.url, dead_letter_queues=["any-dlq"], registry=CollectorRegistry()
    )
    relay = SimpleNamespace(
        metrics=RelayMetrics(), table=SimpleNamespace(name="outbox"), is_running=False
    )
    relays = RelayCollector(relay, registry=None)  # type: ignore[arg-type]
    for collector in (workers, queues, relays):
        names |= {sample.name for family in collector.collect() for sample in family.samples}
    queues.close()
    return names


def test_queries_are_promql_and_ask_for_metrics_that_exist(metrics: set[str]):
    for query in [*(rule["expr"] for rule in ALERTS), *QUERIES]:
        promql_parser.parse(query.replace("$__rate_interval", "5m"))

        asked = set(re.findall(r"\btoril_\w+", query))
        assert asked, query
        assert asked <= metrics, query


def test_every_metric_is_on_the_dashboard(metrics: set[str]):
    shown = set(re.findall(r"\btoril_\w+", " ".join(QUERIES)))
    parts = ("_sum", "_count", "_created")

    assert {name for name in metrics if not name.endswith(parts)} - shown == set()


def test_every_alert_has_a_runbook_and_the_other_way_round():
    headings = re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE)

    assert headings == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["runbook"].endswith(f"alerts.md#{rule['alert'].lower()}")
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"`{rule['expr']}`" in RUNBOOKS.replace("\\|", "|")


def _scraped(port: int) -> str:
    """What the exporter serves; nothing while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except OSError:
        return ""
    return text if "toril_up" in text else ""


def test_the_exporter_serves_what_a_queue_holds(url: str):
    port = free_port()
    settings = {"TORIL_URL": url, "TORIL_QUEUES": "any", "TORIL_EXPORTER_PORT": port}
    exporter = subprocess.Popen(
        [sys.executable, DEPLOY / "exporter.py"],
        env={**os.environ, **{name: str(value) for name, value in settings.items()}},
    )
    try:
        text = wait_until_sync(lambda: _scraped(port))
        assert "toril_up 1.0" in text
        assert 'toril_jobs{queue="any",state="waiting"} 0.0' in text
    finally:
        exporter.terminate()

    assert exporter.wait(60) == 0
