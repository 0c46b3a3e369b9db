"""The words of a node's state machine: what can happen to it (events), and what it can do about it (effects)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.exit_codes import signalled
from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Entry, Offer, Round
from elastic_core.protocol.ledger import Ledger


class Work(enum.Enum):
    """What the warden is doing for us."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    """Every worker exited with 0; what they forked may still be there, and is stopped before anything is started."""
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Leave:
    """Why this node goes away, and what it exits with."""

    why: str
    exit_code: int
    grace: float = 0.0
    """Seconds that the workers have, to stop together with all others; 0: they are stopped at once."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What the ledger has for workers that go on: a PLAN, and the step at which they stop once that is known."""

    epoch: int
    plan: int
    """The index of the PLAN."""
    deadline: float
    """Seconds from receipt for which a worker waits to be told the step."""
    step: int | None = None
    leaving: bool = True
    """With the step: whether a node of the round leaves; else the stop is for others that join it."""


# Events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """New ledger entries, in order, read at ``now``."""

    entries: tuple[Entry, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Offered:
    """A place for the next workers' store is held."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The first failure of a rank in this round, or of starting one."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class WorkersDone:
    """Every local worker of the round exited with 0."""


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """A stop is complete: no process of the round is left."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The round made its first progress on this node (rule L4)."""

    round: int


@dataclass(frozen=True, slots=True)
class Probed:
    """After the failure of a round, this node has tried to reach its peers (rule L5)."""

    round: int
    unreachable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TakesNotices:
    """Every local worker of the round has reported a step."""

    round: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The workers have been told of a PLAN, and after that their reports were taken in."""

    notice: Notice
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """Every local worker has exited with 0, and one at least because it was told to stop."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The user, the scheduler or the node's own state wants it gone; with a grace, not before all have stopped."""

    why: str
    exit_code: int
    grace: float = 0.0

    @classmethod
    def signalled(cls, signum: int, name: str, grace: float = 0.0) -> Leaving:
        """For a signal to the agent."""
        return cls(f"received {name}", signalled(signum), grace)


@dataclass(frozen=True, slots=True)
class StoreLost:
    """An embedded store is lost, or what a store holds cannot be read: this node hears no more."""


@dataclass(frozen=True, slots=True)
class HistoryReplaced:
    """The store lost entries, and this is what the run has come to (rule S3)."""

    ledger: Ledger


@dataclass(frozen=True, slots=True)
class RunReplaced:
    """The store lost this run, and another has begun there since (rule S3)."""

    why: str


NodeEvent: TypeAlias = (
    "EntriesRead | HistoryReplaced | Offered | WorkerFailed | WorkersDone | WorkersGone | Progressed | Probed"
    " | TakesNotices | Answered | SteppedDown | Leaving | StoreLost | RunReplaced"
)


# Effects -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start this node's workers of a round."""

    round: Round
    restart_count: int


class Grace(enum.Enum):
    """How much time workers get between SIGTERM and SIGKILL."""

    PLANNED = "planned"
    """``--shutdown_timeout``: a healthy round is stopped."""
    BROKEN = "broken"
    """``--failure_grace``: a peer is gone, and most of them hang in a collective."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop all workers, and report when no process is left."""

    grace: Grace
    why: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the workers, and answer a PLAN once their reports are taken in. None: they need not wait any longer."""

    notice: Notice | None


@dataclass(frozen=True, slots=True)
class MakeOffer:
    """Hold a new place for a workers' store; the last one was used."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Nothing is left to do: leave the roster and end the agent."""

    code: int
    why: str
    rejoin: bool = False
    """Whether to begin again, as a new node."""


Effect: TypeAlias = "Start | Stop | Notify | MakeOffer | Exit"
