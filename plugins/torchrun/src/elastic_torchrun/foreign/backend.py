"""A foreign rendezvous handler as a backend: a private ledger in this node's memory, which the node itself leads.

Each node decides for itself over its own ledger, as each agent of torchrun's does. A ROUND of it is a call of
``next_rendezvous``; the other nodes are rows that never fall silent.
"""
# ruff: noqa: D102  (RendezvousBackend documents these methods)

from __future__ import annotations

from collections.abc import Collection

from elastic_core.plugins import LocalBackend
from elastic_core.protocol import decode_entry
from elastic_core.rendezvous import Cursor, HandlerStore, HeartbeatReply, Link, RosterRow, StoreWarning
from elastic_torchrun.foreign.node import HandlerNode, Settings
from elastic_torchrun.rendezvous_api import RendezvousHandler

COST = """with a rendezvous handler of others this agent can do no more than torchrun's does:
a lost node is noticed when a collective fails because of it, or never; --on_node_loss has no effect
each node judges failures by itself, and prints the first failure that it saw, which others may have caused
a hang is looked for among the ranks of each node alone
a node that joins stops all workers as soon as it waits; survivors may change their ranks
a node that has finished waits for the others for {exit_barrier:g} s"""
"""Reported once, at the start."""


class HandlerBackend(LocalBackend, HandlerStore):
    """One connection to the private ledger; the first one ends the handler's thread."""

    def __init__(self, node: HandlerNode) -> None:
        super().__init__(node)
        self._node, self._is_first = node, False

    @classmethod
    def over(cls, handler: RendezvousHandler, settings: Settings) -> HandlerBackend:
        """Return the first connection over a handler."""
        made = cls(HandlerNode(handler, settings))
        made._is_first, made.job_id = True, handler.get_run_id()
        made.warnings = (StoreWarning(f"{settings.backend}: {COST.format(exit_barrier=settings.exit_barrier)}", ""),)
        return made

    @property
    def waiting(self) -> str:
        return "the handler to give a round" if self._node.is_meeting else ""

    def connect(self) -> HandlerBackend:
        return HandlerBackend(self._node)

    def close(self) -> None:
        super().close()
        if self._is_first:
            self._node.end()

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        with self._opened():
            self._node.check()
            return super().heartbeat(node_id, count, watch)

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        with self._opened():
            if ids is None:  # the leader asks
                self._node.check()
            return [row for row in self._node.listed() if ids is None or row.node_id in ids]

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        with self._opened() as store:
            if self._id(entry.index) == entry.id:
                return True
            return store.head == prev.index and self._id(prev.index) == prev.id and self._node.take(decode_entry(data))

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        if roster:
            self._node.check()
        found = super().wait(cursor, roster=roster, timeout=timeout)
        if roster and self._node.error is not None:
            raise self._node.error
        return found
