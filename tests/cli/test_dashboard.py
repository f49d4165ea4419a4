"""``toril dashboard``: a real process, and a visitor."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys

import httpx

from tests.cli.conftest import Toril
from toril import Queue


async def test_it_is_served_as_it_was_told(url: str, prefix: str):
    async with Queue("payments", connection=url, prefix=prefix) as queue:
        await queue.add("charge", {"card": "4111"}, job_id="one")
    command = [sys.executable, "-m", "toril", "dashboard", "--port", "0", "--json", "--read-only"]
    command += ["--redact", "card", "--allow-host", "jobs.example.com", "--password", "long enough"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORIL_URL": url, "TORIL_PREFIX": prefix},
    )
    try:
        assert process.stdout is not None
        said = json.loads(await asyncio.to_thread(process.stdout.readline))
        async with httpx.AsyncClient(
            base_url=said["url"], follow_redirects=True, timeout=60
        ) as http:
            page = await http.get("/")
            assert "Log in" in page.text
            [token] = re.findall(r'name="token" value="(\w+)"', page.text)
            login = {"token": token, "password": "long enough"}
            page = await http.post("/login", data=login, headers={"Sec-Fetch-Site": "same-origin"})
            assert "payments" in page.text
            assert "read only" in page.text
            page = await http.get("/job?queue=payments&id=one")
            assert "••••••" in page.text
            assert "4111" not in page.text
            named = await http.get("/login", headers={"Host": "jobs.example.com"})
            assert named.status_code == 200
            assert (await http.get("/login", headers={"Host": "evil.com"})).status_code == 421
    finally:
        process.terminate()
        _, errors = await asyncio.to_thread(process.communicate, timeout=60)
    assert not errors


def test_it_does_not_start_for_other_machines_without_a_password(toril: Toril):
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused = toril("dashboard", "--host", host, "--port", "0")

        assert refused.code == 2
        assert "TORIL_DASHBOARD_PASSWORD" in refused.err

    short = toril("dashboard", "--host", "0.0.0.0", "--port", "0", "--password", "short")

    assert short.code == 2
    assert "too short" in short.err
