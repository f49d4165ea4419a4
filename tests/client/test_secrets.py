"""No part of an address that may be a secret is printed: in a repr, an error, a log, a command."""

from __future__ import annotations

import asyncio
import logging
import traceback

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel

from toril import FlowProducer, Queue, QueueEvents, Worker
from toril.cli.main import run
from toril.client.connection import Connection
from toril.errors import TorilError
from toril.protocol import address
from toril.sync import Queue as BlockingQueue

SECRETS = ("hunter", "swordfish", "s3cr3t")
"""Parts of the passwords below; nothing that is printed may have one of them."""

READ = [
    "redis://:hunter@127.0.0.1:1",
    "redis://hunter@127.0.0.1:1",
    "redis://hunter:swordfish@127.0.0.1:1/0",
    "redis://hunter:@127.0.0.1:1/0",
    "redis://:hunter@swordfish@127.0.0.1:1",
    "redis://:hunter%2Fswordfish%23@127.0.0.1:1",
    "redis://127.0.0.1:1?password=hunter",
    "redis://127.0.0.1:1/0?username=swordfish&password=hunter%40x",
    "redis://127.0.0.1:1/0?password=hunter@swordfish",
    "redis://127.0.0.1:1/hunter",
    "rediss://127.0.0.1:1?ssl_password=hunter&ssl_keyfile=swordfish",
    "unix://:hunter@/no/such.sock",
    "unix:///no/such.sock?password=hunter",
    "redis+sentinel://:hunter@127.0.0.1:1/main?sentinel_password=swordfish",
    "redis+sentinel://127.0.0.1:1/main/0?sentinel_username=s3cr3t&sentinel_password=swordfish",
    "rediss+sentinel://127.0.0.1:1/main?ssl_password=hunter&sentinel_ssl_password=swordfish",
    "redis+cluster://:hunter@127.0.0.1:1,127.0.0.1:2?x_password=swordfish",
]
UNKNOWN = [
    "redis://127.0.0.1:1?hunter=swordfish",
    "redis://127.0.0.1:1?ssl_password=hunter",
    "redis+sentinel://127.0.0.1:1/main?sentinel_hunter=swordfish",
    "redis+sentinel://127.0.0.1:1/main?hunter=swordfish",
    "redis+cluster://127.0.0.1:1?hunter=swordfish",
]
REFUSED = [
    "rediss//:hunter@127.0.0.1:1",
    "redis:/:hunter@127.0.0.1:1",
    "redis::hunter@127.0.0.1:1",
    "redis:hunter@127.0.0.1:1",
    "rredis://:hunter@127.0.0.1:1",
    "http://hunter:swordfish@127.0.0.1",
    ":hunter@127.0.0.1:1",
    "hunter",
    "hunter:1",
    "hunter://127.0.0.1:1",
    "redis://:hunter/swordfish@127.0.0.1:1",
    "redis://:hunter#swordfish@127.0.0.1:1",
    "redis://:hunter?swordfish@127.0.0.1:1",
    "redis://:hunter?a=swordfish@127.0.0.1:1",
    "redis://hunter/swordfish@127.0.0.1:1",
    "redis://hunter?swordfish@127.0.0.1:1",
    "redis://hunter#swordfish",
    "redis://:s3cr3t@hunter/swordfish@127.0.0.1:1",
    "redis://:hunter[swordfish@127.0.0.1:1",
    "redis://:hunter",
    "redis://user:hunter",
    "redis://127.0.0.1:hunter",
    "redis://127.0.0.1:1:hunter",
    "redis://user:hunter 127.0.0.1",
    "redis://127.0.0.1:1?socket_timeout=hunter",
    "redis+sentinel://:hunter/swordfish@127.0.0.1:1/main",
    "redis+sentinel://:hunter#swordfish@127.0.0.1:1/main",
    "redis+sentinel://:hunter@127.0.0.1:1",
    "redis+sentinel://127.0.0.1:1/main/hunter",
    "redis+sentinel://:hunter",
    "redis+cluster://user:hunter",
    "redis+cluster://:hunter@",
    "redis+pigeon://:hunter@127.0.0.1:1",
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toril.cli.server.PATIENCE_S", 0.0)


def has_no_secret(text: str) -> bool:
    return not any(part in text for part in SECRETS)


def everything_of(error: BaseException) -> str:
    """The error as logs and tracebacks show it, with whatever led to it, hidden or not."""
    parts = [repr(error), str(error), "".join(traceback.format_exception(error))]
    causes = (error.__cause__, error.__context__)
    parts += [everything_of(cause) for cause in causes if cause is not None]
    return "\n".join(parts)


@pytest.mark.parametrize("url", READ)
async def test_an_address_is_shown_without_its_secrets(
    url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG)
    where = address.parse(url)
    shown = [repr(where), str(where), f"{where}"]

    connection = Connection(url, patience_s=0.0)
    queue = Queue("{q}", connection=connection)
    worker = Worker("{q}", print, connection=url)
    shown += [repr(one) for one in (connection, queue, worker)]
    shown.append(repr(FlowProducer(connection=connection, prefix="{bull}")))
    shown.append(repr(QueueEvents("{q}", connection=connection)))
    with pytest.raises(TorilError) as refused:
        await queue.add("job")
    shown.append(everything_of(refused.value))
    await connection.close()
    with BlockingQueue("{q}", connection=url) as blocking:
        shown.append(repr(blocking))

    assert run(["queues", "--url", url]) != 0
    printed = capsys.readouterr()
    assert all(map(has_no_secret, [*shown, caplog.text, printed.out, printed.err]))
    assert "127.0.0.1:1" in str(where) or "/no/such.sock" in str(where) or "@" in url


@pytest.mark.parametrize("url", REFUSED)
def test_an_address_that_cannot_be_read_is_not_repeated(
    url: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(TorilError, match="connection") as refused:
        Connection(url)

    assert has_no_secret(everything_of(refused.value))
    assert run(["queues", "--url", url]) == 2
    assert run(["doctor", "--url", url]) == 2
    printed = capsys.readouterr()
    assert has_no_secret(printed.out + printed.err)


@pytest.mark.parametrize("url", UNKNOWN)
async def test_an_option_that_nobody_knows_is_refused_and_not_repeated(
    url: str, capsys: pytest.CaptureFixture[str]
):
    shown = ""
    try:
        await Queue("{q}", connection=url).add("job")
    except TorilError as error:
        shown = everything_of(error)

    assert has_no_secret(shown)
    assert await asyncio.to_thread(run, ["queues", "--url", url]) in (2, 3)
    assert has_no_secret("".join(capsys.readouterr()))


@pytest.mark.parametrize(
    "target",
    [b"redis://:hunter@127.0.0.1", {"host": "h", "password": "hunter"}, ("h", "hunter"), 1],
)
def test_what_is_no_address_is_not_repeated(target: object):
    with pytest.raises(TorilError, match=type(target).__name__) as refused:
        Connection(target)  # type: ignore[arg-type]

    assert has_no_secret(everything_of(refused.value))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_client_of_redis_py_keeps_its_password_to_itself(is_async: bool):
    module = redis.asyncio if is_async else redis
    client = module.Redis(host="127.0.0.1", port=1, username="swordfish", password="hunter")
    connection = Connection(client, patience_s=0.0)

    assert has_no_secret(repr(address.of_client(client)) + repr(connection))
    assert "127.0.0.1:1" in repr(connection)


async def test_sentinels_that_do_not_answer_keep_their_passwords():
    sentinel = Sentinel([("127.0.0.1", 1)], sentinel_kwargs={"password": "swordfish"})
    connection = Connection(sentinel.master_for("main", password="hunter"), patience_s=0.0)
    queue = Queue("{q}", connection=connection)

    with pytest.raises(TorilError, match=r"127\.0\.0\.1:1") as refused:
        await queue.add("job")

    assert has_no_secret(everything_of(refused.value))
