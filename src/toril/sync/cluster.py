# Written by tools/unasync.py from src/toril/client/cluster.py: change that file instead.
"""Requests and replies on a cluster: each request goes to the node that serves its slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toril.errors import ServerUnavailableError
from toril.protocol.sending import Sending
from toril.protocol.slots import MOST_REDIRECTIONS, SLOTS, Node, SlotMap, slot_of
from toril.sync.sockets import (
    NODE_TROUBLES,
    REPLY_TIMEOUT_S,
    TROUBLES,
    AskError,
    LineError,
    MovedError,
)
from toril.sync.transport import (
    ServerTransport,
)


class ClusterTransport:
    """A cluster: a few sockets to the node that serves a command's slot.

    A node that no longer serves a slot says which node does (MOVED), or which soon will (ASK); it
    has not run the command, which is then sent there.  While a slot moves, a script is refused
    (TRYAGAIN) until all its keys are in one place.  A node that is cut off from the others
    (CLUSTERDOWN) does not know who serves its slots by now, so the others are asked.
    """

    is_cluster = True
    finds_primary = True

    def __init__(
        self,
        make_node: Callable[[Node], ServerTransport],
        seeds: Sequence[Node],
        label: str,
        known: Mapping[Node, ServerTransport],
    ) -> None:
        self._make_node = make_node
        self._label = label
        self._slots = SlotMap(seeds)
        self._nodes: dict[Node, ServerTransport] = dict(known)
        self.is_closed = False

    def __str__(self) -> str:
        return self._label

    def exchange(self, sending: Sending, timeout_s: float) -> Any:
        slot = slot_of(sending.command)
        node = self._owner(slot)
        is_asking = False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return self._node(node).exchange(sending, timeout_s, is_asking=is_asking)
            except MovedError as error:
                node = self._slots.move(slot, error.host, error.port, node)
                is_asking = False
            except AskError as error:
                node = (error.host or node[0], error.port)
                is_asking = True
            except NODE_TROUBLES:
                self._slots.forget(node)
                raise
            sending.was_sent = False
        raise LineError(f"{self._label} redirects slot {slot} in circles")

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket per node; commands that a node redirects are sent one by one."""
        try:
            nodes = [self._owner(slot_of(sending.command)) for sending in sendings]
        except TROUBLES as error:
            return [error] * len(sendings)
        answers: list[Any] = [None] * len(sendings)
        for node in dict.fromkeys(nodes):
            indices = [index for index, owner in enumerate(nodes) if owner == node]
            part = [sendings[index] for index in indices]
            try:
                replies = self._node(node).exchange_all(part, timeout_s, at_once)
            except TROUBLES as error:  # closed, when other nodes may have answered
                replies = [error] * len(part)
            for index, reply in zip(indices, replies, strict=True):
                answers[index] = reply
        for index, answer in enumerate(answers):
            if isinstance(answer, AskError):
                sendings[index].was_sent = False
                answers[index] = self._answer(sendings[index], timeout_s)
            elif isinstance(answer, NODE_TROUBLES):
                self._slots.forget(nodes[index])
        return answers

    def _answer(self, sending: Sending, timeout_s: float) -> Any:
        try:
            return sending.answer(self.exchange(sending, timeout_s))
        except TROUBLES as error:
            return error

    def _owner(self, slot: int) -> Node:
        """The node that serves ``slot``; asks the known nodes if that is not known yet."""
        owner = self._slots.owner(slot)
        if owner is not None:
            return owner
        trouble: Exception = LineError(f"no node of {self._label} serves slot {slot}")
        for node in self._slots.nodes():
            try:
                reply = self._node(node).exchange(Sending(SLOTS), REPLY_TIMEOUT_S)
            except TROUBLES as error:
                trouble = error
                continue
            self._slots.learn(reply, node)
            owner = self._slots.owner(slot)
            if owner is not None:
                return owner
        raise trouble

    def _node(self, node: Node) -> ServerTransport:
        transport = self._nodes.get(node)
        if transport is None:
            # Another thread may have been faster: then its transport is used.
            transport = self._make_node(node)
            transport = self._nodes.setdefault(node, transport)
        # Checked once `close` can see the transport: it is closed there, or refused here.
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        return transport

    def interrupt(self) -> None:
        """Send nothing more, and end all waits."""
        self.is_closed = True
        for transport in list(self._nodes.values()):
            transport.interrupt()

    def close(self) -> None:
        self.is_closed = True
        for transport in list(self._nodes.values()):
            transport.close()
