from __future__ import annotations

import pytest
from session_parts import ignore, job, leader_of, state_of
from views import live, start

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import encode_entry
from elastic_core.session.contact import FENCE_SHARE, RETRY_FIRST, RETRY_MOST, Backoff, StoreWait
from elastic_core.session.reader import StoreReader
from elastic_core.session.runtime import Runtime


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    backoff = Backoff()
    pauses = [backoff.failed() for _ in range(7)]
    assert pauses == [RETRY_FIRST, 0.2, 0.4, 0.8, 1.6, RETRY_MOST, RETRY_MOST]


def test_after_a_success_the_next_failure_is_a_first_one() -> None:
    backoff = Backoff()
    backoff.failed()
    backoff.failed()
    backoff.worked()
    assert backoff.failed() == RETRY_FIRST


def test_it_never_waits_longer_than_it_is_given() -> None:
    backoff = Backoff(most=0.5)
    assert [backoff.failed() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


class Restarting(LocalBackend):
    """A store whose server is down for the first ``down`` calls and connections."""

    down = 0

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.memory = store

    def _answer(self) -> None:
        if Restarting.down > 0:
            Restarting.down -= 1
            raise RendezvousConnectionError("connection refused")

    def connect(self) -> Restarting:
        self._answer()
        return Restarting(self.memory)

    def read(self, index: int) -> bytes | None:
        self._answer()
        return super().read(index)


def counting(pauses: list[float]) -> Runtime:
    """A runtime whose clock shows the pauses made so far."""
    return Runtime(now=lambda: sum(pauses), sleep=pauses.append)


def persisted(store: Restarting, down: int, timeout: float = 60.0) -> tuple[list[str], list[float]]:
    """Return the events, and the length of each pause, of an attempt that the store answers in the end."""
    told: list[str] = []
    pauses: list[float] = []
    Restarting.down = down

    wait = StoreWait("", timeout, lambda event: told.append(event.message), counting(pauses))
    wait.call(store, lambda to: to.read(1))
    return told, pauses


def test_a_node_that_joins_waits_for_a_store_that_restarts() -> None:
    """It ended with exit code 69, though the store was back a second later."""
    assert persisted(Restarting(MemoryStore()), 4) == (
        ["the store does not answer; waiting for it for up to 60 s: connection refused"],
        [0.1, 0.2, 0.4, 0.8],
    )


def test_a_store_that_does_not_come_back_in_time_is_out_of_reach() -> None:
    with pytest.raises(RendezvousConnectionError, match="connection refused"):
        persisted(Restarting(MemoryStore()), 1000, timeout=5.0)


def test_an_embedded_store_does_not_come_back() -> None:
    store = Restarting(MemoryStore())
    store.embedded = True
    with pytest.raises(RendezvousConnectionError, match="connection refused"):
        persisted(store, 1)


WAITS = "the store at redis://***@store:6379 does not answer; waiting for it for up to"


def connected(failures: list[RendezvousConnectionError], timeout: float) -> tuple[str, list[str], float]:
    """Return the result of a first connection that fails so often, the events, and the seconds waited."""
    told: list[str] = []
    pauses: list[float] = []

    def make() -> str:
        if failures:
            raise failures.pop(0)
        return "made"

    wait = StoreWait("redis://:secret@store:6379", timeout, lambda event: told.append(event.message), counting(pauses))
    try:
        found = wait.connect(make)
    except RendezvousConnectionError as exc:
        found = f"raised: {exc.message}"
    return found, told, sum(pauses)


def refused(count: int) -> list[RendezvousConnectionError]:
    return [RendezvousConnectionError(f"refused {number}") for number in range(count)]


def test_the_first_connection_waits_for_a_store_that_is_not_up_yet() -> None:
    """One refused connection ended the agent with exit code 69."""
    found, told, _ = connected(refused(3), 60.0)
    assert (found, told) == ("made", [f"{WAITS} 60 s: refused 0"])


def test_the_first_connection_is_given_up_when_its_time_is_over() -> None:
    found, told, waited = connected(refused(1000), 5.0)
    assert found.startswith("raised: refused ")
    assert (told, waited) == ([f"{WAITS} 5 s: refused 0"], 5.0)


def test_a_lasting_error_ends_the_wait_at_once() -> None:
    wrong = RendezvousConnectionError("wrong password", lasting=True)
    assert connected([wrong], 60.0) == ("raised: wrong password", [], 0)


@pytest.mark.parametrize(("share", "asks"), [(0.4, False), (0.6, True)])
def test_a_node_has_half_of_its_fences_time_left_when_it_reads_of_a_round(share: float, asks: bool) -> None:
    """Its workers may start much later: those of the round before have to end (rule S4)."""
    store, ledger, now = job(), live("ab"), [0.0]
    assert store.append(start().head.link, ledger.head.link, encode_entry(ledger.head))
    runtime = Runtime(now=lambda: now[0])
    state = state_of("b", ledger, store, runtime)
    reader = StoreReader(state, leader_of(ignore, runtime, ignore))  # type: ignore[arg-type]  # it judges nothing
    now[0] = share * FENCE_SHARE * ledger.settings.timing.fence_after
    reader._have_contact(store, ledger)
    assert state.contact.known_at == (now[0] if asks else 0.0)
