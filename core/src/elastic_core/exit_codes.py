"""The exit codes of ``elastic run``, also in ``docs/reference/exit_codes.md``; 69 to 76 follow BSD ``sysexits.h``."""

from __future__ import annotations

import enum
import signal


class ExitCode(enum.IntEnum):
    """The exit code of ``elastic run`` when no signal ended it."""

    SUCCESS = 0
    """Every worker of the last round exited with 0."""
    JOB_FAILED = 1
    """The job is closed as failed: a worker failed and no restart was left, or the failure policy gave up."""
    USAGE = 2
    """A flag, a value or a file named on the command line is wrong; nothing was started."""
    UNREACHABLE = 69
    """The rendezvous endpoint could not be reached, refused the connection, or its handler or backend failed."""
    INTERNAL = 70
    """A defect of Elastic itself; the traceback above the last line is what to report."""
    WITHDRAWN = 71
    """This node took itself out: a worker could not be killed, or a lost contact outlived the fence."""
    UNHEALTHY = 72
    """A health check of this node failed: it did not enter the job, or left it."""
    STORE_LOST = 74
    """The store was lost for good (its host left, or its history changed) and workers could not finish without it."""
    TOO_FEW_NODES = 75
    """Fewer than the minimum of nodes came, or remained, until the join timeout."""
    REFUSED = 76
    """The running job refused this node: other settings, other versions, or another run under the same job id."""
    REQUEUE = 79
    """The job is closed as failed, and is worth running again: the last failure was not the program's."""


STACK_REQUESTS = range(signal.SIGRTMAX - 5, signal.SIGRTMAX - 2)
"""The signals by which an agent asks a worker for its stacks, if elastic-hangs is on."""


def signal_name(signum: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 77`` for a number without a name."""
    if signum in STACK_REQUESTS:
        return f"signal {signum} (Elastic's request for a stack)"
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def describe_exit(returncode: int) -> str:
    """Return ``exited with code 2`` or ``was killed by SIGKILL``, by a code as of :class:`subprocess.Popen`."""
    return f"was killed by {signal_name(-returncode)}" if returncode < 0 else f"exited with code {returncode}"


def signalled(signum: int) -> int:
    """Return the exit code of a run that a signal ended, e.g. 143 after SIGTERM (preempted), 130 after Ctrl-C."""
    return 128 + signum
