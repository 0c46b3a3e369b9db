"""The times of a heartbeat and of a wake-up, compared with the limits by which a job judges its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from elastic_core.config import Timing
from elastic_core.errors import RendezvousStateError
from elastic_core.exit_codes import ExitCode
from elastic_core.protocol import SUSPICION_SECONDS
from elastic_core.rendezvous import Cursor, Link, RendezvousBackend
from elastic_doctor.findings import Finding, ok, warning, wrong
from elastic_doctor.store import OTHER, PATIENCE, At, Waiter

HEARTBEATS, WAKE_UPS = 20, 10  # the most that are measured
ENOUGH = 2.0  # seconds after which no further one is begun


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
        waiting = Waiter(store, Cursor(prev.index), roster=False)
        began = time.monotonic()
        if not second.append(prev, entry, b"measured"):
            raise RendezvousStateError(f"Entry {entry.index} does not go in, and no other program writes there.")
        prev, woken_at = entry, waiting.woken()
        return (began + PATIENCE if woken_at is None else woken_at) - began

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
