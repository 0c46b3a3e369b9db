"""Keys do not collide, records are read as they were written, and what is none is refused."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Link
from elastic_rdzv_etcd.records import (
    Keys,
    Row,
    before,
    number,
    pack_entry,
    pack_link,
    quoted,
    unpack_entry,
    unpack_link,
    unquoted,
)

NAMES = ["job", "job/1", "..", "größe 7*", "a\nb", "\udcff", "%2F"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_read_back(name: str) -> None:
    assert unquoted(quoted(name).encode()) == name
    assert unpack_entry(pack_entry(name, b"\n\0")) == (name, b"\n\0")
    assert unpack_link(pack_link(Link(7, name))) == Link(7, name)


def test_jobs_have_keys_and_leases_of_their_own() -> None:
    keys = [Keys("/elastic", name) for name in NAMES]
    assert len({key.head for key in keys}) == len({key.lease for key in keys}) == len(NAMES)
    assert all(0 < key.lease < 1 << 63 for key in keys)
    assert not any(
        one.state.startswith(other.state[: -len("state/")]) for one in keys for other in keys if one is not other
    )


def test_rows_sort_by_their_revision() -> None:
    revisions = [0, 1, 9, 10, 99, 10**9, 10**18]
    records = [Row(revision, 3, b"value").pack() for revision in revisions]
    assert records == sorted(records)
    for revision, record in zip(revisions, records, strict=True):
        assert Row.unpack(record) == Row(revision, 3, b"value")
        assert not record < before(revision)
        assert record < before(revision + 1)


@pytest.mark.parametrize(
    "record", [b"", b"x", b"x\n", b"1\nvalue", b"1 x\n", b"5 1\nvalue", b"1 1\n" + bytes(MAX_VALUE_BYTES + 1)]
)
def test_a_malformed_row_is_refused(record: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="etcd holds"):
        Row.unpack(record)


@pytest.mark.parametrize("record", [b"", b"x", b"-1", b"1.0", b"1" * 20, b" 1", b"\xb2"])
def test_a_malformed_number_is_refused(record: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="for a number"):
        number(record)


def test_no_head_is_the_origin() -> None:
    assert unpack_link(None) == ORIGIN


def test_a_value_that_is_too_large_is_not_written() -> None:
    Row(0, 1, bytes(MAX_VALUE_BYTES)).pack()
    pack_entry("id", bytes(MAX_VALUE_BYTES))
    with pytest.raises(RendezvousStateError, match="at most 262144 are allowed"):
        Row(0, 1, bytes(MAX_VALUE_BYTES + 1)).pack()
    with pytest.raises(RendezvousStateError, match="at most 262144 are allowed"):
        pack_entry("id", bytes(MAX_VALUE_BYTES + 1))
