"""A port that two programs bind before either of them listens: the second is refused late."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import uvicorn

from toril.cli import dashboard, main


@pytest.fixture
def rival() -> Iterator[socket.socket]:
    """Another program's socket: bound as ours will be, and not listening yet."""
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        yield rival


def test_a_dashboard_beside_a_server_takes_another_port(
    monkeypatch: pytest.MonkeyPatch, rival: socket.socket
):
    port = rival.getsockname()[1]

    class Late(socket.socket):
        def bind(self, address: tuple[str, int]) -> None:
            super().bind(address)
            rival.listen()

    monkeypatch.setattr(dashboard.socket, "socket", Late)
    monkeypatch.setattr(dashboard, "PORT", port)

    with dashboard._listen() as listening:
        assert listening.getsockname()[1] != port


def test_a_dashboard_of_its_own_says_that_its_port_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rival: socket.socket,
    url: str,
    prefix: str,
):
    port = rival.getsockname()[1]
    really_bind = uvicorn.Config.bind_socket

    def bind(config: uvicorn.Config) -> socket.socket:
        bound = really_bind(config)
        rival.listen()
        return bound

    monkeypatch.setattr(uvicorn.Config, "bind_socket", bind)

    code = main.run(["dashboard", "--url", url, "--prefix", prefix, "--port", str(port)])

    assert code == main.REFUSED
    assert f"cannot listen on port {port}" in capsys.readouterr().err
