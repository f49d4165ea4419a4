"""Both parties on one server: ``peer`` is real BullMQ, ``toril`` is us, under the test's prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.helpers import not_run
from tests.interop.peer import VERSIONS, PeerView, SharedPeer, reason_not_to_run
from tests.servers import Server

if TYPE_CHECKING:
    from tests.interop.toril_side import TorilSide


@pytest.fixture(scope="session")
def node_peers(server: Server) -> Iterator[dict[int, SharedPeer]]:
    """One Node process per version of BullMQ, started when first asked for."""
    if reason := reason_not_to_run():
        not_run(reason)
    peers = {version: SharedPeer(version, server.url) for version in VERSIONS}
    yield peers
    for peer in peers.values():
        peer.close()


@pytest.fixture(params=VERSIONS, ids=lambda version: f"bullmq{version}")
async def peer(
    request: pytest.FixtureRequest, node_peers: dict[int, SharedPeer], prefix: str
) -> AsyncIterator[PeerView]:
    """BullMQ of either version; what the test opened there is closed after it."""
    shared = node_peers[request.param]
    await shared.forget_events()
    view = shared.at(prefix)
    yield view
    await view.close_all()


@pytest.fixture
async def toril(url: str, prefix: str) -> AsyncIterator[TorilSide]:
    """Toril; what the test opened is closed after it."""
    from tests.interop.toril_side import TorilSide

    async with TorilSide(url, prefix) as side:
        yield side
