"""The thread that brings each rank's part to its partner on another node, while training goes on.

Every so many commits each rank *offers* its snapshot, in the same steps on all ranks. The thread gathers
the sizes of all ranks; a rank that is still busy says 0, and then all leave this snapshot out. Otherwise the parts are
sent to their partners, straight from the buffers. When all parts have arrived, this state is *safe*, and the replicas
before it are not needed any more. Until then the earlier safe state stays, here and with the partners, and so does the
one that is being sent. Training waits for none of it: it only puts the offer into a queue.

The replicas are in memory that the agent of the keeper's node holds (:class:`Replicas`).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch

from elastic_core.errors import ResourceError
from elastic_torch.memory.buffers import HEADER_BYTES, Buffer, Buffers, Snapshot
from elastic_torch.memory.sharded.plan import HeldPart, sources
from elastic_torch.state.state_exchange import Transport
from elastic_torch.version import Stamp

GOODBYE = 1.0  # seconds that a part which is being sent gets to arrive when an exception has ended the program
logger = logging.getLogger("elastic_torch.memory")


class Replicator:
    """One rank's part in it, from the restoring of a round to its end.

    Args:
        transport: Of all ranks, for this thread alone from now on.
        partner: By rank, who keeps its replica.
        replicas: What this rank keeps for others.
        buffer_of: Where this rank's snapshot with a stamp is.
        safe: What must stay until something newer is safe: what the ranks would have to go back to if a node were lost
            now.

    Attributes:
        safe: The newest state that must stay.
        replicated: The newest state of this round of which every part is on two nodes.
    """

    def __init__(
        self,
        transport: Transport,
        partner: Sequence[int],
        replicas: Replicas,
        buffer_of: Callable[[Stamp], Buffer | None],
        safe: Stamp | None,
    ) -> None:
        self.safe = safe
        self.replicated: Stamp | None = None
        self._transport, self._replicas, self._buffer_of = transport, replicas, buffer_of
        self._partner, self._sources = partner[transport.rank], sources(partner, transport.rank)
        self._way: Stamp | None = None  # the offers that are neither safe nor left out yet
        self._able, self._broken = True, False
        self._offers: queue.SimpleQueue[Stamp | Literal["end"] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="elastic-replicas", daemon=True)
        self._thread.start()

    def pinned(self) -> tuple[Stamp, ...]:
        """Return what must not be written over."""
        way, safe = self._way, self.safe  # in this order: the thread makes it safe before it is on its way no more
        return tuple(stamp for stamp in (safe, way) if stamp is not None)

    def offer(self, stamp: Stamp | None) -> None:
        """Have this snapshot replicated, unless a rank is still busy with an earlier one. Collective."""
        if self._broken:
            return
        if self._way is not None:
            stamp = None
        elif stamp is not None:
            self._way = stamp
        self._offers.put(stamp)

    def offer_last(self, stamp: Stamp | None) -> None:
        """Have the last snapshot replicated, after which nothing is written here: busy ranks are waited for."""
        self._offers.put(stamp)

    def close(self) -> None:
        """Wait until all that was offered is done."""
        self._offers.put("end")
        self._thread.join()

    def halt(self) -> None:
        """End the replication without waiting for peers, which may wait for this process to end."""
        self._transport.halt(GOODBYE)

    def _run(self) -> None:
        try:
            while (stamp := self._offers.get()) != "end":
                if stamp is None or stamp != self.replicated:
                    self._replicate(stamp)
                if stamp is not None and stamp == self._way:
                    self._way = None
            return
        except RuntimeError as exc:  # gloo's: a peer is gone, and the round is about to end
            logger.info("No more replicas in this round: %s", exc)
        except Exception as exc:
            logger.warning("No more replicas of any rank in this round: %s: %s", type(exc).__name__, exc)
        self._broken = True
        self._transport.close()  # now that nothing is left in it: the others wait for this rank, for long

    def _replicate(self, stamp: Stamp | None) -> None:
        buffer = self._buffer_of(stamp) if stamp is not None and self._able else None
        row = (buffer.used(), stamp.round, stamp.step) if buffer is not None and stamp is not None else (0, 0, 0)
        rows = self._transport.gather(row)
        if buffer is None or stamp is None or any(other[0] == 0 or other[1:] != rows[0][1:] for other in rows):
            return
        sizes = [rows[source][0] for source in self._sources]
        into = self._rooms(sizes)
        if not self._transport.agree(into is not None) or into is None:
            return
        self._bring(buffer, stamp, into, sizes)
        self._transport.agree(True)  # all are there
        self.safe = self.replicated = stamp
        self._replicas.let_go(len(self._sources))

    def _rooms(self, sizes: Sequence[int]) -> list[Buffer] | None:
        """Return the buffers for the replicas of this rank's sources; None where there is no memory for them."""
        try:
            return [self._replicas.room(number, size, self.safe) for number, size in enumerate(sizes)]
        except ResourceError as exc:
            self._able = False
            logger.warning("No replicas of any rank are kept here from here on: %s", exc.message)
            return None

    def _bring(self, buffer: Buffer, stamp: Stamp, into: Sequence[Buffer], sizes: Sequence[int]) -> None:
        """Send this rank's snapshot to its partner and receive its sources'; their headers, set last, mark the end."""
        headers = [torch.empty(HEADER_BYTES, dtype=torch.uint8) for _ in into]
        contents = [its.bytes()[HEADER_BYTES:its_size] for its, its_size in zip(into, sizes, strict=True)]
        given = [
            (self._partner, content) for content in (buffer.bytes()[HEADER_BYTES : buffer.used()], buffer.header())
        ]
        self._transport.exchange(given, zip(self._sources * 2, contents + headers, strict=True))
        for theirs, header in zip(into, headers, strict=True):
            theirs.finish(header, stamp)


class Replicas:
    """The replicas that a rank keeps for ranks of another node.

    For each of those ranks, by its number among them, there are two buffers: one stays whole while the other one is
    written. A buffer says whose part it holds, of how many, and of which step; the worker with the same number on the
    node finds it in the next round.
    """

    def __init__(self, name: str, local_rank: int) -> None:
        self._name, self._local_rank = name, local_rank
        self._sources: list[Buffers] = []
        while not (found := self._buffers()).is_empty():
            self._sources.append(found)

    def _buffers(self) -> Buffers:
        return Buffers(self._name, self._local_rank, replica=len(self._sources))

    def holdings(self) -> dict[HeldPart, Snapshot]:
        """Return what is complete, and whose part it is."""
        return held_parts(found for buffers in self._sources for found in buffers.snapshots())

    def room(self, number: int, size: int, safe: Stamp | None) -> Buffer:
        """Return an empty buffer for the next replica, as :meth:`Buffers.room`; it raises ResourceError as well."""
        while len(self._sources) <= number:
            self._sources.append(self._buffers())
        buffers = self._sources[number]
        buffers.go_back_to(safe)
        buffer = buffers.room(size)
        if not buffers.outlives:
            raise ResourceError("The agent does not answer.")
        return buffer

    def let_go(self, first: int) -> None:
        """Release the replicas from this number on: no rank goes back to them any more."""
        for buffers in self._sources[first:]:
            buffers.forget()
        del self._sources[first:]


def held_parts(snapshots: Iterable[Snapshot]) -> dict[HeldPart, Snapshot]:
    """Return whose part of a sharded state each snapshot is, without those of other states."""
    found = {}
    for snapshot in snapshots:
        match snapshot.said:
            case {"rank": int(rank), "world": int(world), "tree": _}:
                found[HeldPart(snapshot.stamp, rank, world)] = snapshot
    return found
