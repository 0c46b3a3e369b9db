"""Records of a store: each is read as it was packed, and anything else is refused."""

from __future__ import annotations

import re

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Link, RosterRow
from elastic_core.rendezvous.records import (
    MAX_RECORD_BYTES,
    Entry,
    RecordReader,
    Row,
    is_number,
    pack_link,
    pack_revision,
    quoted,
    unquoted,
)

NAMES = ["job", "job/1", "..", "größe 7*", "a\nb", "\udcff", "%2F", ""]
READER = RecordReader("The shelf", "Lock it.")


@pytest.mark.parametrize("name", NAMES)
def test_names_and_values_are_read_as_they_were_packed(name: str) -> None:
    entry, row = Entry(Link(7, name), b"\n\0"), Row(name, 3, 5, b"a\nb\n")
    assert unquoted(quoted(name).encode()) == name
    assert READER.entry(entry.pack()) == entry
    assert READER.row(row.pack()) == row
    assert READER.link(pack_link(entry.link)) == entry.link
    assert entry.pack().startswith(pack_link(entry.link) + b"\n"), "an entry's header is its link"


def test_no_link_is_the_origin() -> None:
    assert READER.link(None) == ORIGIN


def test_rows_sort_by_revision() -> None:
    revisions = [0, 1, 9, 10, 99, 10**9, 10**18]
    records = [Row("node", 3, revision, b"value").pack() for revision in revisions]
    assert records == sorted(records)
    for revision, record in zip(revisions, records, strict=True):
        assert pack_revision(revision) <= record < pack_revision(revision + 1)


ZERO = b"0" * 19


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"x",
        b"x\n",
        ZERO + b" 1 node",
        ZERO + b" 1\n",
        ZERO + b" x node\n",
        b"0 1 node\n",
        ZERO + b" 1 no de\n",
        ZERO + b" 1 node\n" + bytes(MAX_VALUE_BYTES + 1),
    ],
)
def test_a_malformed_row_is_refused_and_listed_as_unreadable(record: bytes) -> None:
    words = f"The shelf holds {len(record)} bytes, {record[:80]!r}, in the place of the row of a node."
    with pytest.raises(RendezvousStateError, match=re.escape(words)) as error:
        READER.row(record)
    assert error.value.hint == "Lock it."
    listed = READER.listed("node", record, b"1")
    assert (listed.node_id, listed.value) == ("node", b"")
    assert words in listed.broken


@pytest.mark.parametrize(
    "record", [b"", b"no line break", b"\nvalue", b"id\nvalue", b"\xff 1\n", b"1 id\n" + bytes(MAX_VALUE_BYTES + 1)]
)
def test_a_malformed_entry_is_refused(record: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="The shelf holds"):
        READER.entry(record)


@pytest.mark.parametrize("record", [b"", b"x", b"-1", b"1.0", b"1" * 20, b" 1", b"\xb2"])
def test_a_malformed_number_is_refused(record: bytes) -> None:
    assert not is_number(record)
    with pytest.raises(RendezvousStateError, match="in the place of a number"):
        READER.number(record)
    assert READER.listed("node", Row("node", 1, 0, b"").pack(), record or b"-").broken


def test_a_row_is_listed_with_its_heartbeat() -> None:
    record = Row("node", 3, 5, b"value").pack()
    assert READER.listed("node", record, b"12") == RosterRow("node", 3, 5, b"value", 12)
    assert READER.listed("node", record, None) == RosterRow("node", 3, 5, b"value", 0)


def test_a_value_that_is_too_large_is_not_packed() -> None:
    most = bytes(MAX_VALUE_BYTES)
    assert len(Row("node", 1, 0, most).pack()) <= MAX_RECORD_BYTES
    assert len(Entry(Link(1, "id"), most).pack()) <= MAX_RECORD_BYTES
    with pytest.raises(RendezvousStateError, match=r"The row of node has 262145 bytes; at most 262144 are allowed\."):
        Row("node", 1, 0, most + b"x").pack()
    with pytest.raises(RendezvousStateError, match=r"Entry 1 has 262145 bytes; at most 262144 are allowed\."):
        Entry(Link(1, "id"), most + b"x").pack()
