from __future__ import annotations

import threading
from collections.abc import Callable

from elastic_core.events import Event, Level
from elastic_core.plugins.observers import Implementation, Observers

PATIENCE = 60.0


def observer(plugin: str, function: Callable[[Event], object]) -> Implementation:
    return Implementation(plugin, "elastic_observe", function, ("event",))


def numbered(count: int) -> list[Event]:
    return [Event(f"e{number}", "") for number in range(count)]


def test_everybody_hears_what_it_implements_in_order_with_the_arguments_it_takes() -> None:
    heard: list[object] = []
    observers = Observers(
        [
            observer("one", lambda event: heard.append(event.name)),
            Implementation("one", "elastic_round_starts", lambda members: heard.append(members), ("members",)),
            Implementation("two", "elastic_run_ends", lambda: None, ()),
        ]
    )
    observers.tell("elastic_observe", event=Event("first", ""))
    observers.tell("elastic_round_starts", round=1, run_uid="u", members=["a", "b"])
    observers.tell("elastic_run_ends")
    observers.tell("elastic_observe", event=Event("last", ""))
    assert observers.close(PATIENCE) == ()
    assert heard == ["first", ["a", "b"], "last"]


def test_one_that_raises_is_switched_off_and_the_others_are_told() -> None:
    calls: list[str] = []
    told: list[Event] = []
    both_told = threading.Event()

    def broken(event: Event) -> None:
        calls.append(event.name)
        raise OSError("disk full")

    def healthy(event: Event) -> None:
        told.append(event)
        if event.level is Level.DEBUG:
            both_told.set()

    observers = Observers([observer("broken", broken), observer("healthy", healthy)])
    observers.tell("elastic_observe", event=Event("first", ""))
    assert both_told.wait(PATIENCE)
    observers.tell("elastic_observe", event=Event("second", ""))
    assert observers.close(PATIENCE) == ()
    assert calls == ["first"]
    first, warning, trace, second = told
    assert (first.name, second.name) == ("first", "second")
    assert (warning.level, warning.message) == (
        Level.WARNING,
        "The plugin 'broken' raised in elastic_observe: OSError: disk full. It is switched off; the job goes on.",
    )
    assert trace.message.startswith("Traceback")
    assert trace.message.endswith("OSError: disk full")


def test_one_that_stalls_loses_its_own_oldest_notices_and_nobody_elses() -> None:
    stalled, release = threading.Event(), threading.Event()
    slow: list[str] = []
    quick: list[str] = []

    def stalling(event: Event) -> None:
        slow.append(event.name)
        stalled.set()
        release.wait(PATIENCE)

    arrived = threading.Semaphore(0)

    def quickly(event: Event) -> None:
        quick.append(event.name)
        arrived.release()

    observers = Observers([observer("slow", stalling), observer("quick", quickly)], limit=3)
    first, *rest = numbered(6)
    observers.tell("elastic_observe", event=first)
    assert stalled.wait(PATIENCE)
    assert arrived.acquire(timeout=PATIENCE)
    for event in rest:
        observers.tell("elastic_observe", event=event)
        assert arrived.acquire(timeout=PATIENCE)
    release.set()
    assert arrived.acquire(timeout=PATIENCE), "the quick one hears that the slow one fell behind"
    assert observers.close(PATIENCE) == ()
    assert quick == ["e0", "e1", "e2", "e3", "e4", "e5", "observer_fell_behind"]
    assert slow == ["e0", "e3", "e4", "e5", "observer_fell_behind"]


def test_closing_names_those_that_do_not_end() -> None:
    release = threading.Event()
    observers = Observers([observer("stuck", lambda _: release.wait(PATIENCE)), observer("fine", lambda _: None)])
    observers.tell("elastic_observe", event=Event("e", ""))
    left = observers.close(0.05)
    while "fine" in left:  # its thread may not have come to its end yet
        left = observers.close(0.05)
    assert left == ("stuck",)
    release.set()
    assert observers.close(PATIENCE) == ()
