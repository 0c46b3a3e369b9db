"""The public types of a rendezvous: parameters in, a handler or a backend, who-is-who out.

The names and shapes of :class:`RendezvousHandler`, :class:`RendezvousInfo` and :class:`RendezvousParameters` follow
``torch.distributed.elastic.rendezvous.api``, so that code written for either reads the same.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from elastic_core.errors import UsageError
from elastic_core.rendezvous.job_token import JobToken
from elastic_core.rendezvous.options import boolean, check_node_limit


@dataclass(frozen=True, slots=True, init=False)
class RendezvousParameters:
    """What a backend is made from, with torch's arguments: what is given by another name is a key of ``config``.

    Raises:
        UsageError: The backend has no name, min_nodes < 1, max_nodes < min_nodes, or max_nodes is more than a job can
            have.
    """

    backend: str
    endpoint: str = field(repr=False)
    """As the user typed it, perhaps with a password; '' when none was given. Each backend declares its own form."""
    run_id: str
    """The job id (``--rdzv_id``): which roster and ledger in the store are meant."""
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    """The address that peers reach this node at (``--local_addr``), or None to find it."""
    node_rank: int | None
    """This node's rank, where nodes are numbered by hand (``--node_rank``)."""
    token: JobToken | None = field(repr=False)
    """The job's token, by which core seals what it writes to a backend's store; no backend needs it."""
    config: Mapping[str, str] = field(repr=False)
    """``--rdzv_conf``, less the keys that core reads itself; already checked against the backend's declared options."""

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
        """Return the same as a boolean.

        Raises:
            UsageError: It is none.
        """
        value: Any = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, bool):  # not typed, but given by a caller in Python
            return value
        return boolean(key, str(value))

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the same as a whole number.

        Raises:
            UsageError: It is none.
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


HandlerAnswer: TypeAlias = "RendezvousInfo | tuple[Any, int, int]"
"""What a handler may return for a round: a :class:`RendezvousInfo`, torch's, or ``(store, rank, world_size)``."""


class RendezvousHandler(ABC):
    """A whole rendezvous behind one blocking call, as torch has it: an agent asks it for each round.

    Only :meth:`next_rendezvous` must be written. All methods of one handler are called from one thread, one at a time.
    ``registry.register`` makes it a backend that ``--rdzv_backend`` can name. Since it keeps no ledger, the agent can
    do no more for the job than torchrun's does; :class:`~elastic_core.rendezvous.backend.RendezvousBackend` is the
    interface of a backend with which it can.
    """

    @abstractmethod
    def next_rendezvous(self) -> HandlerAnswer:
        """Block until a round is sealed that has this node in it.

        It is called for the first round, and again after a failure here and when nodes wait. Each round's agents
        write down in the round's store who they are, so its keys must be the round's own: give keys a prefix that
        names the round. A store is torch's, or any object with ``set(key, value)`` and ``get(key)``; ``get`` may
        block, return None or raise KeyError for a key that is not there yet. A round of one node needs none.

        Raises:
            RendezvousClosedError: The job is closed.
            RendezvousTimeoutError: Too few nodes came.
            RendezvousConnectionError: The store cannot be reached.
            RendezvousStateError: The store holds something that cannot be.
        """

    def get_backend(self) -> str:
        """Return the backend's name, for messages; the class's unless it says otherwise."""
        return type(self).__name__

    def get_run_id(self) -> str:
        """Return the job id; '' for the run's own (``--rdzv_id``)."""
        return ""

    def is_closed(self) -> bool:
        """Whether the job is closed."""
        return False

    def set_closed(self) -> None:  # noqa: B027  (nothing to do for a handler that knows no end)
        """Close the job: no further round is sealed."""

    def num_nodes_waiting(self) -> int:
        """How many nodes wait outside the present round; asked every ``--monitor_interval`` seconds while it runs.

        More than none stops the workers here and asks for the next round.
        """
        return 0

    def shutdown(self) -> bool:
        """Close the job and every connection; return whether that went well.

        Called last, when the workers here have finished or the job has failed. Not called when only this node leaves,
        since torch's handlers close the job for all.
        """
        return True

    @property
    def use_agent_store(self) -> bool:
        """Whether workers are to be clients of :attr:`RendezvousInfo.store`; else rank 0's opens one of its own."""
        return False


_OPTIONAL_METHODS = (
    "get_backend",
    "get_run_id",
    "is_closed",
    "set_closed",
    "num_nodes_waiting",
    "shutdown",
)


class _CompletedHandler(RendezvousHandler):
    """A handler that knows nothing of our class: what it lacks is as :class:`RendezvousHandler` has it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        for name in _OPTIONAL_METHODS:
            if callable(method := getattr(inner, name, None)):
                setattr(self, name, method)

    def next_rendezvous(self) -> HandlerAnswer:
        answer: HandlerAnswer = self._inner.next_rendezvous()
        return answer

    def get_backend(self) -> str:
        return type(self._inner).__name__

    @property
    def use_agent_store(self) -> bool:
        return bool(getattr(self._inner, "use_agent_store", False))


def complete_class(kind: type) -> type:
    """Return a handler's class without torch's abstract methods: those that it lacks are as
    :class:`RendezvousHandler`'s.

    Torch's class leaves all methods but ``use_agent_store`` to its subclasses; ours leaves :meth:`next_rendezvous`.
    """
    lacking: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    defaults = {name: getattr(RendezvousHandler, name) for name in _OPTIONAL_METHODS if name in lacking}
    if not defaults:
        return kind
    return type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **defaults})


def as_handler(made: object) -> RendezvousHandler | None:
    """Any object with ``next_rendezvous`` as a handler, e.g. one of torch's; None for anything else."""
    if isinstance(made, RendezvousHandler):
        return made
    if inspect.isclass(made) or inspect.ismodule(made) or not callable(getattr(made, "next_rendezvous", None)):
        return None
    return _CompletedHandler(made)
