"""Reports of the scripts' steps to the test, and the place where one of their workers waits to be killed.

With ``HANG=1`` that worker waits for what never comes instead, as for a lock.

The scripts call it from their callbacks; nothing else in them is for the test. The test puts this folder on PYTHONPATH,
and lets a warm start preload it: a worker that finds it imported by another process was forked.
"""

from __future__ import annotations

import json
import os
import signal
import threading

IMPORTED_BY = os.getpid()


def began(step: int) -> None:
    """Report the step from which this worker process goes on, 0 if it found no checkpoint."""
    _report("began", step=step, forked=os.getpid() != IMPORTED_BY)


def step_ended(step: int) -> None:
    """A step is done. After the one that the test names, rank 1 of the first life waits there for its SIGKILL."""
    _report("step", step=step)
    if (os.environ["RANK"], _life(), step) == ("1", 0, int(os.environ["WAIT_AFTER_STEP"])):
        _report("waiting", step=step)
        if os.environ.get("HANG") == "1":
            threading.Event().wait()
        signal.pause()


def finished() -> None:
    """The script is at its end."""
    _report("finished")


def _life() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def _report(event: str, **fields: object) -> None:
    """One line in one atomic write, begun afresh: frameworks share the pipe, and leave their lines open meanwhile."""
    known = {"event": event, "rank": int(os.environ["RANK"]), "pid": os.getpid(), "life": _life()}
    os.write(1, f"\n{json.dumps({**known, **fields})}\n".encode())
