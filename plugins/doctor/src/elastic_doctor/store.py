"""A store, tried: every operation that the protocol needs, with the answers that it needs, and in the time.

All checks use a job of this examination alone. What answers otherwise than it must raises RendezvousStateError, as a
job would meet it. The checks stand on each other: the rows and entries of one are there in the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError as Late
from statistics import median
from typing import TypeAlias

from elastic_core.config import Timing
from elastic_core.errors import RendezvousStateError
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol import SUSPICION_SECONDS
from elastic_core.rendezvous import ORIGIN, TOMBSTONE, Cursor, Link, RendezvousBackend, RosterRow
from elastic_core.threads import asked
from elastic_doctor.findings import Finding, ok, warning, wrong

At: TypeAlias = Callable[[str], None]  # told what is tried next, which from then on has its own time to answer

NODE, OTHER = "doctor-1", "doctor-2"
PATIENCE = 2.0
"""Seconds that a wake-up may take, and an answer of a backend that can be told so: by then it has its own words, before
it is taken for one that hangs."""

HEARTBEATS, WAKE_UPS = 20, 10  # the most that are measured
ENOUGH = 2.0  # seconds after which no further one is begun
FALLS_ASLEEP = 0.01  # seconds for a waiter to fall asleep, so that it has to be woken

GRACE = 0.2  # seconds for which a wait that is over may take to say so

_FIRST, _SECOND = Link(1, "doctor-first"), Link(2, "doctor-second")
_HINT = (
    "Either the store is not what it should be, or the backend has a defect: its conformance tests "
    "(elastic_testing) would show which."
)


def check_roster(store: RendezvousBackend, second: RendezvousBackend, at: At) -> Finding:
    """Enter, amend, heartbeat, list and remove; one row stays for the checks that follow."""
    at("enter")
    serial = store.enter(NODE, b"waiting")
    _expect(serial >= 1 and store.enter(NODE, b"again") == serial, "a node that entered twice has two serials")
    at("amend")
    store.amend(NODE, 2, b"running")
    second.amend(NODE, 1, b"a late write")
    at("heartbeat")
    reply = store.heartbeat(NODE, 7)
    _expect(reply.revision == 2, f"the row is at revision {reply.revision} after it was amended to 2")
    at("roster")
    rows = second.roster()
    _expect(rows == [RosterRow(NODE, serial, 2, b"running", 7)], f"another connection sees {rows}")
    at("remove")
    store.enter(OTHER, b"waiting")
    store.remove(NODE)
    left = [row.node_id for row in second.roster()]
    _expect(left == [OTHER], f"with one of two rows removed, the roster has {left}")
    _expect(second.heartbeat(NODE, 8).revision is None, "a heartbeat brings a removed row back")
    return ok("roster", "a row can be entered, amended, given a heartbeat, listed and removed")


def check_ledger(store: RendezvousBackend, second: RendezvousBackend, at: At) -> Finding:
    """Append what wins, what loses and what is repeated after a lost reply; read and shrink."""
    at("append")
    _expect(store.append(ORIGIN, _FIRST, b"first"), "the first entry does not go in")
    _expect(not second.append(ORIGIN, Link(1, "doctor-rival"), b"rival"), "two writers won one index")
    _expect(second.append(ORIGIN, _FIRST, b"first"), "an entry repeated after a lost reply counts as lost")
    _expect(not second.append(Link(1, "doctor-rival"), _SECOND, b"second"), "an entry was built on one that lost")
    _expect(second.append(_FIRST, _SECOND, b"second"), "a second entry does not go in")
    at("read")
    entries = [store.read(index) for index in (1, 2, 3)]
    _expect(entries == [b"first", b"second", None], f"of two entries, this is read: {entries}")
    at("shrink")
    store.shrink(1)
    data = second.read(1)
    _expect(data in (TOMBSTONE, b"first"), f"of an entry that was let go, this is left: {data!r}")
    _expect(not second.append(ORIGIN, Link(1, "doctor-ghost"), b"ghost"), "the place of an old entry is free again")
    shrinks = "shrinks old entries" if data == TOMBSTONE else "keeps old entries whole"
    return ok("ledger", f"of two writers one wins, a repeated entry is recognised, all are read back; it {shrinks}")


def check_wake_up(store: RendezvousBackend, second: RendezvousBackend, at: At) -> Finding:
    """Check that a wait ends when another connection appends or amends."""
    at("wait for a row")
    before = store.wait(Cursor(), roster=True, timeout=0)
    waiting = begin_wait(store, before, roster=True)
    second.amend(OTHER, 1, b"running")
    _expect(woken(waiting) is not None, f"an amendment over another connection wakes no waiter within {PATIENCE:g} s")
    at("wait for an entry")
    before = store.wait(Cursor(), roster=False, timeout=0)
    waiting = begin_wait(store, before, roster=False)
    _expect(second.append(_SECOND, Link(3, "doctor-third"), b"third"), "a third entry does not go in")
    _expect(woken(waiting) is not None, f"an entry over another connection wakes no waiter within {PATIENCE:g} s")
    return ok("waiting", "an append and an amendment over one connection wake who waits on another")


def check_isolation(store: RendezvousBackend, stranger: RendezvousBackend, at: At) -> Finding:
    """Another job id must see nothing of this one, whose row and entries are still there."""
    at("another job id")
    seen = [*(row.node_id for row in stranger.roster()), stranger.read(1), stranger.heartbeat(OTHER, 99).revision]
    _expect(seen == [None, None], f"a job of another id sees {seen}")
    _expect(stranger.append(ORIGIN, Link(1, "doctor-elsewhere"), b"elsewhere"), "a job of another id cannot begin")
    _expect(store.read(2) == b"second", "a job of another id has changed this one")
    return ok("isolation", "a job of another id sees nothing of this one")


def begin_wait(store: RendezvousBackend, cursor: Cursor, *, roster: bool) -> Future[float | None]:
    """Wait on a thread, over a connection that is used for nothing else meanwhile, until :func:`woken`."""

    def wait() -> float | None:
        deadline = time.monotonic() + PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            now = store.wait(cursor, roster=roster, timeout=left)
            moved = now.head != cursor.head or (roster and now.roster != cursor.roster)
            if moved and (ended := time.monotonic()) < deadline:
                return ended
        return None

    waiting = asked(wait, name="elastic-doctor-waiter")
    time.sleep(FALLS_ASLEEP)
    return waiting


def woken(waiting: Future[float | None]) -> float | None:
    """Return when the wait ended, by ``time.monotonic()``; None if nothing had woken it within :data:`PATIENCE`.

    Raise its RendezvousError if it failed.
    """
    try:
        return waiting.result(PATIENCE + GRACE)
    except Late:
        return None


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise RendezvousStateError(f"{otherwise[0].upper()}{otherwise[1:]}.", hint=_HINT)


def measure_heartbeats(store: RendezvousBackend, timing: Timing, at: At) -> Finding:
    """Heartbeat, again and again, as each node of a job does with one connection."""
    count = 0

    def heartbeat() -> float:
        nonlocal count
        count += 1
        at(f"heartbeat {count}")
        began = time.monotonic()
        store.heartbeat(OTHER, count, OTHER)
        return time.monotonic() - began

    return judge_heartbeats(_repeat(heartbeat, HEARTBEATS), timing)


def measure_wake_ups(store: RendezvousBackend, second: RendezvousBackend, at: At) -> Finding:
    """Append over one connection, and see when who waits on another knows."""
    head = store.wait(Cursor(), roster=False, timeout=0).head
    prev = Link(head, "doctor-third")  # the wake-up check's, its last

    def wake() -> float:
        nonlocal prev
        entry = Link(prev.index + 1, f"doctor-{prev.index + 1}")
        at(f"entry {entry.index}")
        waiting = begin_wait(store, Cursor(prev.index), roster=False)
        began = time.monotonic()
        if not second.append(prev, entry, b"measured"):
            raise RendezvousStateError(f"Entry {entry.index} does not go in, and no other program writes there.")
        prev, ended = entry, woken(waiting)
        return PATIENCE if ended is None else ended - began

    return judge_wake_ups(_repeat(wake, WAKE_UPS))


def judge_heartbeats(seconds: Sequence[float], timing: Timing) -> Finding:
    """Judge by their times whether heartbeats are fast enough."""
    seen, figures = _figures(seconds)
    interval, limit = timing.beat_interval, timing.lost_after
    limits = f"a node heartbeats every {interval:g} s, and is lost after {limit:g} s of silence"
    faster = "Use a store nearer to the nodes, or one with less to do"
    if median(seconds) >= interval or max(seconds) >= limit:
        times = f"--rdzv_conf beat_interval={_round(5 * max(seconds))},lost_after={_round(15 * max(seconds))}"
        advice = f"{faster}; or let nodes heartbeat more seldom: {times}."
        return wrong("heartbeat time", f"{seen}: too slow, since {limits}", advice, ExitCode.UNREACHABLE, **figures)
    if median(seconds) >= interval / 10 or max(seconds) >= interval / 2:
        return warning(
            "heartbeat time", f"{seen}: slow, since {limits}", f"{faster}; healthy nodes may be lost.", **figures
        )
    return ok("heartbeat time", f"{seen}; {limits}", **figures)


def judge_wake_ups(seconds: Sequence[float]) -> Finding:
    """Judge by their times whether wake-ups are fast enough."""
    seen, figures = _figures(seconds)
    limit = f"a node that does not show within {SUSPICION_SECONDS:g} s that it saw an entry is suspected"
    advice = "Use a store nearer to the nodes, or one with less to do."
    if median(seconds) >= SUSPICION_SECONDS:
        return wrong("wake-up time", f"{seen}: too slow, since {limit}", advice, ExitCode.UNREACHABLE, **figures)
    if max(seconds) >= SUSPICION_SECONDS / 2:
        return warning("wake-up time", f"{seen}: slow, since {limit}", advice, **figures)
    return ok("wake-up time", f"{seen}; {limit}", **figures)


def _repeat(once: Callable[[], float], most: int) -> list[float]:
    """Return what it returned, so many times or until it has been enough; at least once."""
    until = time.monotonic() + ENOUGH
    taken = [once()]
    while len(taken) < most and time.monotonic() < until:
        taken.append(once())
    return taken


def _figures(seconds: Sequence[float]) -> tuple[str, dict[str, float]]:
    middle, worst = (1000 * value for value in (median(seconds), max(seconds)))
    figures = {"median_ms": round(middle, 3), "worst_ms": round(worst, 3), "count": float(len(seconds))}
    return f"{middle:.1f} ms, the worst of {len(seconds)} {worst:.1f} ms", figures


def _round(seconds: float) -> int:
    return max(1, round(seconds))
