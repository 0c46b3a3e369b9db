"""What becomes of amendments of roster rows (rule S7): which come too late, and which are sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_core.rendezvous.backend import RosterRow


@dataclass
class Amendments:
    """Counts them; nobody else asks for it."""

    count: Callable[[str], None]
    _known: dict[str, int] = field(default_factory=dict)
    """The newest revision of which each node knows that its store took it."""

    def on_enter(self, node_id: str) -> None:
        """Check a node that is about to enter its row.

        A node that has amended its row enters it again because a heartbeat has said that the row is gone.
        """
        if self._known.pop(node_id, None) is not None:
            self.count("S7 a row that the store lost is entered anew")

    def on_send(self, node_id: str, revision: int) -> None:
        """Check a node that is about to amend its row.

        It sends what the store had before only because a heartbeat has said that the store is behind.
        """
        if revision <= self._known.get(node_id, -1):
            self.count("S7 an amendment that the store lost is sent again")

    def on_arrival(self, rows: Mapping[str, RosterRow], node_id: str, revision: int, _value: bytes) -> None:
        """Check an amendment that is about to be carried out, be its sender still there or not."""
        row = rows.get(node_id)
        if row is not None and revision < row.revision:
            self.count("S7 an older amendment comes after a newer one")

    def on_commit(self, node_id: str, revision: int) -> None:
        """Record that a node has heard that its amendment was carried out."""
        self._known[node_id] = max(revision, self._known.get(node_id, -1))
