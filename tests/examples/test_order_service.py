"""The order service runs as its README says: an API and a worker as processes, on each database."""

from __future__ import annotations

import ast
import asyncio
import io
import os
import shutil
import signal
import tokenize
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, text

from tests.forked import PIPE, Forked
from tests.helpers import wait_until
from tests.servers import free_port
from tests.sql.conftest import (  # noqa: F401 (fixtures)
    database_url,
    mariadb,
    mariadb_server,
    postgres,
)
from toril import Queue

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "order_service"
PLAIN = ROOT / "tests" / "examples" / "plain_service"
"""The same service without tasks: what is compared must work."""
NEEDS = ("uvicorn", "fastapi", "sqlalchemy", "click")


@pytest.fixture
def service(request, tmp_path):
    """The folder of the service; that without tasks has the models of the other."""
    if getattr(request, "param", SERVICE) is SERVICE:
        return SERVICE
    folder = tmp_path / "service"
    shutil.copytree(PLAIN, folder)
    shutil.copy(SERVICE / "models.py", folder)
    return folder


@pytest.fixture
async def start(url, prefix, database_url, service):  # noqa: F811
    """Starts programs of the service; they are told to end after the test."""
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "TORIL_URL": url,
        "ORDERS_PREFIX": prefix,
        "PYTHONPATH": str(ROOT / "src"),
    }
    children = []

    def start(*command):
        child = Forked(*command, env=environment, cwd=service, needs=NEEDS)
        children.append(child)
        return child

    yield start
    for child in children:
        child.terminate()
    codes = [await child.ended() for child in children]
    engine = create_engine(database_url)
    with engine.begin() as connection:
        for table in ("orders", "charges", "toril_outbox", "toril_idempotency"):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    engine.dispose()
    # uvicorn ends by the signal that it was told to end with.
    assert set(codes) <= {0, -signal.SIGKILL, -signal.SIGTERM}


def money_moved(database):
    engine = create_engine(database)
    with engine.connect() as connection:
        moved = connection.execute(text("SELECT order_id, amount FROM charges")).all()
    engine.dispose()
    return moved


@pytest.mark.first
@pytest.mark.parametrize("service", [PLAIN], indirect=True, ids=["plain"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_the_service_without_tasks_does_the_same(
    start,
    url,
    prefix,
    database_url,  # noqa: F811
    service,
):
    await check_orders(start, "tasks:workers", url, prefix, database_url)


def test_the_service_is_shorter_with_tasks():
    """And the README tells by how much."""
    with_tasks, without = code_lines(SERVICE), code_lines(PLAIN)

    assert with_tasks < without
    told = (SERVICE / "README.md").read_text()
    assert f"{with_tasks} lines of code; without tasks they have {without}" in told


def code_lines(folder):
    """The lines of app.py and tasks.py that are neither empty, nor comments, nor docstrings."""
    found = 0
    for name in ("app.py", "tasks.py"):
        text = (folder / name).read_text()
        quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        lines = {
            number
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in (*quiet, tokenize.ENDMARKER)
            for number in range(token.start[0], token.end[0] + 1)
        }
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    lines -= set(range(node.lineno, node.end_lineno + 1))
        found += len(lines)
    return found


@pytest.mark.first
async def test_orders_are_charged_once_although_the_programs_are_killed(
    start,
    url,
    prefix,
    database_url,  # noqa: F811
):
    await check_orders(start, "tasks:app", url, prefix, database_url)


async def check_orders(start, target, url, prefix, database_url):  # noqa: F811
    """RULES-02, RULES-13, RULES-15, RULES-16 in one service."""
    port, metrics_port = free_port(), free_port()
    worker = ("-m", "toril", "worker", target, "--metrics-port", str(metrics_port))
    relay = ("-m", "toril", "relay", "tasks:relay")
    start("-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning")
    # A commit may take longer than the 5 seconds of the client, when the disk is busy.
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as api:
        await wait_until(lambda: _answers(api), every=0.05)
        dashboard = await api.get("/toril/")
        too_much = await api.post("/orders", json={"amount": 2_000_000})
        orders = [await order(api, n) for n in range(4)]
        programs = [start(*worker), start(*relay)]
        for number in orders:
            await wait_until(lambda number=number: _has_status(api, number, "paid"), every=0.05)
        for program in programs:
            program.kill()
            await program.ended()
        orders += [await order(api, n) for n in range(4)]
        refused = await order(api, 5000)
        for program in (worker, relay):
            start(*program)
        for number in orders[4:]:
            await wait_until(lambda number=number: _has_status(api, number, "paid"), every=0.05)
        await wait_until(lambda: _is_undone(url, prefix, refused), every=0.05)
        async with httpx.AsyncClient(timeout=60) as client:
            told = (await client.get(f"http://127.0.0.1:{metrics_port}/metrics")).text

        assert too_much.status_code == 422
        assert "<h1>Queues</h1>" in dashboard.text
        assert (await api.get("/orders/999")).status_code == 404
        receipt = (await api.get(f"/orders/{orders[-1]}")).json()["receipt"]
        assert receipt.startswith("receipt for 3 by ")
        assert await _has_status(api, refused, "refunded") or await _has_status(api, refused, "new")
    assert "toril_lost_jobs_total" in told
    assert len(set(orders)) == 8
    moved = await asyncio.to_thread(money_moved, database_url)
    assert sorted(amount for number, amount in moved if number in orders) == sorted([*range(4)] * 2)
    assert sum(amount for number, amount in moved if number == refused) == 0
    async with (
        Queue("payments-dlq", connection=url, prefix=prefix) as dead,
        Queue("mail", connection=url, prefix=prefix) as mail,
        Queue("reports", connection=url, prefix=prefix) as reports,
    ):
        assert await dead.get_dead_letter_count() == 0
        await wait_until(lambda: _has_completed(mail, 9), every=0.05)
        sent = await mail.get_completed()
        assert {job.lane for job in sent} == {"customer:ann"}
        assert len(await reports.get_job_schedulers()) == 1


def test_the_tests_of_the_service_pass(url):
    """They show what users write; the plugin and its fixtures come with the package."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:valkey", "--rootdir", str(SERVICE)]
    command = ["-m", "pytest", *options, "-c", os.devnull, str(SERVICE)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORIL_TEST_URL": url,
    }
    child = Forked(*command, env=environment, cwd=SERVICE, stdout=PIPE, needs=(*NEEDS, "pytest"))
    told = child.stdout.read()

    assert child.wait(60) == 0, told
    assert "6 passed" in told


async def order(api, amount):
    answer = await api.post("/orders", json={"amount": amount})
    return answer.json()["id"]


async def _is_undone(url, prefix, number):
    async with Queue("payments", connection=url, prefix=prefix) as queue:
        info = await queue.get_group_state(f"order-{number}")
        return info is not None and info.state == "FAILED"


async def _has_completed(queue, count):
    return await queue.get_completed_count() == count


async def _answers(api):
    try:
        return (await api.get("/orders/0")).status_code == 404
    except httpx.TransportError:
        return False


async def _has_status(api, number, status):
    return (await api.get(f"/orders/{number}")).json()["status"] == status
