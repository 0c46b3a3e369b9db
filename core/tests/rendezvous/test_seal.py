"""Sealed values pass through any store, and no other value is taken for one."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_entry
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, SEAL_BYTES, Link, RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend, Seal, SealedBackend, protect
from elastic_core.rendezvous.job_token import JobToken
from elastic_testing.backend_conformance import BackendConformance
from elastic_testing.connections import ALL_BYTES, MakeBackend

TOKEN, OTHER = (JobToken(text.encode() * 4, "a test") for text in ("0123456789abcdef", "fedcba9876543210"))
FIRST, SECOND = Link(1, "first"), Link(2, "second")


@pytest.mark.variant
class TestSealedBackend(BackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        stores: dict[str, MemoryStore] = {}

        def made(run_id: str) -> RendezvousBackend:
            return protect(LocalBackend(stores.setdefault(run_id, MemoryStore())), "backend", TOKEN, run_id)

        return made

    @pytest.fixture
    def full_value(self) -> bytes:
        return (ALL_BYTES * (MAX_VALUE_BYTES // len(ALL_BYTES)))[: MAX_VALUE_BYTES - SEAL_BYTES]


@pytest.fixture
def raw() -> LocalBackend:
    """The store of a job with a token, as its store's owner sees it."""
    return LocalBackend(MemoryStore())


@pytest.fixture
def store(raw: LocalBackend) -> SealedBackend:
    """The same as a node of the job does."""
    return SealedBackend(raw, "backend", Seal(TOKEN, "job"))


def test_a_seal_has_the_size_that_is_left_for_it() -> None:
    assert len(Seal(TOKEN, "job").entry(10**9, b"")) == SEAL_BYTES


def test_without_a_token_nothing_is_sealed(raw: LocalBackend) -> None:
    assert type(protect(raw, "backend", None, "job")) is GuardedBackend


def test_connections_that_come_of_it_are_sealed_and_say_the_same_of_themselves(store: SealedBackend) -> None:
    child = store.connect()
    assert child.append(ORIGIN, FIRST, b"1")
    assert (type(child), child.described, store.read(1)) == (SealedBackend, "backend", b"1")


def unsealed(data: bytes) -> bytes:
    return data[SEAL_BYTES:]


def by_another_token(data: bytes) -> bytes:
    return Seal(OTHER, "job").entry(1, unsealed(data))


def of_another_job(data: bytes) -> bytes:
    return Seal(TOKEN, "another job").entry(1, unsealed(data))


def of_another_index(data: bytes) -> bytes:
    return Seal(TOKEN, "job").entry(2, unsealed(data))


def of_a_row(data: bytes) -> bytes:
    return Seal(TOKEN, "job").row("first", 0, unsealed(data))


def altered(data: bytes) -> bytes:
    return data[:-1] + b"!"


def cut_off(data: bytes) -> bytes:
    return data[: SEAL_BYTES - 1]


def with_control_characters(data: bytes) -> bytes:
    return data.replace(data[15:31], b"\x1b[2J" * 4)


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (unsealed, "Entry 1 has no seal, and this node has a job token"),
        (by_another_token, r"Entry 1 is sealed with another job token \(\w{16}\) than this node's \(\w{16}\)"),
        (of_another_job, "another job token"),
        (of_another_index, "Entry 1 is forged or damaged"),
        (of_a_row, "is forged or damaged"),
        (altered, "is forged or damaged"),
        (cut_off, "is forged or damaged"),
        (with_control_characters, r"another job token \(unreadable\)"),
    ],
)
def test_an_entry_that_the_token_has_not_sealed_is_refused(
    raw: LocalBackend, store: SealedBackend, forge: Callable[[bytes], bytes], words: str
) -> None:
    sealed = Seal(TOKEN, "job").entry(1, b"decide this")
    assert raw.append(ORIGIN, FIRST, forge(sealed))
    with pytest.raises(RendezvousStateError, match=words) as refused:
        store.read(1)
    assert "ELASTIC_JOB_TOKEN" in str(refused.value.hint)


def test_a_row_that_the_token_has_not_sealed_hides_no_other_and_is_named(
    raw: LocalBackend, store: SealedBackend
) -> None:
    store.enter("a", b"waiting")
    raw.enter("b", b"no seal")
    raw.enter("c", Seal(OTHER, "job").row("c", 0, b"another token"))
    raw.enter("d", Seal(TOKEN, "job").row("a", 0, b"moved"))
    for _ in range(2):  # what was opened before is not opened again
        good, *bad = store.roster()
        assert (good.node_id, good.value) == ("a", b"waiting")
        assert [row.node_id for row in bad if row.broken] == ["b", "c", "d"]
        said = [re.sub(r"\.\n.*", "", row.broken) for row in bad]
        assert said[0] == "The row of 'b' has no seal, and this node has a job token: its writer has none"
        assert "is sealed with another job token" in said[1]
        assert said[2] == "The row of 'd' is forged or damaged: its seal does not fit"


def test_an_older_value_of_a_row_does_not_fit_a_newer_revision(raw: LocalBackend, store: SealedBackend) -> None:
    store.enter("a", b"running 1")
    store.amend("a", 1, b"running 2")
    older = Seal(TOKEN, "job").row("a", 1, b"running 2")
    store.amend("a", 2, b"stopped 2")
    raw.amend("a", 3, older)
    assert "forged" in store.roster()[0].broken
    store.amend("a", 4, b"finished")
    assert store.roster()[0].value == b"finished"


def test_a_node_without_the_token_says_what_it_lacks(raw: LocalBackend, store: SealedBackend) -> None:
    store.append(ORIGIN, FIRST, b"{}")
    with pytest.raises(
        RendezvousStateError, match=r"is sealed with a job token \(\w{16}\), and this node has none"
    ) as it:
        decode_entry(raw.read(1) or b"")
    assert "ELASTIC_JOB_TOKEN" in str(it.value.hint)
