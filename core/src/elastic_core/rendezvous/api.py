"""The public types of a rendezvous: parameters in, a handler or a backend, who-is-who out.

The names and shapes of :class:`RendezvousHandler`, :class:`RendezvousInfo` and :class:`RendezvousParameters` follow
``torch.distributed.elastic.rendezvous.api``, so that code written for either reads the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousParameters:
    """What a backend is made from.

    Raises:
        UsageError: min_nodes < 1, or max_nodes < min_nodes.
    """

    backend: str
    endpoint: str
    """As the user typed it; '' when none was given. Each backend declares its own form."""
    run_id: str
    """The job id (``--rdzv_id``): which roster and ledger in the store are meant."""
    min_nodes: int
    max_nodes: int
    local_addr: str | None = None
    """The address that peers reach this node at (``--local_addr``), or None to find it."""
    node_rank: int | None = None
    """This node's rank, where nodes are numbered by hand (``--node_rank``)."""
    config: Mapping[str, str] = field(default_factory=dict)
    """``--rdzv_conf``, less the keys that core reads itself; already checked against the backend's declared options."""

    def __post_init__(self) -> None:
        if self.min_nodes < 1:
            raise UsageError(f"The minimum of nodes is {self.min_nodes}; it must be at least 1.")
        if self.max_nodes < self.min_nodes:
            raise UsageError(
                f"The minimum of nodes, {self.min_nodes}, is greater than the maximum, {self.max_nodes}.",
                hint=f"Write --nnodes={self.max_nodes}:{self.min_nodes}, or one number for a fixed size.",
            )


@dataclass(frozen=True, slots=True)
class BootstrapStoreInfo:
    """Where rank 0's worker will open the store that the workers meet in: ``MASTER_ADDR`` and ``MASTER_PORT``."""

    master_addr: str
    master_port: int


@dataclass(frozen=True, slots=True)
class RendezvousInfo:
    """One sealed round, seen from one node. Ranks here count nodes, not workers."""

    store: Any
    """A key-value store shared by the round's nodes; None where the workers bring their own."""
    rank: int
    world_size: int
    bootstrap_store_info: BootstrapStoreInfo | None = None


class RendezvousHandler(ABC):
    """The blocking interface of a rendezvous, for agents that ask instead of listening (torchrun's is one)."""

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until a round is sealed that has this node in it.

        Raises:
            RendezvousClosedError: The job is closed.
            RendezvousTimeoutError: Too few nodes came.
            RendezvousConnectionError: The store cannot be reached.
            RendezvousStateError: The store holds something that cannot be.
        """

    @abstractmethod
    def get_backend(self) -> str:
        """The backend's name."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The job id."""

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the job is closed."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close the job: no further round is sealed."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait outside the present round."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Leave, closing every connection; return whether that went well."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers should use :attr:`RendezvousInfo.store`; ours bring their own, one per round."""
        return False
