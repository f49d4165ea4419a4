"""Deduplication, flows and schedulers: one scenario, two parties, the same data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop import golden, scenario
from tests.interop.feature_scenarios import DEDUPLICATION, FLOWS, ONLY_V6, SCHEDULERS
from tests.interop.peer import PeerView
from tests.interop.test_golden import left_by
from tests.interop.toril_side import TorilSide


def without_debounced(found: Any) -> Any:
    """BullMQ 5 emits one more event before every ``deduplicated``."""
    events = found["q:events"]
    events["value"] = [event for event in events["value"] if event["event"] != "debounced"]
    return found


@pytest.mark.parametrize("name", list(DEDUPLICATION))
async def test_deduplication_leaves_what_bullmq_leaves(
    name: str, peer: PeerView, toril: TorilSide, client: Any, prefix: str
):
    if peer.version == 5 and name in ONLY_V6:
        pytest.skip("BullMQ 5 does not have it")
    steps = DEDUPLICATION[name]
    theirs = await left_by(scenario.NodeDriver(peer), steps, client, prefix)
    await peer.close_all()

    ours = await left_by(toril, steps, client, prefix)

    assert golden.diff(without_debounced(theirs), ours) == []


@pytest.mark.parametrize("name", list(FLOWS))
async def test_a_flow_leaves_what_bullmq_leaves(
    name: str, peer: PeerView, toril: TorilSide, client: Any, prefix: str
):
    steps = FLOWS[name]
    theirs = await left_by(scenario.NodeDriver(peer), steps, client, prefix)
    await peer.close_all()

    ours = await left_by(toril, steps, client, prefix)

    assert golden.diff(theirs, ours) == []


def without_next_ids(found: Any) -> Any:
    """BullMQ 5 notes in an iteration which one comes next."""
    for entry in found.values():
        if isinstance(entry["value"], dict):
            entry["value"].pop("nrjid", None)
    return found


@pytest.mark.parametrize("name", list(SCHEDULERS))
async def test_a_scheduler_leaves_what_bullmq_leaves(
    name: str, peer: PeerView, toril: TorilSide, client: Any, prefix: str
):
    if peer.version == 6 and "paused" in name:
        pytest.skip("a queue that BullMQ 6 has not opened is paused as BullMQ 5 does it")
    steps = SCHEDULERS[name]
    theirs = await left_by(scenario.NodeDriver(peer), steps, client, prefix)
    await peer.close_all()

    ours = await left_by(toril, steps, client, prefix)

    assert golden.diff(without_next_ids(theirs), ours) == []
