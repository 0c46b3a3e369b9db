"""A simulated agent runs on the simulator's runtime alone: no thread, no wait and no clock of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAY = """
import sys, threading, time

# an event and a logged decision say when they happened, and nothing is decided by that
STAMPED = ("elastic_core.events", "elastic_core.decision_log")
forbidden = False

def guard(owner, name):
    real = getattr(owner, name)
    def call(*args, **named):
        caller = sys._getframe(1).f_globals["__name__"]
        assert not forbidden or caller in STAMPED, f"{caller} uses {name} in a simulated run"
        return real(*args, **named)
    setattr(owner, name, call)

for name in ("monotonic", "time", "sleep"):
    guard(time, name)  # before any module takes it for a default
guard(threading.Thread, "start")
guard(threading.Condition, "wait")

from simulator.profiles import PROFILES, draw
from simulator.play import play

for profile in PROFILES:
    for seed, safety in ((1, False), (122, True)):
        plan = draw(seed, profile, not safety)
        forbidden = False
        play(plan)  # imports what it needs
        forbidden = True
        outcome = play(plan)
        assert outcome.violation is None, f"{profile} {seed}: {outcome.violation}"
        assert outcome.events > 20, f"{profile} {seed}: {outcome.events} events"
print(len(PROFILES))
"""


def test_a_simulated_run_starts_no_real_thread_and_reads_no_real_clock() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PLAY], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40
