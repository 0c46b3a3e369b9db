"""When a successor of a fork server is due, with a clock of the test's, and what it reports."""

from __future__ import annotations

import math
import os
import time

import pytest

from elastic_warmstart.server import DELAYS_SECONDS, SUCCESSOR_MAX_SECONDS, Growth


def test_each_successor_is_due_after_its_delay_and_workers_begin_again_with_the_second() -> None:
    growth = Growth(True)
    growth.note_worker(100.0)
    for step, delay in enumerate(DELAYS_SECONDS):
        assert (growth.step, growth.deadline()) == (step, 100.0 + delay)
        growth.step += 1
    assert growth.deadline() == math.inf
    growth.note_worker(200.0)
    assert growth.deadline() == 200.0 + DELAYS_SECONDS[1], "the first one's imports are there"
    assert Growth(False).deadline() == math.inf


def test_there_is_none_before_a_worker_whose_imports_it_inherits() -> None:
    growth = Growth(True)
    assert growth.deadline() == math.inf
    growth.note_worker(100.0)
    growth.note_worker(101.0)
    assert growth.deadline() == 101.0 + DELAYS_SECONDS[0]


def test_a_node_that_waits_for_all_imports_has_the_successor_forked_at_once_and_only_the_first() -> None:
    growth = Growth(True)
    growth.hasten(100.5)
    assert growth.deadline() <= 100.5, "without the pause that leaves the CPUs to workers"
    growth.step += 1
    growth.hasten(100.5)
    assert growth.deadline() > 100.5, "the next one learns from workers that have run"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os._exit(3)", "the process that imported it exited with code 3"),
        ("os.kill(os.getpid(), 9)", "the process that imported it was killed by SIGKILL"),
        ("time.sleep(1000)", "its import did not end within 600 s"),
        ("link.send({'event': 'failed', 'reason': 'why'}), time.sleep(1000)", "why"),
    ],
)
def test_a_successor_that_fails_is_ended_and_the_reason_is_known(end: str, reason: str) -> None:
    growth = Growth(True)
    assert growth.fork(100.0) is None
    link = growth.link
    assert link is not None
    if growth.pid == 0:
        eval(end, {"os": os, "time": time, "link": link})
        os._exit(0)
    assert growth.deadline() == 100.0 + SUCCESSOR_MAX_SECONDS
    late, report = "did not end" in reason, None
    while report is None:
        report = growth.read_answer(link, growth.deadline() if late else 100.0)
    assert report == {"event": "failed", "reason": reason}
    assert growth.link is None
    with pytest.raises(ChildProcessError):
        os.waitpid(growth.pid, os.WNOHANG)
