"""``toril add --from``: lines that are no JSON, and what is told when it ends half-way."""

from __future__ import annotations

import fcntl
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Toril
from tests.forked import PIPE, Forked
from tests.helpers import wait_until_sync
from tests.servers import Server
from toril.sync import Queue

COMMANDS = ("toril.cli.main", "toril.cli.add")

Start = Callable[..., Forked]


@pytest.fixture
def queue_name() -> str:
    return "payments"


@pytest.fixture
def start(cli_env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts ``toril add payments n --from -``, which reads what the test writes."""
    running: list[Forked] = []

    def start(**more: str) -> Forked:
        words = ("-m", "toril", "add", "payments", "n", "--from", "-")
        with (tmp_path / "err").open("w") as err:
            process = Forked(
                *words, env=cli_env | more, stdin=PIPE, stderr=err.fileno(), needs=COMMANDS
            )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait(30)
        assert process.stdin is not None
        process.stdin.close()


def _write(process: Forked, count: int) -> None:
    assert process.stdin is not None
    process.stdin.write("{}\n" * count)
    process.stdin.flush()


def _add_two_batches(process: Forked, queue: Queue) -> None:
    """Returns when the command knows that they are added: it has read on, and waits for more."""
    _write(process, 2000)
    wait_until_sync(lambda: queue.get_waiting_count() == 2000)
    _write(process, 5)
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    wait_until_sync(lambda: _unread(pipe) == 0, message="it reads on")


def _unread(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))[0]


def test_a_line_names_no_other_file(toril: Toril, queue: Queue, tmp_path: Path):
    """It added what is in that file, or on stdin, as the data of a job."""
    (tmp_path / "secret.json").write_text('"the password"')
    for last in (f"@{tmp_path}/secret.json", "-"):
        (tmp_path / "lines").write_text(f"{{}}\n{last}")

        refused = toril("add", "payments", "n", "--from", "lines", typed="1")

        assert (refused.code, "line 2 is not JSON" in refused.err) == (2, True), refused
        assert queue.get_waiting_count() == 0


def test_a_line_that_is_no_text_is_refused_by_its_number(
    toril: Toril, queue: Queue, tmp_path: Path
):
    (tmp_path / "lines").write_bytes(b'{}\n"\xff"\n{}\n')

    refused = toril("add", "payments", "n", "--from", "lines")
    data = toril("add", "payments", "n", "@lines")

    assert (refused.code, data.code) == (2, 2), (refused, data)
    assert "line 2 is not JSON" in refused.err
    assert "added 0 jobs; go on with line 1\n" in refused.err
    assert queue.get_waiting_count() == 0


def test_a_bad_line_after_many_good_ones_tells_where_to_go_on(
    toril: Toril, queue: Queue, tmp_path: Path
):
    (tmp_path / "lines").write_text("\n" + "{}\n" * 1500 + "{no\n")

    refused = toril("add", "payments", "n", "--from", "lines")

    assert refused.code == 2
    assert "toril: added 1,000 jobs; go on with line 1002\n" in refused.err
    assert "line 1502 is not JSON" in refused.err
    assert queue.get_waiting_count() == 1000


def test_a_server_that_stops_half_way_leaves_one_batch_in_doubt(
    start: Start, start_server: Callable[..., Server], prefix: str, tmp_path: Path
):
    server = start_server(tcp=True)
    process = start(TORIL_URL=server.url)
    with Queue("payments", connection=server.url, prefix=prefix) as queue:
        _add_two_batches(process, queue)

    server.kill()
    _write(process, 1600)

    assert process.wait(60) == 3
    first, second = (tmp_path / "err").read_text().splitlines()
    assert first == (
        "toril: added 2,000 jobs; some or all of lines 2001 to 3000 may have been added, too:"
        " look into the queue before you go on with line 2001"
    )
    assert second.startswith("toril: "), second


def test_ctrl_c_tells_where_to_go_on(start: Start, queue: Queue, tmp_path: Path):
    process = start()
    _add_two_batches(process, queue)

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 130
    assert "toril: added 2,000 jobs; go on with line 2001\n" in (tmp_path / "err").read_text()
    assert queue.get_waiting_count() == 2000
