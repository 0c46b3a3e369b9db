"""The interface of a rendezvous in torch's form: its handler, and what the handler returns.

Names and shapes are those of ``torch.distributed.elastic.rendezvous.api``: code written for either reads the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class BootstrapStoreInfo:
    """The address at which rank 0's worker will open the workers' store: ``MASTER_ADDR`` and ``MASTER_PORT``."""

    master_addr: str
    master_port: int


@dataclass(frozen=True, slots=True)
class RendezvousInfo:
    """One sealed round, as one node sees it. Ranks here count nodes, not workers."""

    store: Any
    """A key-value store that the nodes of the round share; None if the workers bring their own."""
    rank: int
    world_size: int
    bootstrap_store_info: BootstrapStoreInfo | None = None


HandlerAnswer: TypeAlias = "RendezvousInfo | tuple[Any, int, int]"
"""The result of a handler: a :class:`RendezvousInfo`, torch's class of that name, or ``(store, rank, size)``."""


class RendezvousHandler(ABC):
    """A whole rendezvous behind one blocking call, as in torch: an agent calls it for each round.

    Only :meth:`next_rendezvous` is required. All methods of one handler are called from one thread, one at a time.
    ``registry.register`` makes it a backend that ``--rdzv_backend`` can name. A handler keeps no ledger, so the agents
    of a job decide each by itself, as torchrun's do. They decide together over a
    :class:`~elastic_core.rendezvous.backend.RendezvousBackend`.
    """

    @abstractmethod
    def next_rendezvous(self) -> HandlerAnswer:
        """Block until a round with this node is sealed.

        It is called for the first round, after a failure on this node, and when nodes wait. The agents of a round write
        into the round's store who they are, so keys of different rounds must not collide: give them a prefix that names
        the round. A store is torch's, or any object with ``set(key, value)`` and ``get(key)``; ``get`` may block,
        return None or raise KeyError for a key that is not there yet. A round of one node needs no store.

        Raises:
            RendezvousClosedError: The job is closed.
            RendezvousTimeoutError: Too few nodes came.
            RendezvousConnectionError: The store cannot be reached.
            RendezvousStateError: The store holds something invalid.
        """

    def get_backend(self) -> str:
        """Return the backend's name for messages; by default the name of the class."""
        return type(self).__name__

    def get_run_id(self) -> str:
        """Return the job id; '' for ``--rdzv_id``."""
        return ""

    def is_closed(self) -> bool:
        """Return True if the job is closed."""
        return False

    def set_closed(self) -> None:  # noqa: B027  (nothing to do for a handler that knows no end)
        """Close the job: no further round is sealed."""

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait outside the present round; called every ``--monitor_interval`` seconds in a round.

        If any node waits, the workers here are stopped and the next round is asked for.
        """
        return 0

    def shutdown(self) -> bool:
        """Close the job and all connections; return whether that succeeded.

        Called last, when the workers here have finished or the job has failed. Not called if only this node leaves,
        because torch's handlers close the job for all nodes.
        """
        return True

    @property
    def use_agent_store(self) -> bool:
        """True if workers are clients of :attr:`RendezvousInfo.store`; otherwise rank 0's worker opens a store."""
        return False
