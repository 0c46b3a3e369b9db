"""Coverage of amendments of roster rows (rule S7): late ones, and ones that are sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_core.rendezvous.backend import RosterRow


@dataclass
class Amendments:
    """Counter of late and repeated amendments."""

    count: Callable[[str], None]
    _known: dict[str, int] = field(default_factory=dict)
    """The newest revision that each node knows the store to have taken."""

    def on_enter(self, node_id: str) -> None:
        """Record that a node is about to enter its row.

        A node that has amended its row enters it again if a heartbeat reports that the row is missing.
        """
        if self._known.pop(node_id, None) is not None:
            self.count("S7 a row that the store lost is entered anew")

    def on_send(self, node_id: str, revision: int) -> None:
        """Record that a node is about to amend its row.

        It sends an old revision again only if a heartbeat reports that the store is behind.
        """
        if revision <= self._known.get(node_id, -1):
            self.count("S7 an amendment that the store lost is sent again")

    def on_arrival(self, rows: Mapping[str, RosterRow], node_id: str, revision: int, _value: bytes) -> None:
        """Record that an amendment is about to be carried out, even if its sender has ended."""
        row = rows.get(node_id)
        if row is not None and revision < row.revision:
            self.count("S7 an older amendment comes after a newer one")

    def on_commit(self, node_id: str, revision: int) -> None:
        """Record that a node has an answer to its amendment."""
        self._known[node_id] = max(revision, self._known.get(node_id, -1))
