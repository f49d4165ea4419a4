"""What is said of changes to many jobs that end before all are made."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from toril.cli.main import run
from toril.errors import ServerUnavailableError
from toril.sync import Queue

COMMANDS = [
    ("retry_all", ["retry", "--all", "--queue", "q"], "7 jobs were retried"),
    ("promote_all", ["promote", "--all", "--queue", "q"], "7 jobs were promoted"),
    ("drain", ["drain", "q", "--yes"], "7 jobs were removed"),
    ("clean", ["clean", "q", "--yes"], "7 jobs were removed"),
    ("obliterate", ["obliterate", "q", "--yes"], "7 jobs were removed"),
]


@pytest.mark.parametrize(("method", "line", "words"), COMMANDS, ids=lambda one: str(one)[:12])
@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (ServerUnavailableError("away"), 3)], ids=repr
)
def test_what_was_changed_is_told_however_it_ends(
    method: str,
    line: list[str],
    words: str,
    error: BaseException,
    code: int,
    url: str,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def cut_short(self: Queue, *args: Any, on_progress: Any, **options: Any) -> None:
        on_progress(7)
        raise error

    monkeypatch.setattr(Queue, method, cut_short)
    with Queue("q", connection=url, prefix=prefix) as queue:
        queue.add("x")

    assert run(["--url", url, "--prefix", prefix, *line]) == code

    assert f"toril: at least {words} before it ended; run it again to go on" in (
        capsys.readouterr().err
    )


async def test_whoever_interrupts_a_replay_is_told_how_far_it_came_and_how_to_go_on(
    cli_env: dict[str, str], client: Any, url: str, prefix: str
):
    await forge(client, prefix, "dead", 200, source="orders")
    line = ("dlq", "replay", "dead", "--all", "--rate", "20", "--yes", "--json")
    replaying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toril", *line),
        env=cli_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    async def has_heard_of_some() -> bool:
        """The program asks for more only when it has the reply to what it asked for before."""
        return bool(await client.llen(f"{prefix}:orders:wait") > 60)

    await wait_until(has_heard_of_some)
    replaying.send_signal(signal.SIGINT)
    out, told = await asyncio.wait_for(replaying.communicate(), 60)

    assert (replaying.returncode, out) == (130, b"")
    assert b"dead letters were replayed before it ended; run it again with --resume" in told
