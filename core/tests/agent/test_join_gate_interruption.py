"""The ends of the wait of a node that is being checked, with real signals and threads."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing

import pytest

from elastic_core.agent.gates import Interruption, repeats_request
from elastic_core.gates import HostEnd, wait_for_any
from elastic_core.protocol.node_events import Exit

PATIENCE = 60.0


def test_a_signal_that_another_thread_takes_ends_a_wait() -> None:
    with closing(Interruption([signal.SIGUSR1], HostEnd())) as interruption:
        thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
        thread.start()
        assert wait_for_any([], PATIENCE, interruption.is_due) == []
        thread.join()
        assert interruption.end == Exit(128 + signal.SIGUSR1, "received SIGUSR1, before this node had entered the job")
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_signal_that_is_repeated_at_once_is_one_request() -> None:
    """``timeout`` signals its child and then its group; a second request would end this process."""
    with closing(Interruption([signal.SIGUSR1, signal.SIGUSR2], HostEnd())) as interruption:
        for signum in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
            signal.raise_signal(signum)
        assert wait_for_any([], PATIENCE, interruption.is_due) == []
        assert interruption.end == Exit(128 + signal.SIGUSR1, "received SIGUSR1, before this node had entered the job")


@pytest.mark.parametrize(
    ("signum", "seconds", "same"),
    [
        (signal.SIGTERM, 0.0, True),
        (signal.SIGHUP, 0.99, True),
        (signal.SIGTERM, 1.0, False),
        (signal.SIGINT, 0.0, False),
        (signal.SIGQUIT, 0.5, False),
    ],
)
def test_a_signal_repeats_a_request_within_a_second_unless_it_is_from_the_keyboard(
    signum: int, seconds: float, same: bool
) -> None:
    assert repeats_request(signum, seconds) == same


def test_a_signal_on_which_the_node_does_not_leave_ends_no_wait() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    reading, writing = os.pipe()
    try:
        with closing(Interruption([signal.SIGUSR1], HostEnd())) as interruption:
            signal.raise_signal(signal.SIGUSR2)
            os.write(writing, b"!")
            assert wait_for_any([reading], PATIENCE, interruption.is_due) == [reading]
            assert not interruption.is_due()
    finally:
        signal.signal(signal.SIGUSR2, before)
        os.close(reading)
        os.close(writing)


def test_an_earlier_notice_of_a_plugin_counts_and_ends_every_wait() -> None:
    host_end = HostEnd()
    host_end.leave("AWS terminates it", 30.0)
    with closing(Interruption([], host_end)) as interruption:
        assert wait_for_any([], PATIENCE, interruption.is_due) == []
        assert wait_for_any([], PATIENCE, interruption.is_due) == []
        assert interruption.end == Exit(143, "AWS terminates it, before this node had entered the job")


def test_the_earliest_notice_of_a_plugin_passes_on_to_the_next_listener() -> None:
    host_end, heard = HostEnd(now=lambda: 5.0), list[tuple[str, float, float]]()
    with closing(Interruption([], host_end)):
        pass
    host_end.leave("later", 30.0)
    host_end.leave("earlier", 20.0)
    host_end.set_listener(lambda *said: heard.append(said))
    assert heard == [("earlier", 20.0, 5.0)]


def test_a_wait_ends_when_it_is_woken_or_its_time_is_over() -> None:
    with closing(Interruption([], HostEnd())) as interruption:
        assert wait_for_any([], 0.0, interruption.is_due) == []
        assert not interruption.is_due()
        threading.Thread(target=interruption.wake).start()
        assert wait_for_any([], PATIENCE, interruption.is_due) == []
        assert interruption.is_due()
        assert interruption.end is None
    interruption.wake()  # too late, and no error
