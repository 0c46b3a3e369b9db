"""The events and effects of the node's state machine (``node``)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.exit_codes import signalled
from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Entry, Offer, Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import Answer


class Work(enum.Enum):
    """The state of this node's workers."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    """Every worker exited with 0. Processes that they forked may remain, and are stopped before other workers start."""
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Notice:
    """A PLAN as workers are told of it, with the step at which they stop once it is known."""

    epoch: int
    plan: int  # the index of the PLAN
    deadline: float  # seconds from receipt for which a worker waits for the step
    step: int | None = None
    leaving: bool = True  # with the step: whether a node of the round leaves; otherwise nodes only join


# Events --------------------------------------------------------------------------------------------------------------


class NodeEvent:
    """An event of the state machine."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EntriesRead(NodeEvent):
    """New ledger entries were read at ``now``."""

    entries: tuple[Entry, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Offered(NodeEvent):
    """A place for the workers' store of the next round is reserved."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class WorkerFailed(NodeEvent):
    """A rank of the round failed, or could not be started; the first failure on this node."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class WorkersDone(NodeEvent):
    """Every local worker of the round exited with 0."""

    stepped_down: bool = False  # whether at least one of them did so because of a notice


@dataclass(frozen=True, slots=True)
class WorkersGone(NodeEvent):
    """The stop is complete: no process of the round is left."""

    alike: int = 0  # how many local workers failed with the message of the failure that ended the round


@dataclass(frozen=True, slots=True)
class Progressed(NodeEvent):
    """The round made its first progress on this node (rule L4)."""

    round: int
    takes_notices: bool = False  # whether every local worker has reported a step


@dataclass(frozen=True, slots=True)
class Checkpointed(NodeEvent):
    """The workers of the round have saved a checkpoint at ``now``, or the node begins to watch for one (rule L13)."""

    round: int
    now: float
    saved: bool = True  # False: from now on the node will notice each checkpoint; the first one is yet to come
    newer: bool = False  # whether its step is not known, or greater than those of all that the node has noticed before


@dataclass(frozen=True, slots=True)
class Probed(NodeEvent):
    """The node has probed its peers after the failure of a round (rule L5)."""

    round: int
    unreachable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answered(NodeEvent):
    """The workers were sent the notice of a PLAN, and their reports were read after that."""

    notice: Notice
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Asked(NodeEvent):
    """A monitor asks all nodes of the round something (rule L14); or it does no longer, if the value is None."""

    round: int
    name: str
    value: str | None  # JSON


@dataclass(frozen=True, slots=True)
class AnswerFound(NodeEvent):
    """A monitor has answered."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswerRead(NodeEvent):
    """The answer to a QUESTION has stood in the row for long enough."""

    to: int  # the index of the QUESTION


@dataclass(frozen=True, slots=True)
class Leaving(NodeEvent):
    """The user, the scheduler or the node's own state makes it leave; with a grace, after all have stopped together."""

    why: str
    exit_code: int
    grace: float = 0.0  # seconds that the workers have to stop together with all others; 0 if they are stopped at once
    rejoin: bool = False  # whether it leaves only to enter again; any other reason to leave replaces this one

    @classmethod
    def signalled(cls, signum: int, name: str, grace: float = 0.0) -> Leaving:
        """Return the event for a signal to the agent."""
        return cls(f"received {name}", signalled(signum), grace)


@dataclass(frozen=True, slots=True)
class StoreLost(NodeEvent):
    """An embedded store is lost, or the store cannot be read: no further entry can come."""


@dataclass(frozen=True, slots=True)
class HistoryReplaced(NodeEvent):
    """The store lost entries, and ``ledger`` is the state of the run now (rule S3)."""

    ledger: Ledger


@dataclass(frozen=True, slots=True)
class RunReplaced(NodeEvent):
    """The store lost this run, and another run has begun there since (rule S3)."""

    why: str


# Effects -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start this node's workers of a round."""

    round: Round
    restart_count: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop all workers, and report when no process is left."""

    why: str
    planned: bool = False
    """True if the round is healthy: the workers have ``--shutdown_timeout`` between SIGTERM and SIGKILL. Otherwise a
    peer is gone, most workers hang in a collective, and they have ``--failure_grace``."""
    halt: int = 0  # the index of a HALT whose failure follows from the loss of a peer: ask the monitors first


@dataclass(frozen=True, slots=True)
class Notify:
    """Send the workers a notice, and answer its PLAN when their reports are read. None: they need not wait longer."""

    notice: Notice | None


@dataclass(frozen=True, slots=True)
class FindAnswer:
    """Have a monitor answer a QUESTION."""

    index: int  # of the QUESTION
    name: str
    value: str  # JSON


@dataclass(frozen=True, slots=True)
class MakeOffer:
    """Reserve a new place for the workers' store; the last one was used."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Remove the row and end the agent."""

    code: int
    why: str
    rejoin: bool = False  # whether to start again as a new node


Effect: TypeAlias = "Start | Stop | Notify | FindAnswer | MakeOffer | Exit"
