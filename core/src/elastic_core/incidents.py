"""What went wrong, and what is to be done about it: the vocabulary of the failure hooks.

An :class:`Incident` is made on the node where something happened, travels in that node's roster row, is judged on
the chair, and ends in the ledger as the root cause that every node prints.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field


class IncidentKind(str, enum.Enum):
    """Who is to blame, in the coarse terms that decide whether a restart is spent."""

    WORKER_FAILED = "worker_failed"
    """A worker exited non-zero or was killed: spends one restart."""
    START_FAILED = "start_failed"
    """A worker could not be started at all (no such program, no pids left): spends one restart."""
    STORE_DIED = "store_died"
    """The process that held the workers' store is gone: spends none."""
    PORT_TAKEN = "port_taken"
    """Rank 0 could not listen on the port that it was given: spends none, another port is taken."""
    NODE_LOST = "node_lost"
    """A node's beats stopped, or its row went away: spends none."""
    NODE_LEFT = "node_left"
    """A node announced that it leaves (preemption, Ctrl-C): spends none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One failure, as the node that saw it tells it.

    Attributes:
        kind: What failed.
        round: The round's number, from 1 on.
        node_id: The agent that saw it; a new one each time that an agent starts.
        host: The name of that agent's host, ``node7``; ``node7 (agent 2)`` where several share it.
        after: Seconds from this node's start of the round to the failure, on its own monotonic clock. Rounds start
            within a store's wake-up of each other everywhere, so the smallest is the first failure, whatever the
            hosts' clocks say.
        rank: The worker's RANK; None where no worker is to blame, as for the fields that follow.
        local_rank: Its LOCAL_RANK.
        pid: Its process id on its host.
        exit_code: As :attr:`subprocess.Popen.returncode`: negative for a signal; None for one that did not start.
        message: One line, ``ValueError: boom``: the exception that the worker recorded, else the last line of its
            stderr that looks like one, or what could not be done; '' where nothing is known.
        detail: The exception's traceback from the error file, else the tail of the worker's stderr; at most 4 KiB.
        log: Where the worker's stderr was kept on its host, or ''.
    """

    kind: IncidentKind
    round: int
    node_id: str
    host: str
    after: float = 0.0
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    message: str = ""
    detail: str = ""
    log: str = ""

    def cause(self) -> str:
        """The outcome in a few words, e.g. ``was killed by SIGKILL (often the kernel's out-of-memory killer)``."""
        if self.exit_code is None:
            return self.message or self.kind.value.replace("_", " ")
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        return f"was killed by {signal_name(-self.exit_code)}" + _SIGNAL_NOTES.get(-self.exit_code, "")


_SIGNAL_NOTES: Mapping[int, str] = {
    signal.SIGKILL: " (somebody's kill -9, or the kernel's out-of-memory killer: see dmesg)",
    signal.SIGSEGV: " (invalid memory access in native code)",
    signal.SIGBUS: " (often a full /dev/shm)",
    signal.SIGABRT: " (native code gave up, e.g. an NCCL watchdog or a failed assertion)",
}


def signal_name(signum: int) -> str:
    """``SIGKILL`` for 9; ``signal 77`` for a number without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


class Action(enum.IntEnum):
    """What to do about an incident; of several verdicts the greatest, the strictest, wins."""

    RESTART = 0
    EXCLUDE_HOST = 1
    """Restart without the incident's host, if enough others are there."""
    GIVE_UP = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """A failure policy's answer.

    Attributes:
        action: What to do.
        reason: Why, in one sentence for people; 500 characters are kept.
        requeue: With GIVE_UP, whether the scheduler should run the job again elsewhere; it is kept in the ledger.
    """

    action: Action
    reason: str
    requeue: bool = False


def strictest(verdicts: list[Verdict]) -> Verdict:
    """The verdict to follow when several policies answered; among equals the first.

    Raises:
        ValueError: Nobody answered. (Core's own policy always does.)
    """
    if not verdicts:
        raise ValueError("no failure policy gave a verdict")
    return max(verdicts, key=lambda verdict: verdict.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that a policy may remember: the ledger's counters, since the chair moves from node to node.

    Attributes:
        restarts: Restarts spent so far by the job.
        max_restarts: ``--max_restarts``.
        rounds_without_progress: Rounds in a row that were broken before any progress was seen.
        losses: Times that each host was lost, by its stable host id.
    """

    restarts: int
    max_restarts: int
    rounds_without_progress: int
    losses: Mapping[str, int] = field(default_factory=dict)
