"""What the nodes of a run agree on before anything else: the settings that the run's ``OPEN`` entry carries.

Two kinds of field. Those of :class:`Agreement` must be the same on every node; a joiner that differs is refused,
naming the field. The rest is the opener's and is taken over by everybody (:class:`~elastic_core.config.run.Timing`) or
only compared (:class:`Versions`, :class:`Command`). Never here: observers, nproc, role, addresses, which may differ
from node to node.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from elastic_core.config.run import OnNodeLoss, Timing

PROTOCOL = 3
"""The version of entries and rows that this release writes, and the newest that it reads."""
OLDEST_PROTOCOL = 3
"""The oldest version that it reads. A node that reads an older or newer one stops and says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The settings that no two nodes of a run may differ in."""

    min_nodes: int
    max_nodes: int
    max_restarts: int
    on_node_loss: OnNodeLoss = OnNodeLoss.REPLACE
    failure_policies: tuple[str, ...] = ()
    """Names of the plugins that judge failures, in alphabetical order."""
    worker_plugins: tuple[str, ...] = ()
    """Names of the plugins that workers ask, the last one first asked: what they save and restore has to match."""

    def difference(self, other: Agreement) -> str | None:
        """The first field in which ``other`` differs, as ``max_nodes: 4 here, 8 there``; None when there is none."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if mine != theirs:
                return f"{item.name}: {_shown(mine)} here, {_shown(theirs)} there"
        return None


def _shown(value: object) -> str:
    if isinstance(value, OnNodeLoss):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What must match for one process group to span two nodes; '' for what is not installed."""

    python: str
    torch: str = ""

    def __str__(self) -> str:
        return f"Python {self.python}, " + (f"torch {self.torch}" if self.torch else "no torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the workers run, as far as two nodes of a run can be compared (``elastic_core.config.program``)."""

    name: str = ""
    """The script, module, function or executable, without directories; '' where it is not known."""
    arguments: str = ""
    """A digest of its arguments, without what is expected to differ between nodes; '' where they are not known."""
    role: str = ""
    """The workers' role. Nodes of different roles may run different programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that ``OPEN`` says about the run."""

    agreement: Agreement
    timing: Timing
    versions: Versions
    host: str
    """The opener's host, for messages."""
    command: Command = field(default_factory=Command)
    release: str = ""
    """The opener's release of elastic-core, for messages."""
