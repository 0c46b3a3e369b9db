"""The agent's queue with real threads, pipes and signals; only the clock of the timers is made up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastic_core.agent.event_loop import EventLoop, SignalReceived


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[EventLoop]:
    loop = EventLoop([signal.SIGTERM, signal.SIGUSR1], clock)
    yield loop
    loop.close()


def test_a_thread_that_was_left_behind_writes_into_nobody_elses_file() -> None:
    loop, before = EventLoop(), {*os.listdir("/proc/self/fd")}
    loop.close()
    memory = os.memfd_create("another file")
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, memory)
        for number in before - {*os.listdir("/proc/self/fd")}:
            stack.callback(os.close, os.dup2(memory, int(number)))
        loop.post("too late")

        assert os.fstat(memory).st_size == 0


def taken(loop: EventLoop, count: int) -> list[Any]:
    """The next so many events, in however many portions they come."""
    events: list[Any] = []
    while len(events) < count:
        events += loop.take()
    return events


@pytest.mark.parametrize("seconds", [30 * 86400.0, 1e12, 1e308])
def test_a_distant_timer_does_not_end_the_wait(loop: EventLoop, clock: Clock, seconds: float) -> None:
    loop.at(clock.time + seconds, "distant")
    loop.post("news")
    assert loop.take() == ["news"]


# Posting and watching ------------------------------------------------------------------------------------------------


def test_events_come_in_the_order_in_which_they_were_posted(loop: EventLoop) -> None:
    for number in range(100_000):  # more than the pipe that wakes it up can hold
        loop.post(number)
    assert taken(loop, 100_000) == list(range(100_000))


def test_an_event_from_another_thread_ends_the_wait(loop: EventLoop) -> None:
    thread = threading.Thread(target=loop.post, args=["news"])
    thread.start()
    assert loop.take() == ["news"]
    thread.join()


def test_no_event_of_many_threads_is_lost(loop: EventLoop) -> None:
    def post(name: int) -> None:
        for number in range(2000):
            loop.post((name, number))

    threads = [threading.Thread(target=post, args=[name]) for name in range(4)]
    for thread in threads:
        thread.start()
    events = taken(loop, 8000)
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [number for author, number in events if author == name] == list(range(2000))


def test_a_watched_descriptor_is_received_when_it_is_readable(loop: EventLoop) -> None:
    reading, writing = os.pipe()
    loop.watch(reading, lambda: os.read(reading, 100).split())
    os.write(writing, b"one two")
    assert loop.take() == [b"one", b"two"]
    loop.unwatch(reading)
    os.write(writing, b"three")
    loop.post("the end")
    assert loop.take() == ["the end"]
    os.close(reading)
    os.close(writing)


def test_news_that_amount_to_no_event_do_not_end_the_wait(loop: EventLoop) -> None:
    reading, writing = os.pipe()

    def receive() -> list[object]:
        os.read(reading, 100)
        loop.post("later")
        return []

    loop.watch(reading, receive)
    os.write(writing, b".")
    assert loop.take() == ["later"]
    loop.unwatch(reading)
    os.close(reading)
    os.close(writing)


def test_watching_something_no_longer_is_allowed_twice_and_once_it_is_closed(loop: EventLoop) -> None:
    reading, writing = os.pipe()
    file = os.fdopen(reading)
    loop.watch(file, list)
    file.close()
    loop.unwatch(file)
    loop.unwatch(file)
    os.close(writing)
    loop.post("news")
    assert loop.take() == ["news"]


# Timers --------------------------------------------------------------------------------------------------------------


def test_timers_come_in_the_order_of_their_instants_and_equal_ones_as_they_were_set(
    loop: EventLoop, clock: Clock
) -> None:
    for instant, event in [(103.0, "c"), (101.0, "a"), (102.0, "b"), (101.0, "a2"), (104.0, "late")]:
        loop.at(instant, event)
    clock.time = 103.0
    assert loop.take() == ["a", "a2", "b", "c"]
    clock.time = 200.0
    assert loop.take() == ["late"]


def test_a_timer_does_not_come_before_its_instant(loop: EventLoop, clock: Clock) -> None:
    loop.at(100.001, "soon")
    loop.post("now")
    assert loop.take() == ["now"]
    clock.time = 100.001
    assert loop.take() == ["soon"]


def test_a_timer_ends_the_wait_by_the_real_clock() -> None:
    loop = EventLoop()
    loop.at(0.0, "long overdue")
    assert loop.take() == ["long overdue"]
    loop.close()


def test_a_posted_event_comes_before_a_timer_that_is_due(loop: EventLoop) -> None:
    loop.at(50.0, "due")
    loop.post("news")
    assert loop.take() == ["news", "due"]


# Signals -------------------------------------------------------------------------------------------------------------


def test_signals_are_events_in_the_order_in_which_they_came(loop: EventLoop) -> None:
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        signal.raise_signal(signum)
    assert taken(loop, 3) == [SignalReceived(15), SignalReceived(signal.SIGUSR1), SignalReceived(15)]


def test_a_signal_with_somebody_elses_handler_is_no_event(loop: EventLoop) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        for signum in (signal.SIGUSR2, signal.SIGTERM):
            signal.raise_signal(signum)
        assert taken(loop, 1) == [SignalReceived(signal.SIGTERM)]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_of_another_process_ends_the_wait(loop: EventLoop) -> None:
    with subprocess.Popen(["kill", "-TERM", str(os.getpid())]):
        assert loop.take() == [SignalReceived(signal.SIGTERM)]


def test_a_flood_of_signals_neither_blocks_nor_complains(loop: EventLoop) -> None:
    for _ in range(70_000):  # more than the pipe can hold
        signal.raise_signal(signal.SIGUSR1)
    assert set(loop.take()) == {SignalReceived(signal.SIGUSR1)}


def test_the_signals_are_given_back_at_the_end() -> None:
    heard: list[int] = []
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGUSR1, lambda signum, _: heard.append(signum))
    try:
        loop = EventLoop([signal.SIGUSR1])
        signal.raise_signal(signal.SIGUSR1)
        assert heard == []
        loop.close()
        signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_comes_before_the_end_and_is_not_taken_is_known_after_it(loop: EventLoop) -> None:
    inner = EventLoop([signal.SIGTERM])
    signal.raise_signal(signal.SIGTERM)
    inner.close()
    assert inner.late_signals == [signal.SIGTERM]
    signal.raise_signal(signal.SIGUSR1)
    assert loop.take() == [SignalReceived(signal.SIGUSR1)]


def test_nothing_is_left_open_after_the_end() -> None:
    before = os.listdir("/proc/self/fd")
    EventLoop([signal.SIGUSR1]).close()
    assert os.listdir("/proc/self/fd") == before
