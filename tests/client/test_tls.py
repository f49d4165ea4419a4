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
import redis
import redis.asyncio
import uvloop

from tests.helpers import not_run
from toril import NewJob, Queue, Worker
from toril.client.connection import Connection
from toril.client.sockets import maker
from toril.errors import ServerUnavailableError
from toril.protocol import address
from toril.sync import Queue as BlockingQueue
from toril.sync.connection import Connection as BlockingConnection


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


async def test_one_loop_after_another_over_tls(tls_address, certificate, prefix):
    queue = Queue("q", connection=f"{tls_address}?ssl_ca_certs={certificate[0]}", prefix=prefix)

    for number in range(3):
        job = await asyncio.to_thread(asyncio.run, queue.add("job", number))
        assert job.data == number

    await queue.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_large_jobs_and_many_replies_come_whole_over_tls(
    tls_address, certificate, prefix, loop
):
    """The line takes the socket over from redis-py, the encryption included."""
    url = f"{tls_address}?ssl_ca_certs={certificate[0]}"

    async def program() -> list[int]:
        async with Queue("q", connection=url, prefix=prefix) as queue:
            jobs = [NewJob("job", {"x": "y" * 50_000, "n": number}) for number in range(60)]
            added = await queue.add_bulk(jobs)
            read = await asyncio.gather(*(queue.get_job(job.id) for job in added))
            assert all(len(job.data["x"]) == 50_000 for job in read)
            return [job.data["n"] for job in read]

    def run() -> list[int]:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(program())

    assert await asyncio.to_thread(run) == list(range(60))


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_address, prefix):
    async with Queue("q", connection=tls_address, prefix=prefix) as queue:
        with pytest.raises(ServerUnavailableError, match=r"(?i)certificate"):
            await queue.add("double", {"n": 21})


@pytest.mark.parametrize("how", ["url", "client", "blocking client", "blocking url"])
async def test_a_certificate_for_another_host_is_refused(tls_address, certificate, prefix, how):
    """Redis-py before 6 does not look, unless it is told to."""
    address = tls_address.replace("127.0.0.1", "localhost")
    url = f"{address}?ssl_ca_certs={certificate[0]}"
    port = int(address.rpartition(":")[2])
    settings = {"host": "localhost", "port": port, "ssl": True}
    target = {
        "url": url,
        "blocking url": url,
        "client": redis.asyncio.Redis(**settings, ssl_ca_certs=str(certificate[0])),
        "blocking client": redis.Redis(**settings, ssl_ca_certs=str(certificate[0])),
    }[how]

    if how == "blocking url":
        blocking = BlockingQueue("q", connection=BlockingConnection(url, patience_s=0.0))
        with pytest.raises(ServerUnavailableError, match=r"(?i)certificate"):
            await asyncio.to_thread(blocking.add, "double", {"n": 21})
        return
    connection = Connection(target, patience_s=0.0)
    async with Queue("q", connection=connection, prefix=prefix) as queue:
        with pytest.raises(ServerUnavailableError, match=r"(?i)certificate"):
            await queue.add("double", {"n": 21})
    await connection.close()


@pytest.mark.parametrize("waiver", ["ssl_check_hostname=false", "ssl_cert_reqs=none"])
async def test_who_says_so_gets_another_host(tls_address, certificate, prefix, waiver):
    address = tls_address.replace("127.0.0.1", "localhost")
    url = f"{address}?ssl_ca_certs={certificate[0]}&{waiver}"

    async with Queue("q", connection=url, prefix=prefix) as queue:
        await queue.add("double", {"n": 21})


@pytest.mark.parametrize(
    ("url", "is_checked"),
    [
        ("rediss://h", True),
        ("rediss://h?ssl_check_hostname=false", False),
        ("rediss://h?ssl_cert_reqs=none", None),
        ("rediss+cluster://h", True),
        ("rediss+cluster://h?ssl_check_hostname=no", False),
        ("rediss+sentinel://h/main", True),
        ("rediss+sentinel://h/main?ssl_check_hostname=false", False),
        ("redis://h", None),
        ("redis+sentinel://h/main", None),
    ],
)
def test_the_host_is_checked_by_our_own_word(url, is_checked):
    """What a version of redis-py does by itself makes no difference."""
    where = address.parse(url)
    make = maker(
        where, client_name=None, socket_timeout_s=None, node=("h", 1) if "+c" in url else None
    )
    pool = make.args[0]

    assert pool.connection_kwargs.get("ssl_check_hostname") is is_checked
    if where.kind == "sentinel":
        for one in pool.sentinel_manager.sentinels:
            asked = one.connection_pool.connection_kwargs
            assert asked.get("ssl_check_hostname") is is_checked
