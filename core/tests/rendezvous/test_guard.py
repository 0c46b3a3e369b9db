from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError, UsageError
from elastic_core.exit_codes import ExitCode
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import ORIGIN, Cursor, HeartbeatReply, Link, RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_testing.backend_conformance import BackendConformance
from elastic_testing.connections import MakeBackend

CALLS: dict[str, Callable[[RendezvousBackend], object]] = {
    "connect": lambda store: store.connect(),
    "close": lambda store: store.close(),
    "enter": lambda store: store.enter("node", b""),
    "amend": lambda store: store.amend("node", 1, b""),
    "heartbeat": lambda store: store.heartbeat("node", 1),
    "remove": lambda store: store.remove("node"),
    "roster": lambda store: store.roster(),
    "append": lambda store: store.append(ORIGIN, Link(1, "first"), b""),
    "read": lambda store: store.read(1),
    "shrink": lambda store: store.shrink(1),
    "wait": lambda store: store.wait(Cursor(), roster=False, timeout=0),
}


@pytest.mark.variant
class TestGuardedBackend(BackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        stores: dict[str, MemoryStore] = {}
        return lambda run_id: GuardedBackend(LocalBackend(stores.setdefault(run_id, MemoryStore())), "backend")


def faulty(method: str, error: Exception) -> GuardedBackend:
    """A backend one of whose methods raises."""

    def broken(*_: object, **__: object) -> object:
        raise error

    return GuardedBackend(type("Faulty", (LocalBackend,), {method: broken})(MemoryStore()), "backend 'b' (dist 1.0)")


def test_every_method_is_called_through_the_guard() -> None:
    assert set(CALLS) == {*RendezvousBackend.__abstractmethods__, "shrink"}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("error", [KeyError("oops"), UsageError("oops")])
def test_the_error_for_an_exception_that_is_not_allowed_names_the_backend_and_the_place(
    method: str, error: Exception
) -> None:
    with pytest.raises(RendezvousError) as raised:
        CALLS[method](faulty(method, error))
    said = "KeyError: 'oops'" if isinstance(error, KeyError) else "UsageError: oops"
    assert raised.value.message == f"The backend 'b' (dist 1.0) raised in {method}: {said}."
    place, rule = str(raised.value.hint).split(". ")
    assert place.startswith(f"Raised at {__file__}:")
    assert rule == "A backend may raise only RendezvousConnectionError and RendezvousStateError."
    assert raised.value.exit_code == ExitCode.UNREACHABLE
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("error", [RendezvousConnectionError("gone"), RendezvousStateError("garbled")])
def test_an_exception_that_a_backend_may_raise_is_passed_on(method: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        CALLS[method](faulty(method, error))
    assert raised.value is error


def test_connections_that_come_of_it_are_guarded_and_say_the_same_of_themselves() -> None:
    class Guest(LocalBackend):
        embedded = may_forget = True
        hosting = False

        def connect(self) -> Guest:
            return Guest(MemoryStore())

    child = GuardedBackend(Guest(MemoryStore()), "backend").connect()
    assert (type(child), child.embedded, child.hosting, child.may_forget) == (GuardedBackend, True, False, True)


@pytest.mark.parametrize(
    ("counts", "call", "words"),
    [
        ({"head": -5}, "wait", "gives -5 as the index of its newest entry"),
        ({"head": -5}, "heartbeat", "gives -5 as the index of its newest entry"),
        ({"revision": -(2**63)}, "heartbeat", "gives -9223372036854775808 as the revision of the row of node"),
    ],
)
def test_numbers_that_count_nothing_are_refused(counts: dict[str, int], call: str, words: str) -> None:
    class Planted(LocalBackend):
        def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
            return HeartbeatReply(counts.get("head", 0), counts.get("revision"), None)

        def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
            return Cursor(counts["head"])

    with pytest.raises(RendezvousStateError, match=words):
        CALLS[call](GuardedBackend(Planted(MemoryStore()), "backend"))
