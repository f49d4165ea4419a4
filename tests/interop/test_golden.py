"""One scenario, two parties, the same data: with BullMQ 5 and with BullMQ 6 (C-29)."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop import golden, scenario
from tests.interop.peer import PeerView, SharedPeer
from tests.interop.scenarios import DEDUPLICATION, FLOWS, SCENARIOS, V5_DIFFERS, V6_LATER
from tests.keyspace import keys_under

if TYPE_CHECKING:
    from tests.interop.toril_side import TorilSide

# What Toril does in another way on purpose (wire-format appendix B).
BETTER = {
    "promoting all": r"value → delay: \"\d+\" ≠ \"0\"$",  # the delay is over
}


async def left_by(driver: Any, steps: list[scenario.Step], client: Any, prefix: str) -> Any:
    """What the scenario leaves behind, which is then deleted for the next party."""
    try:
        return await scenario.run(steps, driver, client, prefix)
    finally:
        if keys := await keys_under(client, prefix):
            await client.unlink(*keys)


async def left_by_bullmq(
    peers: dict[int, SharedPeer], version: int, steps: list[scenario.Step], client: Any, prefix: str
) -> Any:
    view = peers[version].at(prefix)
    try:
        return await left_by(scenario.NodeDriver(view), steps, client, prefix)
    finally:
        await view.close_all()


@pytest.mark.parametrize("name", [*SCENARIOS, *FLOWS])
async def test_both_versions_of_bullmq_leave_the_same(name, node_peers, client, prefix):
    steps = (SCENARIOS | FLOWS)[name]
    five = await left_by_bullmq(node_peers, 5, steps, client, prefix)
    six = await left_by_bullmq(node_peers, 6, steps, client, prefix)

    differences = golden.diff(five, six)

    if name in V5_DIFFERS:
        assert [line.split(" →")[0].split(": only")[0] for line in differences] == [
            "q:paused",
            "q:wait",
        ]
    else:
        assert differences == []


@pytest.mark.parametrize("name", [*DEDUPLICATION, *V6_LATER])
async def test_known_differences_between_versions_are_seen(name, node_peers, client, prefix):
    steps = (DEDUPLICATION | V6_LATER)[name]
    five = await left_by_bullmq(node_peers, 5, steps, client, prefix)
    six = await left_by_bullmq(node_peers, 6, steps, client, prefix)

    differences = golden.diff(five, six)

    if name in DEDUPLICATION:
        assert len(differences) == 1
        assert "debounced" in differences[0]
    else:
        assert any(line.startswith("q:prioritized: only right") for line in differences)


async def test_the_comparison_sees_every_kind_of_change(node_peers, client, prefix):
    steps = SCENARIOS["retry at once"]
    original = await left_by_bullmq(node_peers, 6, steps, client, prefix)

    def changed(change) -> list[str]:
        other = copy.deepcopy(original)
        change(other)
        return golden.diff(original, other)

    assert changed(lambda dump: None) == []
    assert changed(lambda dump: dump.pop("q:#1"))
    assert changed(lambda dump: dump["q:#1"]["value"].update(atm="7"))
    assert changed(lambda dump: dump["q:#1"]["value"].pop("pb"))
    assert changed(lambda dump: dump["q:events"]["value"].pop(3))
    assert changed(lambda dump: dump["q:events"]["value"][3].update(prev="nowhere"))
    assert changed(lambda dump: dump["q:completed"]["value"].reverse())
    assert changed(lambda dump: dump["q:completed"].update(expires=True))


@pytest.mark.parametrize("name", list(SCENARIOS))
async def test_toril_leaves_what_bullmq_leaves(
    name: str, peer: PeerView, toril: TorilSide, client: Any, prefix: str
):
    if peer.version == 6 and name in V5_DIFFERS:
        pytest.skip("a queue that BullMQ 6 has not opened is paused as BullMQ 5 does it")
    steps = SCENARIOS[name]
    theirs = await left_by(scenario.NodeDriver(peer), steps, client, prefix)
    await peer.close_all()

    ours = await left_by(toril, steps, client, prefix)

    differences = golden.diff(theirs, ours)
    allowed = BETTER.get(name, "(?!)")
    assert [line for line in differences if not re.search(allowed, line)] == []
