"""What went wrong, and what is to be done about it: the vocabulary of the failure hooks.

An :class:`Incident` is made on the node where something happened, travels in that node's roster row, is judged on
the leader, and ends in the ledger as the root cause that every node prints.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_core.exit_codes import describe_exit


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
    """A node's heartbeats stopped, or its row went away: spends none."""
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
            within a store's wake-up of each other everywhere, so of failures of one kind (:func:`by_cause`) the
            smallest is the first.
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
        return describe_exit(self.exit_code) + _SIGNAL_NOTES.get(-self.exit_code, "")


PEER_LOSS_PATTERNS: Mapping[str, str] = {
    "the kernel: the peer's process has ended": r"connection (closed|reset) by peer|broken pipe",
    "gloo: the peer does not answer": r"timed out waiting \d+ ?ms for (send|recv)|application timeout caused pair",
    "gloo: the peer cannot be reached": r"gloo connectfullmesh failed",
    "NCCL: the peer's process has ended": r"ncclremoteerror|remote process exited|peer process terminated",
    "NCCL: the peer does not answer": r"caught collective operation timeout|operations have failed or timed out",
    "NCCL: torch has given the group up": r"nccl communicator was aborted|timeout signal from another rank",
    "TCPStore: the peer does not come": r"socket timeout|wait timeout after \d+ ?ms|\d+/\d+ clients joined",
    "TCPStore: the peer that holds it is gone": r"failed to recv, got 0 bytes|distnetworkerror",
}
"""What a worker says when a peer of it has failed, by what that tells; regular expressions, in small letters."""
_PEER_LOSS = re.compile("|".join(PEER_LOSS_PATTERNS.values()), re.IGNORECASE)
_CHAINED = "The above exception was the direct cause of the following exception"


def follows_peer_loss(incident: Incident) -> bool:
    """Whether a failure is what follows when another worker has failed, or when the round is being stopped.

    That is an exception that tells of a peer (:data:`PEER_LOSS_PATTERNS`), raised by itself or as another one's cause,
    the SIGABRT of native code that tells so, and SIGTERM, which somebody has sent. Any other signal, and an exception
    of the program's own, has a cause here.
    """
    if incident.kind is not IncidentKind.WORKER_FAILED:
        return False
    if incident.exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return True
    if incident.exit_code is not None and incident.exit_code < 0 and incident.exit_code != -signal.SIGABRT:
        return False
    native = incident.exit_code == -signal.SIGABRT or not incident.message
    text = incident.detail if native or _CHAINED in incident.detail else ""
    return _PEER_LOSS.search(f"{incident.message}\n{text}") is not None


_BROKEN_SCRIPT = frozenset({"ImportError", "IndentationError", "ModuleNotFoundError", "SyntaxError", "TabError"})
_USAGE = re.compile(r"^usage:", re.IGNORECASE | re.MULTILINE)
_USAGE_EXIT_CODE = 2
"""What argparse, click and their like exit with after the usage message."""
_BEGINS_WITHIN = 600.0
"""Seconds within which a program has imported what it begins with, also from a slow file system."""
_COMPILED = re.compile(r"\.so\b")


def repeats_at_once(incident: Incident) -> str | None:
    """What makes it certain that the program would fail in the same way again; None where a restart may help.

    That is a program that cannot be imported, or that refuses its arguments, in the job's first round. In a later round
    the same program has started before, so that something around it must have changed, and may change again. So it is
    with one that has run for a while; and a compiled module may be missing because another rank is just building it.
    """
    if incident.kind is not IncidentKind.WORKER_FAILED or incident.round != 1 or incident.after > _BEGINS_WITHIN:
        return None
    if incident.exit_code == _USAGE_EXIT_CODE and _USAGE.search(incident.detail):
        return "wrong arguments"
    name = incident.message.partition(":")[0]
    return name if name in _BROKEN_SCRIPT and not _COMPILED.search(incident.message) else None


def by_cause(incident: Incident) -> tuple[bool, float]:
    """The place of a failure among those of one round: what follows from a peer's loss comes last, whatever clocks say.

    Hosts begin a round at slightly different times, and the peers of a killed worker fail within the same millisecond.
    """
    return follows_peer_loss(incident), incident.after


_SIGNAL_NOTES: Mapping[int, str] = {
    signal.SIGKILL: " (kill -9 by a user, or the kernel's out-of-memory killer: see dmesg)",
    signal.SIGSEGV: " (invalid memory access in native code)",
    signal.SIGBUS: " (often a full /dev/shm)",
    signal.SIGABRT: " (native code gave up, e.g. an NCCL watchdog or a failed assertion)",
}


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
    """All that a policy may remember: the ledger's counters, since the leader moves from node to node.

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
