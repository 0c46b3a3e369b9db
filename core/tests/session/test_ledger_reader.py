"""Reading of a ledger, where a notification has brought an entry along."""

from __future__ import annotations

import pytest
from views import info, live, start

from elastic_core.errors import RendezvousStateError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import ORIGIN
from elastic_core.session.ledger_reader import living_hosts, news
from elastic_core.session.runtime import Runtime


class Told(LocalBackend):
    """A connection whose bell told of an entry: what is read first, once."""

    told: dict[int, bytes]

    def read(self, index: int) -> bytes | None:
        return self.told.pop(index, None) or super().read(index)


@pytest.mark.parametrize("there", [True, False])
def test_an_entry_that_a_notification_had_wrong_is_read_in_the_store(there: bool) -> None:
    first, second = start(), live("ab")
    store = Told(MemoryStore())
    assert store.append(ORIGIN, first.head.link, encode_entry(first.head))
    assert not there or store.append(first.head.link, second.head.link, encode_entry(second.head))
    store.told = {2: b"garbage"}
    assert news(store, first, head=2) == ((second.head,) if there else ())


def test_an_entry_that_the_store_has_wrong_is_refused() -> None:
    first, second = start(), live("ab")
    store = Told(MemoryStore())
    store.told = {}
    assert store.append(ORIGIN, first.head.link, encode_entry(first.head))
    assert store.append(first.head.link, second.head.link, b"garbage")
    with pytest.raises(RendezvousStateError, match="is not JSON"):
        news(store, first, head=2)


def test_a_copy_of_a_row_under_another_key_does_not_make_its_node_live() -> None:
    """Its heartbeat differs from that of the row itself, as if it had moved."""
    ledger, clock = live("ab"), iter(range(1000))
    store = LocalBackend(MemoryStore())
    row = encode_row(NodeRow(info=info("a"), run=ledger.head.run))
    store.enter("a", row)
    store.enter("planted", row)
    store.heartbeat("planted", 7)
    runtime = Runtime(now=lambda: float(next(clock)), sleep=lambda _: None)
    assert living_hosts(store, ledger, info("c"), runtime) == []
