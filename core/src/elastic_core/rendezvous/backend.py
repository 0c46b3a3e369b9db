"""The interface of a store: the one small class that a backend's author writes.

A store holds two things under one prefix per job id (``docs/internals/protocol.md``):

* the **roster**, one row per node incarnation: an opaque value, a revision that only grows, a serial in order of
  arrival, and a heartbeat counter;
* the **ledger**, numbered entries from 1 on, each written once; old ones shrink to tombstones and never vanish.

:class:`RendezvousBackend` is that class. What few stores have is a mixin of its own: :class:`WorkersStore`,
:class:`ReplaceableServer` and :class:`HandlerStore`. :class:`WrappedBackend` puts something around a connection.

All decisions (which node leads, what an entry means, when a node is lost) are made above this interface, the same for
every backend. A backend judges no liveness, reads no clock and parses no value. One object is one connection and is
used by one thread at a time; :meth:`RendezvousBackend.connect` makes another one for another thread.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from elastic_core.errors import RendezvousStateError

MAX_VALUE_BYTES = 256 * 1024
"""Most bytes of a roster value or a ledger entry. Readers refuse larger ones before they parse them."""
SEAL_BYTES = 97
"""Bytes of a value that a seal takes (``guard``), left free without a token too, so that limits are the same."""
STRANGER_HINT = "Something else writes to the store: use another --rdzv_id, or keep it out (docs/security.md)."
TOMBSTONE = b""  # the data of an entry that has been shrunk (:meth:`RendezvousBackend.shrink`)


@dataclass(frozen=True, slots=True)
class RosterRow:
    """The row of one node incarnation, as the store holds it."""

    node_id: str
    serial: int  # 1, 2, 3, … in order of arrival, never reused within a job id
    revision: int
    value: bytes
    heartbeat: int
    broken: str = ""
    """Why the value in this row's place is not a row; '' for a row. Only the node id of a broken row is valid."""

    @classmethod
    def unreadable(cls, node_id: str, why: str) -> RosterRow:
        """Return the row that :meth:`RendezvousBackend.roster` lists in the place of one that was overwritten."""
        return cls(node_id=node_id, serial=0, revision=0, value=b"", heartbeat=0, broken=why)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The reply to a heartbeat."""

    head: int
    """Index of the newest ledger entry in the store; 0 if the ledger is empty. An agent that has not been told of any
    entry yet may get a slightly older index."""
    revision: int | None  # of the caller's own row; None if the store has no such row
    watched: int | None  # the heartbeat of the watched node; None if it has no readable row, or no node is watched


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a waiting caller: the ledger's newest index and the roster's version."""

    head: int = 0
    roster: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain: an entry's index and its random id. ``Link(0, "")`` comes before the first entry."""

    index: int
    id: str


ORIGIN = Link(0, "")


class StoreWarning(NamedTuple):
    """A problem of a store that an operator should fix, although the store can be used."""

    message: str  # the finding, with its value: one sentence
    hint: str  # the advice: one sentence


class RendezvousBackend(ABC):
    """One connection to the store of one job.

    Every method may raise :class:`~elastic_core.errors.RendezvousConnectionError` if the store cannot be reached or
    does not answer within the backend's timeout (the outcome of a write is then unknown), and
    :class:`~elastic_core.errors.RendezvousStateError` if its answer is invalid. Any other exception ends the agent,
    with a message that names the backend.

    **Several connections**, of any number of processes, see one store, also while its server is restarted with its data
    (``elastic_testing.linearizability_suite`` checks it):

    * A call takes effect at one instant between its start and its return, and its result is what the store holds at
      that instant. A call that starts after it has returned sees its effect (linearizability).
    * :meth:`roster` may read each row, and each row's heartbeat, at a different instant within the call. It need not be
      a snapshot. A row that exists during the whole call is listed.
    * A :meth:`wait` that returns news may return less than there is by then, but nothing that is not there. If it
      returns the cursor that it was given, there was nothing newer at some instant of the call.
    * A call that raises RendezvousConnectionError takes effect once, at any time after it began, or never.
    * A :class:`ReplaceableServer` promises this only as long as no server is replaced by another one.
    """

    embedded: bool = False
    """True if the store is inside one of the job's agents (c10d). Its loss is then final: agents do not reconnect."""
    hosting: bool = True
    """Of an embedded store: whether it lives in this agent, which then opens the run, leads, and leaves last. A
    backend sets it on each connection. It has no meaning if ``embedded`` is false."""
    may_forget: bool = False
    """True if the store can come back empty or without its last entries (a server without durable storage, or one
    restored from a backup). A new job then waits 4 s before its first round, in case another run is live."""
    warnings: tuple[StoreWarning, ...] = ()
    """Problems of the store for an operator to fix, found while the hook made the first connection. The agent prints
    each once; ``elastic doctor`` lists them."""

    @abstractmethod
    def connect(self) -> RendezvousBackend:
        """Make another, independent connection to the same job's store, for another thread. The caller closes it.

        If an embedded store is known to be gone, because no process listens there any more, this raises
        :class:`~elastic_core.errors.StoreLostError`: no node can go on elsewhere, and the workers may finish.
        """

    @abstractmethod
    def close(self) -> None:
        """Close this connection. A :meth:`wait` of it in another thread raises RendezvousConnectionError.

        On the object that the hook made (not on its :meth:`connect` children), also end what the backend started, such
        as the process of an embedded store. A second call does nothing.
        """

    # The roster ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row with revision 0 and heartbeat 0; return its serial, and the same one if repeated."""

    @abstractmethod
    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless the store already holds this revision or a newer one, or has no such row."""

    @abstractmethod
    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, not its value or revision, and report; in one round trip if the store can.

        A row that is gone is not made again.
        """

    @abstractmethod
    def remove(self, node_id: str) -> None:
        """Delete a row. A row that is not there is no error."""

    @abstractmethod
    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return all rows, or those of ``ids``, in order of serial; in a constant number of round trips if possible.

        A value in a row's place that is not a row is listed as :meth:`RosterRow.unreadable`. It hides no other row and
        is no reason for a RendezvousStateError.
        """

    # The ledger ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write entry ``prev.index + 1`` if that index is free and entry ``prev.index`` has the id ``prev.id``.

        The two conditions and the write are one atomic step if history can roll back, also for a process that is killed
        (SIGKILL) in the middle. Return False, having written nothing, if a condition fails. Return True if this entry
        is already there (a reply was lost and the write repeated).
        """

    @abstractmethod
    def read(self, index: int) -> bytes | None:
        """Return the entry at ``index``; None if there is none, :data:`TOMBSTONE` if it was shrunk."""

    def shrink(self, index: int) -> None:  # noqa: B027  (doing nothing is right)
        """Delete the data of an entry that no node will read any more; its place stays taken by the same id for ever.

        Never called for the newest entry. An entry that is missing or already shrunk is no error. By default this does
        nothing: a store that keeps the data is correct, only larger.
        """

    def erase(self) -> bool:
        """Delete all that the job has in the store, and its name; return whether this store can do that.

        Used for what was not a job, such as the trial of ``elastic doctor``. Never called while another node is there;
        the job's connections are only closed afterwards. An empty store is no error. By default this returns False: a
        trial then leaves a few small keys.
        """
        return False

    # Both ------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until the ledger's head is not ``cursor.head``, or, with ``roster``, the roster's version is not
        ``cursor.roster``.

        Return the present cursor, or a slightly older one if that differs from ``cursor``; after ``timeout`` seconds,
        return ``cursor`` unchanged. The roster's version counts :meth:`enter`, :meth:`amend` and :meth:`remove`, not
        heartbeats; only the leader waits for it. The store wakes the caller, not polling. Spurious wake-ups are
        allowed, lost ones are not: a call whose ``cursor`` lacks an earlier change returns at once. Without ``roster``
        the returned ``roster`` may be stale. A caller that passes a head of 0 may get a slightly older head: an append
        on it fails, and a wait from there goes on.
        """


class WorkersStore(ABC):
    """Mixin of a backend whose store the job's workers may use as theirs, a torch TCPStore."""

    workers_store: tuple[str, int] | None = None
    """Host and port at which they reach it, if they are to use it (``static``)."""

    @abstractmethod
    def forget_workers(self) -> None:
        """Delete the keys that the workers of earlier rounds have written. None of these workers lives any more.

        Called only if :attr:`workers_store` is set, by the leader, before it appends the entry that begins a round.
        """


class ReplaceableServer(ABC):
    """Mixin of a backend whose server may go on answering after another one has replaced it.

    So does a server with asynchronous replication and failover. :meth:`RendezvousBackend.enter` raises
    RendezvousConnectionError unless the server is confirmed right then.
    """

    @abstractmethod
    def confirmed_at(self, max_age: float | None = None) -> float:
        """Return up to when, by the monotonic clock, this connection's server is known not to have been replaced.

        Its answers count as contact up to that time at most (rule S4). That is when the backend last began to ask the
        monitors of the server, about this connection and with success: ``-math.inf`` if it never has, infinite if the
        server cannot be replaced. Elastic passes ``max_age`` after each heartbeat: if the last success is older, the
        backend asks again, on a thread of its own. This method returns at once.
        """


class HandlerStore(ABC):
    """Mixin of a backend whose store is private to this node, over a handler in torch's form."""

    job_id: str = ""  # the job's id, if the handler names it; '' for ``--rdzv_id``

    @property
    @abstractmethod
    def waiting(self) -> str:
        """The reason why an append that returned False waits, as a text for users; '' without one."""


def workers_store(store: RendezvousBackend) -> tuple[str, int] | None:
    """Return the address at which workers are to use this store as theirs; None if they have another one."""
    return store.workers_store if isinstance(store, WorkersStore) else None


def confirmed_at(store: RendezvousBackend, max_age: float | None = None) -> float:
    """Return :meth:`ReplaceableServer.confirmed_at`; infinite for any other store."""
    return store.confirmed_at(max_age) if isinstance(store, ReplaceableServer) else math.inf


def check_size(what: str, value: bytes) -> None:
    """Refuse a value of more than MAX_VALUE_BYTES, with a RendezvousStateError that names it as ``what``."""
    if len(value) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"{what} has {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed.")


def _passed_on(method: str) -> Any:
    """Return a method that has :meth:`WrappedBackend.call` call the method of the connection inside."""

    def passed_on(self: WrappedBackend, *arguments: Any, **named: Any) -> Any:
        return self.call(method, *arguments, **named)

    return passed_on


class WrappedBackend(RendezvousBackend):
    """A connection around another one: :meth:`call` makes each call of that one but ``connect`` and ``close``."""

    def __init__(self, inner: RendezvousBackend) -> None:
        self.inner = inner
        self.embedded, self.hosting, self.may_forget = inner.embedded, inner.hosting, inner.may_forget
        self.warnings = inner.warnings

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return what the method of the connection inside returns."""
        return getattr(self.inner, method)(*arguments, **named)

    enter, amend, heartbeat, remove = (_passed_on(name) for name in ("enter", "amend", "heartbeat", "remove"))
    roster, append, read, shrink = (_passed_on(name) for name in ("roster", "append", "read", "shrink"))
    erase, wait = (_passed_on(name) for name in ("erase", "wait"))
