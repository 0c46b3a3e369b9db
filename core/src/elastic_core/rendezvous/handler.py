"""The interface of a rendezvous in torch's form: its parameters, its handler, and what the handler returns.

The names and shapes of :class:`RendezvousHandler`, :class:`RendezvousInfo` and :class:`RendezvousParameters` follow
``torch.distributed.elastic.rendezvous.api``, so that code written for either reads the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from elastic_core.errors import UsageError
from elastic_core.rendezvous.job_token import JobToken
from elastic_core.rendezvous.options import boolean, check_node_limit


@dataclass(frozen=True, slots=True, init=False)
class RendezvousParameters:
    """The parameters of a backend, with torch's arguments. Any other keyword is a key of ``config``.

    Raises:
        UsageError: The backend has no name, min_nodes < 1, max_nodes < min_nodes, or max_nodes is more than a job can
            have.
    """

    backend: str
    endpoint: str = field(repr=False)
    """As the user typed it, perhaps with a password; '' if none was given. Each backend declares its own form."""
    run_id: str
    """The job id (``--rdzv_id``), which selects the roster and the ledger in the store."""
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    """The address at which peers reach this node (``--local_addr``); None to find it."""
    node_rank: int | None
    """``--node_rank``: this node's rank; None to have it assigned."""
    token: JobToken | None = field(repr=False)
    """The job's token, with which core seals the values in the store. Backends do not need it."""
    config: Mapping[str, str] = field(repr=False)
    """``--rdzv_conf`` without the keys that core reads, checked against the options that the backend declares."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        *,
        node_rank: int | None = None,
        token: JobToken | None = None,
        config: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        if not backend:
            raise UsageError("The rendezvous backend has no name.")
        if min_nodes < 1:
            raise UsageError(f"The minimum of nodes is {min_nodes}; it must be at least 1.")
        check_node_limit(max_nodes)
        if max_nodes < min_nodes:
            raise UsageError(
                f"The minimum of nodes, {min_nodes}, is greater than the maximum, {max_nodes}.",
                hint=f"Write --nnodes={max_nodes}:{min_nodes}, or one number for a fixed size.",
            )
        values = (backend, endpoint, run_id, min_nodes, max_nodes, local_addr, node_rank, token)
        for item, value in zip(fields(self), (*values, {**(config or {}), **more}), strict=True):
            object.__setattr__(self, item.name, value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of :attr:`config`, as it was typed."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the value of a key as a boolean.

        Raises:
            UsageError: It is not a boolean.
        """
        value: Any = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, bool):  # not typed, but given by a caller in Python
            return value
        return boolean(key, str(value))

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the value of a key as a whole number.

        Raises:
            UsageError: It is not a whole number.
        """
        value: Any = self.config.get(key)
        if value is None:
            return default
        try:
            return int(value)
        except (TypeError, ValueError):
            raise UsageError(f"--rdzv_conf {f'{key}={value}'!r}: {value!r} is not a whole number.") from None


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
