"""What a store must be able to do: the one small class that a backend's author writes.

A store holds two things under one prefix per job id (``docs/protocol.md``):

* the **roster**, one row per node incarnation: an opaque value, a revision that only grows, a serial in order of
  arrival, and a heartbeat counter;
* the **ledger**, numbered entries from 1 on, each written once; old ones shrink to tombstones and never vanish.

Everything else (who decides, what an entry means, when a node is lost) is decided above, the same for every backend,
so a backend has no opinions: no liveness, no clocks, no parsing of values. One object is one connection and is used
by one thread at a time; :meth:`RendezvousBackend.connect` gives another thread its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

MAX_VALUE_BYTES = 256 * 1024
"""The most bytes a roster value or a ledger entry may have; readers refuse more before they parse it."""
SEAL_BYTES = 97
"""Those that a seal takes of them (``seal``), left free in jobs without a token too, so that all jobs grow alike."""


TOMBSTONE = b""
"""What is left of the data of an entry that everybody has passed (:meth:`RendezvousBackend.shrink`)."""


@dataclass(frozen=True, slots=True)
class RosterRow:
    """One node incarnation's row, as the store holds it."""

    node_id: str
    serial: int
    """1, 2, 3, … in order of arrival, never reused within a job id."""
    revision: int
    value: bytes
    heartbeat: int
    broken: str = ""
    """Why what the store has in this row's place is no row; '' for a row. Of a broken one only the node id counts."""

    @classmethod
    def unreadable(cls, node_id: str, why: str) -> RosterRow:
        """Return what :meth:`RendezvousBackend.roster` lists in the place of a row that somebody else has written
        over."""
        return cls(node_id=node_id, serial=0, revision=0, value=b"", heartbeat=0, broken=why)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What one heartbeat brings back."""

    head: int
    """Index of the newest ledger entry in the store; 0 when the ledger is empty. To an agent that has not been told of
    any entry yet, it may be one a little behind."""
    revision: int | None
    """The revision of the caller's own row; None when the store has no such row."""
    watched: int | None
    """The heartbeat of the watched node; None when it has no row, or none that can be read (or nobody is watched)."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a waiter has read: the ledger's newest index and the roster's version."""

    head: int = 0
    roster: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """One place in the chain: an entry's index and its random id. ``Link(0, "")`` stands before the first entry."""

    index: int
    id: str


ORIGIN = Link(0, "")


class StoreWarning(NamedTuple):
    """Something about a store that an operator should mend; it keeps nobody from using the store."""

    message: str
    """What was found, with its value: a sentence."""
    hint: str
    """What to do: a sentence."""


class RendezvousBackend(ABC):
    """One connection to the store of one job.

    Every method may raise :class:`~elastic_core.errors.RendezvousConnectionError` when the store cannot be reached
    or does not answer within the backend's timeout (the outcome of a write is then unknown), and
    :class:`~elastic_core.errors.RendezvousStateError` when it answers with something that cannot be. Anything else ends
    the agent, with a message that names the backend.

    **Several connections**, of any number of processes, see one store, also while its server is restarted with its data
    (``elastic_testing.linearizability_suite`` checks it):

    * A call takes effect at one instant between its beginning and its return, and its result is what the store holds at
      that instant: whoever asks after it has returned sees what it did (linearizability).
    * :meth:`roster` reads each row at an instant of its own, and each row's heartbeat at an instant of its own, all of
      them within the call. It need not be a snapshot. A row that is there during the whole call is listed.
    * A :meth:`wait` that tells of something new may tell of less than there is by then, but of nothing that is not
      there. One that returns the cursor as it was given says that this was all there was at an instant of the call.
    * A call that raises RendezvousConnectionError takes effect once, at any time after it began, or never.
    * A store whose ``stale_reads`` is true promises this only for as long as no server is replaced by another one.

    Attributes:
        embedded: Whether the store lives inside one of the job's agents (c10d). Its loss is then final, and nobody
            tries to reconnect. False unless a backend says otherwise.
        hosting: For an embedded store, whether it lives in this very agent, which then opens the run, decides, and
            leaves last; a backend sets it on each connection when that is made. Read only where ``embedded`` is true,
            so the default, True, means nothing elsewhere.
        may_forget: Whether the store can come back empty or without its last entries (a server without durable
            storage, or one restored from a backup). A new job then waits 4 s before its first round, in case one was
            running. False unless a backend says otherwise.
        stale_reads: Whether a server that another one has replaced, and that does not know it, may go on answering
            (asynchronous replication with failover). A read from such a store is no contact for the fence (rule S4): a
            heartbeat that it has taken is, for as long as :meth:`confirm` says that the server is still the right one.
            False unless a backend says otherwise.
        workers_store: Where workers reach this very store as a torch TCPStore, host and port, if they are to use it as
            theirs (``static``); it then implements :meth:`forget_workers`. None unless a backend says otherwise.
        warnings: What an operator should know and mend about this store, found while the hook made the first
            connection. The agent prints each once; ``elastic doctor`` lists them.
    """

    embedded: bool = False
    hosting: bool = True
    may_forget: bool = False
    stale_reads: bool = False
    workers_store: tuple[str, int] | None = None
    warnings: tuple[StoreWarning, ...] = ()

    @abstractmethod
    def connect(self) -> RendezvousBackend:
        """Another, independent connection to the same job's store, for another thread. The caller closes it.

        Where an embedded store is known to be gone, since nobody listens there any more, this raises
        :class:`~elastic_core.errors.StoreLostError`: nobody can go on elsewhere then, and the workers may finish.
        """

    @abstractmethod
    def close(self) -> None:
        """Close this connection; unblocks a :meth:`wait` of it in another thread, which raises
        RendezvousConnectionError.

        On the object that the hook made (not on its :meth:`connect` children), also ends whatever the backend
        started, such as an embedded store's process. Called twice, the second call does nothing.
        """

    # The roster ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row with revision 0 and heartbeat 0; return its serial, the same one when repeated after a lost
        reply."""

    @abstractmethod
    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless the store already holds this revision or a newer one, or has no such row."""

    @abstractmethod
    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat to ``count`` (its value and revision stay) and report; one round trip where the
        store can.

        A row that is gone is not made again.
        """

    @abstractmethod
    def remove(self, node_id: str) -> None:
        """Delete a row; deleting one that is not there is no error."""

    @abstractmethod
    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows, all or those of ``ids``, in order of serial; in a constant number of round trips if
        possible.

        What stands in a row's place and is none hides no other: it is listed as :meth:`RosterRow.unreadable`, and told
        of above. It is no reason for a RendezvousStateError.
        """

    # The ledger ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write entry ``prev.index + 1``, if that index is absent and entry ``prev.index`` is the one with id
        ``prev.id``.

        The two conditions and the write are one atomic step wherever history can roll back, also for a process that is
        killed (SIGKILL) in the middle. Returns False, having written nothing, when either fails; and True when this
        very entry already stands there (a reply was lost and the write repeated).
        """

    @abstractmethod
    def read(self, index: int) -> bytes | None:
        """Return the entry at ``index``, or None when there is none; :data:`TOMBSTONE` for one that was shrunk."""

    def shrink(self, index: int) -> None:  # noqa: B027  (doing nothing is right)
        """Let go of an entry's data, which nobody will read any more; its place stays taken, by the same id, for ever.

        Never called for the newest entry. One that is not there, or shrunk already, is no error. A store that keeps
        the data is right, and only larger; so this does nothing unless a backend knows better.
        """

    def forget_workers(self) -> None:  # noqa: B027  (without workers_store there is nothing to do)
        """Delete the keys that the workers of earlier rounds have written, none of which lives any more.

        Called only where :attr:`workers_store` is set, by the leader, before it appends the entry that begins a round.
        """

    def erase(self) -> bool:
        """Delete all that the job has in the store, and its name; whether this store can.

        For what was no job, such as the trial of ``elastic doctor``: never called while anybody else is there, and the
        job's connections are only closed afterwards. Nothing is no error. A backend that cannot is right, and a trial
        then leaves a few small keys; so this is False unless a backend knows better.
        """
        return False

    # Both ------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until the ledger's head is not ``cursor.head``, or, with ``roster``, the roster's version is not
        ``cursor.roster``.

        Returns the cursor of now, or of a little earlier if it differs from ``cursor``, at the latest after ``timeout``
        seconds (unchanged then). The roster's version counts :meth:`enter`, :meth:`amend` and :meth:`remove`, not
        heartbeats; only the leader waits for it. Woken by the store, not by polling. Spurious wake-ups are
        allowed, lost ones are not: what happened before the call and is not in ``cursor`` returns at once. Without
        ``roster`` the returned ``roster`` may be stale. Who passes a head of 0 may be told of one a little behind: an
        append on it fails, and a wait from there goes on.
        """

    def confirm(self) -> bool:
        """Whether the server at the other end of this connection is still the one to which new connections are led.

        Asked only where ``stale_reads`` is true: every quarter of ``fence_after``, for the connection that heartbeats,
        and from a thread of its own, at the same time as that connection's other calls. It may take seconds. False is
        no error, and neither is RendezvousConnectionError: either way the server is not confirmed, and the heartbeats
        that it takes from then on count as contact only once it is (rule S4). A store that cannot tell is right to say
        True; nothing but its refusal of writes then tells a node of a server that was replaced.
        """
        return True


TRAITS = ("embedded", "hosting", "may_forget", "stale_reads", "workers_store", "warnings")
"""The attributes by which a backend says what its store is."""


def copy_traits(wrapper: RendezvousBackend, inner: RendezvousBackend) -> None:
    """Give a backend that wraps another one all of that one's attributes."""
    for name in TRAITS:
        setattr(wrapper, name, getattr(inner, name))
