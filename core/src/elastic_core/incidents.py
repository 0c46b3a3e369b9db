"""Incidents and verdicts: the types of the failure hooks.

The node where a failure happens creates an :class:`Incident` and writes it into its roster row; the leader creates the
incident of a lost node. The leader asks the failure policies and appends the incident to the ledger, from which every
node prints the root cause.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elastic_core.digest import hex_digest
from elastic_core.exit_codes import describe_exit

DESCRIBED_CHARACTERS = 200  # of a message, in one line
DIGEST_DIGITS = 8
_VARYING = re.compile(r"\b0x[0-9a-f]+|\b(?=[a-f]*[0-9])[0-9a-f]{6,}\b|[0-9]+(?:[.,:_-][0-9]+)*", re.IGNORECASE)
"""The differences of two failures of one cause: addresses, ids in hex, and every number."""


class FailureClass(str, enum.Enum):
    """The chance of another try: the groups of the Acme study (NSDI 2024, table 3), and three more."""

    SCRIPT = "script"
    """The program is wrong: syntax, names, types, shapes, arguments, files. Another try fails in the same way."""
    FRAMEWORK = "framework"
    """The program met something that it does not handle: memory, data, numbers. A try helps if the job progresses."""
    INFRASTRUCTURE = "infrastructure"
    """A GPU, node, network or storage failed: try again, mostly on another node."""
    PEER = "peer"
    """It follows from the failure of another worker, or of the network between them. Look for the other failure."""
    PREEMPTION = "preemption"
    """The scheduler took the node or ended the job: try again, and count no restart."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The known cause of a failure: the answer of a plugin, made on the node where it happened."""

    failure_class: FailureClass = FailureClass.UNKNOWN
    name: str = ""  # the failure in plain words; '' where only its class is known
    advice: str = ""  # what to do, in one sentence; '' where nothing is known
    hosts_fault: bool = False
    """True if it can be the fault of the worker's host, so that the job may do better without this host."""


class IncidentKind(str, enum.Enum):
    """The kind of failure, which decides whether a restart is spent."""

    WORKER_FAILED = "worker_failed"
    """A worker exited non-zero or was killed: spends one restart."""
    EXITED_EARLY = "exited_early"
    """A worker exited with 0 while others ran, and a peer failed since it was gone: spends one restart."""
    START_FAILED = "start_failed"
    """A worker could not be started at all (no such program, no pids left): spends one restart."""
    STORE_DIED = "store_died"
    """The process that held the workers' store is gone: spends none."""
    PORT_TAKEN = "port_taken"
    """Rank 0 could not listen on the port that it was given: spends none, another port is taken."""
    NODE_LOST = "node_lost"
    """A node's heartbeats stopped, or its row is gone: spends none."""


SPENDS_A_RESTART = frozenset({IncidentKind.WORKER_FAILED, IncidentKind.EXITED_EARLY, IncidentKind.START_FAILED})
"""The failures of workers. Any other incident spends no restart."""
CLASS_OF_KIND: Mapping[IncidentKind, FailureClass] = {
    IncidentKind.NODE_LOST: FailureClass.INFRASTRUCTURE,
    IncidentKind.EXITED_EARLY: FailureClass.SCRIPT,
    IncidentKind.STORE_DIED: FailureClass.INFRASTRUCTURE,
    IncidentKind.PORT_TAKEN: FailureClass.INFRASTRUCTURE,
}
"""The class of an incident whose kind alone tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One failure, as the node that saw it reports it.

    That node decides :attr:`follows_peer` and makes :attr:`explanation`, each once.
    """

    kind: IncidentKind
    round: int  # the round's number, from 1 on
    node_id: str  # the id of the agent that saw it; a new one each time that an agent starts
    host: str  # the name of that agent's host, ``node7``; ``node7 (agent 2)`` where several share it
    after: float = 0.0
    """Seconds from this node's start of the round to the failure, on its own monotonic clock. Rounds start within a
    store's wake-up of each other everywhere, so of failures of one kind (:func:`by_cause`) the smallest is the
    first."""
    rank: int | None = None  # the worker's RANK; None, like the fields that follow, where no worker failed
    local_rank: int | None = None
    pid: int | None = None  # on its host
    exit_code: int | None = None
    """As :attr:`subprocess.Popen.returncode`: negative for a signal; None for one that did not start."""
    message: str = ""
    """One line, ``ValueError: boom``: the exception that ended the worker, the text with which it exited, or the action
    that failed; '' where nothing is known."""
    exception: str = ""
    """The exception's type, as a traceback or C++ names it, ``torch.OutOfMemoryError``; '' for none."""
    follows_peer: bool = False  # whether it follows from the failure of another worker
    explanation: Explanation = Explanation()  # what plugins know about it (``elastic_explain_failure``)
    detail: str = ""  # the exception's traceback, else the end of the worker's stderr; at most 4 KiB
    log: str = ""  # the file on its host in which the worker's stderr was kept, or ''
    step: int | None = None  # the last that the worker is known to have reached; None where nothing reports steps
    where: str = ""
    """The user's own line at which the exception was raised, ``train.py:41 in step: loss = model(x)``, or ''."""
    checkpoint: str = ""
    """The path of the checkpoint that the exception names, or that the library call which raised it was given; ''
    for none."""
    counts_on: bool = True
    """True if ``step`` counts on over rounds. That of a bar which begins at 0 in each round does not, so it is shown to
    people and not remembered."""
    others: str = field(default="", metadata={"skippable": True})
    """The places of other ranks when this failure, which follows from the loss of a peer, ended the round, as ``rank 3
    is in load (train.py:5)``, without those that waited in a collective; at most 1 KiB."""

    @property
    def place(self) -> str:
        """The user's own line without its code, ``train.py:41 in step``, or ''."""
        return self.where.partition(": ")[0]

    @property
    def failure_class(self) -> FailureClass:
        """The class that its kind implies, or else that of its explanation."""
        return CLASS_OF_KIND.get(self.kind) or self.explanation.failure_class

    @property
    def digest(self) -> str:
        """A few hex digits of the message without its numbers; '' where there is none."""
        return hex_digest(_VARYING.sub("#", self.message), DIGEST_DIGITS) if self.message else ""

    def describe(self) -> str:
        """Return the outcome in one line, with the message and the user's line where they are known.

        ``exited with code 1: ValueError: boom, at train.py:41 in step``
        """
        if not self.message or self.message == self.cause():
            return self.cause()
        where = f", at {self.place}" if self.place else ""
        return f"{self.cause()}: {self.message[:DESCRIBED_CHARACTERS]}{where}"

    def cause(self) -> str:
        """Return the outcome in a few words, e.g. ``was killed by SIGBUS (often a full /dev/shm)``."""
        if self.exit_code is None:
            return self.message or self.kind.value.replace("_", " ")
        if self.kind is IncidentKind.EXITED_EARLY:
            return f"{describe_exit(self.exit_code)} before the other ranks"
        if self.exit_code == 0:  # see ended_by_sigterm
            return f"{describe_exit(0)} after SIGTERM{_SIGNAL_NOTES[signal.SIGTERM]}"
        note = "" if self.exception else _SIGNAL_NOTES.get(-self.exit_code, "")
        return f"{describe_exit(self.exit_code)}{note}"


def ended_by_sigterm(incident: Incident) -> bool:
    """Return True if SIGTERM ended a worker: it was killed, exited as a shell does, or handled it and exited with 0.

    A worker that exits with 0 has failed in no other way.
    """
    codes = (-signal.SIGTERM, 128 + signal.SIGTERM, 0)
    return incident.kind is IncidentKind.WORKER_FAILED and incident.exit_code in codes


BROKEN_SCRIPT = frozenset({"ImportError", "IndentationError", "ModuleNotFoundError", "SyntaxError", "TabError"})
"""Exceptions of a program that cannot be compiled, or lacks a module."""
_USAGE = re.compile(r"^usage:", re.IGNORECASE | re.MULTILINE)
_USAGE_EXIT_CODE = 2  # of argparse, click and the like, after a usage message
_BEGINS_WITHIN = 600.0  # seconds within which a program has done its first imports, also from a slow file system
_COMPILED = re.compile(r"\.so\b")


def repeats_after_restart(incident: Incident, failures: Sequence[Failure]) -> str | None:
    """Return why a program cannot begin, if it failed alike before and after a restart; None otherwise.

    A first failure may be the fault of one rank, which imported a module before another had written it. In a later
    round, or after a while, the same program has started before, so its environment has changed, and may change again.
    A compiled module may be missing because another rank is building it.

    Args:
        incident: The failure that is judged.
        failures: Those of the rounds before, as of a :class:`History`.
    """
    before = [(one.round, one.exception, one.exit_code, one.step) for one in failures]
    begun = incident.round != 2 or incident.step is not None or incident.after > _BEGINS_WITHIN
    if begun or before != [(1, incident.exception, incident.exit_code, None)]:
        return None
    if has_wrong_arguments(incident):
        return "wrong arguments"
    broken = incident.exception in BROKEN_SCRIPT and not _COMPILED.search(incident.message)
    return incident.exception if broken else None


def has_wrong_arguments(incident: Incident) -> bool:
    """Return True if a program has printed how to call it, and exited as argparse and click do."""
    return incident.exit_code == _USAGE_EXIT_CODE and _USAGE.search(incident.detail) is not None


def describe_early_exit(consequence: Incident) -> str:
    """Return the message of a worker that exited with 0; ``consequence`` is the failure of the peer that lost it."""
    message = consequence.message[:DESCRIBED_CHARACTERS] or consequence.cause()
    return f"it had finished when rank {consequence.rank} on {consequence.host} lost a connection ({message})"


def describe_limit(max_restarts: int | None) -> str:
    """Return ``" of 3"``, to follow the number of restarts; '' without a limit."""
    return "" if max_restarts is None else f" of {max_restarts}"


def distance_to_cause(incident: Incident) -> int:
    """Return how far a failure is from the root cause: the smallest of a round's failures is reported.

    0 for a worker that failed by itself; 1 for one that exited with 0 before its peers, which may have been right, and
    for one that SIGTERM ended, which may have been sent because of another failure; 2 for a failure that follows from
    the loss of a peer.
    """
    if incident.follows_peer:
        return 2
    return int(incident.kind is IncidentKind.EXITED_EARLY or ended_by_sigterm(incident))


def by_cause(incident: Incident) -> tuple[int, float]:
    """Return a sort key for the failures of one round: the root cause comes first (:func:`distance_to_cause`).

    Times alone do not tell: hosts begin a round at slightly different times, and the peers of a killed worker fail
    within the same millisecond.
    """
    return distance_to_cause(incident), incident.after


_SIGNAL_NOTES: Mapping[int, str] = {
    signal.SIGTERM: " (by a person, a scheduler or an out-of-memory daemon)",
    signal.SIGKILL: " (kill -9 by a user, or the kernel's out-of-memory killer: see dmesg)",
    signal.SIGSEGV: " (invalid memory access in native code)",
    signal.SIGBUS: " (often a full /dev/shm)",
    signal.SIGABRT: " (native code gave up, e.g. an NCCL watchdog or a failed assertion)",
}


class Action(enum.IntEnum):
    """The action after an incident. Of several verdicts the greatest action, which is the strictest, wins."""

    RESTART = 0
    EXCLUDE_HOST = 1  # restart without the incident's host, if enough others are there
    GIVE_UP = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a failure policy."""

    action: Action
    reason: str  # in one sentence for people; 500 characters are kept
    requeue: bool = False
    """With GIVE_UP, whether the scheduler should run the job again elsewhere; it is kept in the ledger."""
    delay: float = 0.0
    """Seconds between the failure and the next round, at most :data:`MAX_DELAY_SECONDS`: a back-off. A job that gives
    up does not wait, nor does one that goes on without a node that was lost or left at the same time."""
    exclude_for: float | None = None
    """With EXCLUDE_HOST, after how many seconds the host may have a place again, at most
    :data:`MAX_EXCLUSION_SECONDS`; None for never, in this run."""
    policy: str = field(default="", compare=False)
    """The name of the policy that decided, for the event ``verdict``; '' for the name of the plugin."""


MAX_DELAY_SECONDS = 3600.0  # the longest delay of a verdict
MAX_EXCLUSION_SECONDS = 30 * 86_400.0  # the longest time for which a verdict excludes a host, unless it is for good


def strictest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the strictest of the policies' verdicts, among equals the first, with the longest delay of all.

    Of several verdicts that exclude the host, the longest time counts. A verdict whose delay is taken adds its reason.

    Raises:
        ValueError: There is no verdict. (Core's own policy always gives one.)
    """
    if not verdicts:
        raise ValueError("no failure policy gave a verdict")
    first = max(verdicts, key=lambda verdict: verdict.action)
    if first.action is Action.GIVE_UP:
        return first
    if first.action is Action.EXCLUDE_HOST:
        spans = [one.exclude_for for one in verdicts if one.action is Action.EXCLUDE_HOST]
        longest = None if None in spans else max(span for span in spans if span is not None)
        first = first if longest == first.exclude_for else replace(first, exclude_for=longest)
    slowest = max(verdicts, key=lambda verdict: verdict.delay)
    if slowest.delay > first.delay:
        first = replace(first, delay=slowest.delay, reason=f"{first.reason}; {slowest.reason}")
    return first


PEER_LOST, ENDED_EARLY = "peer", "early"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure of the past that spent a restart, as the ledger remembers it.

    A field is that of the :class:`Incident`, or of its explanation; the texts here say what differs. Of texts 40
    characters are kept.
    """

    round: int
    rank: int | None  # of the worker that failed first; None where the workers could not be started
    host: str
    exception: str
    exit_code: int | None
    step: int | None  # also the newest of any other rank; None where it does not count on over rounds
    new_checkpoint: bool = False  # whether its round had saved one that is newer than those of the rounds before
    place: str = ""
    digest: str = ""
    """:data:`PEER_LOST` where it follows from the loss of a peer, and :data:`ENDED_EARLY` for a rank that ended before
    the others. What ranks say of these differs."""
    after: float | None = None  # None where it is not known
    moved: bool = False
    """True if the workers of its round moved, as far as their output shows: a bar that begins anew in each round moves,
    although its steps cannot be compared."""
    checkpoint: str = ""  # the name of the file
    failure_class: FailureClass = FailureClass.UNKNOWN
    hosts_fault: bool = False
    seconds_ago: float = 0.0
    """Since the round that followed it began. The last field, since the ledger leaves it out (``protocol.schema``)."""

    @property
    def signature(self) -> tuple[str | int | None, str, str]:
        """The fields that equal failures share on any rank: the exception or else the exit code, place, message."""
        if self.digest in (PEER_LOST, ENDED_EARLY):
            return "", "", self.digest
        return self.exception or self.exit_code, self.place, self.digest


def is_same_step(one: int | None, other: int | None) -> bool:
    """Return True if two rounds ended at one step by their output: within one hundredth, 10 steps at most."""
    return one is not None and other is not None and abs(one - other) <= min(10, max(one, other) // 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The ledger's counters: the only memory of a policy, since the leader can change."""

    restarts: int  # spent so far by the job
    max_restarts: int | None  # ``--max_restarts``; None for no limit
    rounds_without_progress: int  # rounds in a row that were broken before any progress was seen
    losses: Mapping[str, int] = field(default_factory=dict)  # how often each host was lost, by its stable host id
    failures: tuple[Failure, ...] = ()
    """The newest failures that spent a restart, oldest first, at most 32. The incident that is judged is not among
    them."""
    new_checkpoint: bool = False
    """True if the round of that incident had saved a newer checkpoint than the rounds before it, as far as a node has
    noticed (``--checkpoint_pattern``, ``--checkpoint_path``, and what frameworks print)."""
    moved: bool = False  # as :attr:`Failure.moved`, of that round
