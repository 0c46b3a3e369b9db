"""The thread that calls a rendezvous handler, and all that is done there.

Such calls take minutes, and nobody promises that two may be made at once. So there is one thread, which answers one
question after the other, by an event. It is left behind if a call does not return.
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

JOIN = 0.5
"""Seconds to wait for the thread at the end."""


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
    """The handler is shut down, as far as it can be."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class HandlerFailed:
    """There is no round for this node; or a defect."""

    error: BaseException


Reply: TypeAlias = "Sealed | Counted | Blind | OthersFinished | ShutDown | HandlerFailed"


class HandlerThread:
    """Asks a handler, for one node. Its methods return at once; what comes of them is posted.

    Args:
        handler: Whom to ask.
        node: Who asks.
        config: The endpoint, ``--local_addr`` and the exit barrier are taken from it.
        post: Told the replies; called on the thread.
    """

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
        """Ask for a round: Sealed, or Failed.

        Args:
            number: What the round is called here, where it is the so manieth.
            restarts: How many this node has spent.
            why: Why there is a round.
            new_port: Whether rank 0's port, if it is here, has turned out to be somebody else's.
        """
        self._questions.put(partial(self._meet, number, restarts, why, new_port))

    def count(self) -> None:
        """Ask how many nodes wait: Counted, or Blind."""
        self._questions.put(self._count)

    def finish(self, info: RendezvousInfo) -> None:
        """Tell the others of a round that this node has finished, and wait for them: OthersFinished."""
        self._questions.put(partial(self._finish, info))

    def shut_down(self) -> None:
        """Shut the handler down: ShutDown."""
        self._questions.put(self._shut_down)

    def close(self) -> None:
        """End the thread, or leave it behind if the handler does not return."""
        self._ended.set()
        self._questions.put(None)
        self._thread.join(JOIN)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None and not self._ended.is_set():
            try:
                reply = question()
            except exchange.Cancelled:
                break
            except BaseException as exc:  # sys.exit() too: whatever ends this thread would be waited for in vain
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
        """Where the workers' store will be: where the handler says, else on a port that is kept for it.

        It is kept over rounds, since others may read an old card where a handler returns one store for all of them.
        """
        if shares:
            return exchange.shared_store(info)
        if (told := info.bootstrap_store_info) is not None:
            return Offer(told.master_addr, told.master_port, "")
        endpoint, local_addr, single_node = self._config.rdzv_endpoint, self._config.local_addr, info.world_size == 1
        try:
            address = advertised_address(endpoint, "HOST", local_addr, single_node=single_node)
        except RendezvousConnectionError:  # the endpoint has a form of the handler's own
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
        except Exception:  # a store ends with the node that has it, which leaves when all have finished
            return OthersFinished()

    def _shut_down(self) -> ShutDown:
        try:
            self._handler.shutdown()
        except Exception as exc:
            return ShutDown(exc)
        return ShutDown()
