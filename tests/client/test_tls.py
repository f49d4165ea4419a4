"""``rediss://``: TLS with a certificate that is checked, for the queue and for the worker."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.helpers import not_run
from toril import Queue, Worker
from toril.errors import ServerUnavailableError


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        not_run("there is no openssl to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        " -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return cert, key


@pytest.fixture
async def tls_address(server, certificate) -> AsyncIterator[str]:
    """A TLS door before the server: the embedded one is built without."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(_pour(reader, back), _pour(there, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    door = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield f"rediss://127.0.0.1:{door.sockets[0].getsockname()[1]}"
    door.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def test_jobs_travel_over_tls(tls_address, certificate, prefix):
    url = f"{tls_address}?ssl_ca_certs={certificate[0]}"

    async def double(job):
        return job.data["n"] * 2

    async with (
        Queue("q", connection=url, prefix=prefix) as queue,
        Worker("q", double, connection=url, prefix=prefix),
    ):
        job = await queue.add("double", {"n": 21})
        assert await queue.wait_for(job.id, timeout=60_000) == 42


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_address, prefix):
    async with Queue("q", connection=tls_address, prefix=prefix) as queue:
        with pytest.raises(ServerUnavailableError, match=r"(?i)certificate"):
            await queue.add("double", {"n": 21})
