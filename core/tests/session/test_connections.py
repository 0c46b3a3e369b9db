"""Calls that get no answer are told of whatever thread made them, and a connection that alone is dead is made anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from test_session import CLOCK, PATIENCE, Node, in_round, quick
from views import incident

from elastic_core.errors import RendezvousConnectionError
from elastic_core.events import Event
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.node_events import WorkerFailed
from elastic_core.rendezvous.backend import Cursor, HeartbeatReply
from elastic_core.rendezvous.guard import GuardedBackend, PendingCall
from elastic_core.session import contact
from elastic_core.session.contact import StoreCall, StoreWait, call_of, may_be_renewed, unanswered

STORE = GuardedBackend(LocalBackend(MemoryStore()), "backend")
EMBEDDED = GuardedBackend(LocalBackend(MemoryStore()), "backend")
EMBEDDED.embedded = True
ENDPOINT = "redis://user:secret@store:6379/0"


@pytest.mark.parametrize(
    ("asked", "unread_since", "due"),
    [
        pytest.param(None, None, None, id="nothing is asked"),
        pytest.param(PendingCall(100.0, 0.0), None, 100.0, id="an operation is due at once"),
        pytest.param(PendingCall(100.0, 60.0), None, 160.0, id="a wait when its time is over"),
        pytest.param(PendingCall(100.0, 60.0), 110.0, 110.0, id="a wait that should have brought an entry"),
        pytest.param(PendingCall(100.0, 60.0), 90.0, 100.0, id="a wait that has only begun"),
        pytest.param(PendingCall(100.0, 0.0), 90.0, 100.0, id="an operation is no wait"),
    ],
)
def test_when_an_answer_was_to_be_expected(
    asked: PendingCall | None, unread_since: float | None, due: float | None
) -> None:
    store = GuardedBackend(LocalBackend(MemoryStore()), "backend")
    store.asked = asked
    call = call_of("reader", store, unread_since)
    assert (None if call is None else call.due) == due


@pytest.mark.parametrize(
    ("call", "silence", "heartbeat_at", "renewed"),
    [
        pytest.param(StoreCall("reader", 100.0, STORE), 19.9, 110.0, False, id="it may still come"),
        pytest.param(StoreCall("reader", 100.0, STORE), 20.0, 110.0, True, id="heartbeats are answered, and it is not"),
        pytest.param(StoreCall("writer", 100.0, STORE), 20.0, 99.0, False, id="no answers: the store is silent"),
        pytest.param(StoreCall("heartbeat", 100.0, STORE), 20.0, 99.0, True, id="a heartbeat has none to compare with"),
        pytest.param(StoreCall("heartbeat", 100.0, EMBEDDED), 20.0, 99.0, False, id="an embedded store is made once"),
        pytest.param(StoreCall("reader", 100.0), 20.0, 110.0, False, id="there is no connection yet"),
    ],
)
def test_which_connection_is_made_anew(call: StoreCall, silence: float, heartbeat_at: float, renewed: bool) -> None:
    assert may_be_renewed(call, silence, heartbeat_at, within=10.0) is renewed


@pytest.mark.parametrize(
    ("call", "words", "fence"),
    [
        (StoreCall("heartbeat", 1.0, STORE), "a heartbeat to", True),
        (StoreCall("reader", 1.0, STORE), "a read from", True),
        (StoreCall("writer", 1.0, STORE), "a write to", False),
        (StoreCall("writer", 1.0), "a connection to", False),
    ],
)
def test_people_are_told_what_has_no_answer_where_and_what_follows(call: StoreCall, words: str, fence: bool) -> None:
    error = unanswered(call, 12.3, ENDPOINT, 480.0)
    assert error.message == f"{words} the store at redis://***@store:6379/0 has had no answer for 12 s."
    assert error.hint is not None
    assert error.hint.startswith("See whether its server is stopped or overloaded, and whether packets get there.")
    assert ("Workers are stopped after 480 s without it." in error.hint) is fence


def test_a_node_that_joins_tells_of_a_store_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a backend had no timeout, a joining agent was silent for ever."""
    goes_on = threading.Event()
    said: list[str] = []

    class Silent(LocalBackend):
        def read(self, index: int) -> bytes | None:
            goes_on.wait(PATIENCE)
            return super().read(index)

    def publish(event: Event) -> None:
        said.append(event.message)
        goes_on.set()

    monkeypatch.setattr(contact, "ANSWER_WITHIN_SECONDS", 0.01)
    store = GuardedBackend(Silent(MemoryStore()), "backend")
    assert StoreWait(ENDPOINT, PATIENCE, publish).call(store, lambda connection: connection.read(1)) is None
    assert goes_on.is_set()
    (message,) = said
    said_of = "a question to the store at redis://***@store:6379/0 has had no answer for "
    assert message.startswith(f"the store does not answer: {said_of}")


@dataclass
class Line:
    """Holds the replies to one method on the first connection over which it is called, until that is closed."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    method: str = ""
    held: HeldBackend | None = None
    hung_up: list[str] = field(default_factory=list)
    """The methods whose calls ended because their connection was closed."""


class HeldBackend(LocalBackend):
    """The store in memory, over such a line."""

    def __init__(self, memory: MemoryStore, line: Line) -> None:
        super().__init__(memory)
        self._memory, self._line, self._over = memory, line, False

    def connect(self) -> HeldBackend:
        return HeldBackend(self._memory, self._line)

    def close(self) -> None:
        super().close()
        with self._line.changed:
            self._over = True
            self._line.changed.notify_all()

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        super().amend(node_id, revision, value)
        self._reply("amend")

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        reply = super().heartbeat(node_id, count, watch)
        self._reply("heartbeat")
        return reply

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        now = super().wait(cursor, roster=roster, timeout=timeout)
        self._reply("wait")
        return now

    def _reply(self, method: str) -> None:
        line = self._line
        with line.changed:
            if method != line.method or line.held not in (None, self):
                return
            line.held = self
            assert line.changed.wait_for(lambda: self._over, PATIENCE), f"nobody has closed the connection of {method}"
            line.hung_up.append(method)
        raise RendezvousConnectionError("the connection was closed")


@pytest.mark.parametrize("method", ["heartbeat", "wait", "amend"])
def test_a_connection_that_alone_is_dead_is_told_of_and_made_anew(method: str) -> None:
    """The session took no notice of a reader or a writer that waited, for as long as its node's heartbeats went on."""
    memory, line = MemoryStore(), Line()
    settings = quick(2, 2, lost_after=60.0)
    a, b = Node("a", LocalBackend(memory), settings), Node("b", guarded(memory, line), settings)
    try:
        for node in (a, b):
            node.until(in_round(1, "ab"))
        line.method = method
        if method == "wait":
            a.tell(WorkerFailed(incident("a")))  # which ends b's wait, and b does not hear of it
        b.session.publish_row(b.row)
        checked_until(b, lambda: method in line.hung_up)
        checked_until(b, lambda: told(b, "store_back") == told(b, "store_unreachable") > 0)
        assert any("has had no answer for" in event.message for event in b.said)
        if method != "wait":
            a.tell(WorkerFailed(incident("a")))
        b.until(in_round(2, "ab"))
    finally:
        for node in (a, b):
            node.kill()


def guarded(memory: MemoryStore, line: Line) -> GuardedBackend:
    return GuardedBackend(HeldBackend(memory, line), "backend")


def told(node: Node, name: str) -> int:
    return sum(event.name == name for event in node.said)


def checked_until(node: Node, happened: Callable[[], bool]) -> None:
    """Check answers, as an agent's loop does, until this has happened."""
    give_up = CLOCK.now() + PATIENCE
    while not happened():
        assert CLOCK.now() < give_up, node.said
        node.session.check_answers(ENDPOINT, within=0.3)
        time.sleep(0.01)
