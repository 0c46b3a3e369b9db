"""The thread that calls a foreign rendezvous handler.

A call may take minutes, and no handler promises that two may run at once. So one thread makes one call after the
other, and posts an event for each result. A thread whose call does not return is abandoned.
"""

from __future__ import annotations

import operator
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from elastic_core.config.run import RunConfig
from elastic_core.errors import RendezvousConnectionError
from elastic_core.handlers import exchange
from elastic_core.handlers.state_machine import Counted, Met, OthersFinished
from elastic_core.host.addresses import advertised_address, local_address
from elastic_core.host.ports import HeldPort
from elastic_core.plugins import handler_registry
from elastic_core.protocol.entries import Offer
from elastic_core.protocol.roster import NodeInfo
from elastic_core.rendezvous.handler import RendezvousHandler, RendezvousInfo

JOIN_MAX_SECONDS = 0.5  # for the end of the thread


@dataclass(frozen=True, slots=True)
class Sealed:
    """The handler has sealed a round, and its nodes know each other."""

    info: RendezvousInfo
    met: Met


@dataclass(frozen=True, slots=True)
class Blind:
    """The handler could not say how many nodes wait."""

    error: Exception


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The handler is shut down, or could not be."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class HandlerFailed:
    """The handler admits this node to no round, or it has a defect."""

    error: BaseException


Reply: TypeAlias = "Sealed | Counted | Blind | OthersFinished | ShutDown | HandlerFailed"


class HandlerThread:
    """Calls a handler for one node. The methods return at once, and ``post`` gets the replies, on the thread."""

    def __init__(
        self, handler: RendezvousHandler, node: NodeInfo, config: RunConfig, post: Callable[[Reply], None]
    ) -> None:
        self._handler, self._node, self._config, self._post = handler, node, config, post
        self._questions: queue.SimpleQueue[Callable[[], Reply] | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._waiting = exchange.Waiting(self._ended.wait)
        self._port: HeldPort | None = None
        self._thread = threading.Thread(target=self._run, name="elastic-asker", daemon=True)
        self._thread.start()

    def meet(self, number: int, restarts: int, why: str, *, new_port: bool = False) -> None:
        """Request round ``number`` of this node, which has spent ``restarts``; the event is Sealed or HandlerFailed.

        ``new_port`` says whether another process has the port of rank 0, if rank 0 was here.
        """
        self._questions.put(partial(self._meet, number, restarts, why, new_port))

    def count(self) -> None:
        """Ask how many nodes wait; the event is Counted or Blind."""
        self._questions.put(self._count)

    def finish(self, info: RendezvousInfo) -> None:
        """Tell the other nodes that this one has finished, and wait for them; the event is OthersFinished."""
        self._questions.put(partial(self._finish, info))

    def shut_down(self) -> None:
        """Shut the handler down; the event is ShutDown."""
        self._questions.put(self._shut_down)

    def close(self) -> None:
        """End the thread; abandon it if the handler does not return."""
        self._ended.set()
        self._questions.put(None)
        self._thread.join(JOIN_MAX_SECONDS)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None and not self._ended.is_set():
            try:
                reply = question()
            except exchange.Cancelled:
                break
            except BaseException as exc:  # also sys.exit(): the loop waits for an event
                reply = HandlerFailed(exc)
            self._post(reply)
        self._drop_port()

    def _drop_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _meet(self, number: int, restarts: int, why: str, new_port: bool) -> Sealed:
        if new_port:
            self._drop_port()
        with handler_registry.without_shared_store():
            info = exchange.parse_answer(self._handler.next_rendezvous())
            shares = bool(getattr(self._handler, "use_agent_store", False))
        offer = self._offer(info, shares) if info.rank == 0 else Offer("", 0, "")
        mine = exchange.Card(
            node_id=self._node.node_id,
            role=self._node.role,
            local_world_size=self._node.local_world_size,
            restarts=restarts,
            address=offer.address,
            port=offer.port,
        )
        cards = exchange.exchange(info, mine, self._waiting)
        met = Met(exchange.make_round(number, cards, why, hosted=shares), max(card.restarts for card in cards))
        return Sealed(info, met)

    def _offer(self, info: RendezvousInfo, shares: bool) -> Offer:
        """Return the place of the workers' store: the handler's choice, else a port that is reserved for it.

        The port stays reserved over rounds: if a handler returns one store for all rounds, others may read an old card.
        """
        if shares:
            return exchange.shared_store(info)
        if (told := info.bootstrap_store_info) is not None:
            return Offer(told.master_addr, told.master_port, "")
        endpoint, local_addr, single_node = self._config.rdzv_endpoint, self._config.local_addr, info.world_size == 1
        try:
            address = advertised_address(endpoint, "HOST", local_addr, single_node=single_node)
        except RendezvousConnectionError:  # the form of the endpoint is the handler's
            address = local_address(None, local_addr, single_node=single_node)
        if self._port is None:
            self._port = HeldPort.take(address)
        return Offer(address, self._port.port, "")

    def _count(self) -> Counted | Blind:
        try:
            return Counted(operator.index(self._handler.num_nodes_waiting()))
        except Exception as exc:
            return Blind(exc)

    def _finish(self, info: RendezvousInfo) -> OthersFinished:
        try:
            return OthersFinished(tuple(exchange.finish(info, self._config.exit_barrier, self._waiting)))
        except exchange.Cancelled:
            raise
        except Exception:  # a store ends with its node, which leaves once all have finished
            return OthersFinished()

    def _shut_down(self) -> ShutDown:
        try:
            self._handler.shutdown()
        except Exception as exc:
            return ShutDown(exc)
        return ShutDown()
