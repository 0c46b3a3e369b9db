"""The settings of a run, which its OPEN entry carries.

The opener's :class:`~elastic_core.config.run.Timing` applies to all nodes. The other parts are compared with those of a
node that joins. What may differ between nodes is left out: observers, nproc, role and addresses.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, fields

from elastic_core.config.parse import NodeRange, OnNodeLoss
from elastic_core.config.run import Timing

PROTOCOL = 8  # the version of entries and rows that this release writes, and the newest that it reads
OLDEST_PROTOCOL = 8
"""The oldest version that this release reads. A node that reads a version outside of this range stops with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The settings that must be the same on all nodes of a run: a node that differs is refused."""

    min_nodes: int
    max_nodes: int
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes of a round (rule L15), in order; () for every number from ``min_nodes`` on."""
    spares: int = 0  # nodes beyond ``max_nodes`` that the job is to have (rule L16)
    max_restarts: int | None  # None for no limit
    on_node_loss: OnNodeLoss = OnNodeLoss.REPLACE
    failure_policies: tuple[str, ...] = ()  # names of the plugins that judge failures, in alphabetical order
    worker_plugins: tuple[str, ...] = ()
    """Names of the plugins that workers call, in reverse order of the calls: what they save and restore must match."""
    flags: tuple[str, ...] = ()  # plugins' flags in which all nodes must agree, as on the command line

    def largest_size(self, nodes: int) -> int:
        """Return how many of ``nodes`` nodes form a round; 0 if they are too few (rule L15)."""
        if nodes < self.min_nodes:
            return 0
        return self.sizes[bisect_right(self.sizes, nodes) - 1] if self.sizes else min(nodes, self.max_nodes)

    def next_size(self, nodes: int) -> int | None:
        """Return the size of a round that follows ``nodes`` nodes; None if that is the largest."""
        sizes = self.sizes or range(max(self.min_nodes, nodes + 1), self.max_nodes + 1)
        return next((size for size in sizes if size > nodes), None)

    def describe_sizes(self, training: int, waiting: int | None = None) -> str:
        """Describe why a round of ``training`` nodes takes no more of them; '' if it takes the next one (rule L15).

        ``waiting`` nodes wait. A node that waits knows only of itself, and passes None.
        """
        if (size := self.next_size(training)) is None:
            return f"the job has all {training} node(s) that it takes"
        gap, given = size - training, f"--nnodes={self.nnodes} has no size"
        if gap == 1 or (waiting is not None and waiting >= gap):
            return ""
        if waiting is not None or gap == 2:
            total = training + (waiting or 1)
            return f"{training} of {total} nodes train: {given} {total}"
        return f"{training} nodes train, and fewer than {gap} wait: {given} from {training + 1} to {size - 1}"

    @property
    def nnodes(self) -> str:
        """The sizes as ``--nnodes`` takes them."""
        return str(NodeRange(self.min_nodes, self.max_nodes, self.sizes))

    def difference(self, other: Agreement) -> str | None:
        """Return the first field in which ``other`` differs, as ``max_nodes: 4 here, 8 there``; None if none does."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if mine != theirs:
                return f"{item.name}: {_shown(mine)} here, {_shown(theirs)} there"
        return None


def _shown(value: object) -> str:
    if isinstance(value, OnNodeLoss):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "no limit" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions that must match for one process group to span two nodes; '' if not installed."""

    python: str
    torch: str = ""

    def __str__(self) -> str:
        return f"Python {self.python}, " + (f"torch {self.torch}" if self.torch else "no torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The workers' program, as far as two nodes of a run can be compared (``elastic_core.config.program``)."""

    name: str = ""  # the script, module, function or executable, without directories; '' if it is not known
    arguments: str = ""
    """A digest of its arguments, without those that may differ between nodes; '' if they are not known."""
    role: str = ""  # The workers' role. Nodes of different roles may run different programs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that an OPEN carries."""

    agreement: Agreement
    timing: Timing
    versions: Versions
    host: str  # the opener's host, for messages
    command: Command = field(default_factory=Command)
    release: str = ""  # the opener's release of elastic-core, for messages
