"""Fixtures of core's tests."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from elastic_testing.distributions import install

__all__ = ["install"]

for _signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_signum) is signal.SIG_IGN:  # inherited, as by a shell's background job
        signal.signal(_signum, signal.default_int_handler if _signum is signal.SIGINT else signal.SIG_DFL)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps until the test is over."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()
