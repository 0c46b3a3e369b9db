"""Probes a node's peers after a round has failed, so that the leader can find a node that its peers do not reach (L5).

A probe is a TCP connection to a port that each agent keeps for its peers (:class:`ProbePort`). It shows that packets go
both ways, which is all that workers need. The kernel accepts it, so a busy agent does not look unreachable.

Probes also show whether the job has gone on without this node (:class:`Isolation`). The fence ends the workers of a
node without contact in any case (rule S4), after minutes, in which the store may come back. But a node whose link is
down is soon replaced, and two workers of rank 0 may then write one file. An outage of the store alone is not such a
case: the peers can be reached, and the workers go on.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from elastic_core.config.parse import OnNodeLoss
from elastic_core.host.addresses import HeldPort
from elastic_core.protocol.entries import Round
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node_events import Probed
from elastic_core.protocol.roster import SPREAD_ABOVE_MEMBERS, NodeInfo, spread_fraction
from elastic_core.session.contact import FENCE_SHARE, Contact
from elastic_core.session.runtime import Runtime
from elastic_core.threads import asked

SPREAD_SECONDS_PER_MEMBER = 0.001  # over so long the probes are spread, since all members probe rank 0's host
SPREAD_MAX_SECONDS = 0.5
CLOSE_INTERVAL_SECONDS = 5.0  # each failure of a round brings a probe of each neighbour
CLOSED_AT_ONCE = socket.SOMAXCONN  # connections: as many as the kernel keeps; each takes some 10 µs
PATIENCE = 2.0  # seconds that a connection may take; more than two packets lost on the way
REPLACED_FACTOR = 5.0
"""A node may be replaced once it has had no contact for so many times ``lost_after``, and reaches no peer."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """An address to connect to."""

    node_id: str  # the node that is not reached if the connection fails
    address: str
    port: int


Unreachable: TypeAlias = "Callable[[Sequence[ProbeTarget]], tuple[str, ...]]"
"""Returns the ids of the nodes among the targets that cannot be reached."""


class ProbePort:
    """The port that this agent's peers probe, at ``address``; ElasticError if no port or no descriptor is left."""

    def __init__(self, address: str) -> None:
        self._held = HeldPort.take_at(address)
        self._held.listen()
        self._socket = socket.socket(fileno=self._held.fileno())
        self._socket.setblocking(False)
        self.address, self.port = address, self._held.port

    def close_probes(self) -> None:
        """Close the connections of probes, which the kernel has accepted, so that its queue does not get full.

        If no descriptor is free, they stay there. A loop that watched the port would then never sleep.
        """
        with contextlib.suppress(OSError):
            for _ in range(CLOSED_AT_ONCE):
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Close the port."""
        self._socket.detach()
        self._held.close()


def neighbours(current: Round, node_id: str) -> tuple[str, ...]:
    """Return the members before and after a node in rank order, in a ring."""
    members, at = current.members, current.group_ranks[node_id]
    around = (members[at - 1].node_id, members[(at + 1) % len(members)].node_id)
    return tuple(dict.fromkeys(other for other in around if other != node_id))


def targets(current: Round, node_id: str, known: Iterable[NodeInfo]) -> list[ProbeTarget]:
    """Return what a node of a round probes: its neighbours' ports, as far as known, and rank 0's store."""
    found = [ProbeTarget(info.node_id, info.address, info.port) for info in known if info.port]
    first, offer = current.members[0].node_id, current.offer
    if first != node_id:
        found.append(ProbeTarget(first, offer.address, offer.port))
    return found


def unreachable(aims: Sequence[ProbeTarget], patience: float = PATIENCE) -> tuple[str, ...]:
    """Return the nodes among the targets that cannot be reached within ``patience`` seconds; all are tried at once.

    Raises:
        OSError: No descriptor is left, or an address is invalid.
    """
    answers = [(aim.node_id, asked(partial(_is_reached, aim, patience), name="elastic-probe")) for aim in aims]
    return tuple(dict.fromkeys(node_id for node_id, answer in answers if not answer.result()))


def _is_reached(aim: ProbeTarget, patience: float) -> bool:
    """Return True if packets to the target come and go. A refusal shows it, too."""
    family = socket.AF_INET6 if ":" in aim.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(patience)
        return probe.connect_ex((aim.address, aim.port)) in (0, errno.ECONNREFUSED)


def spread(current: Round, node_id: str) -> float:
    """Return the seconds after which a member of a round begins to probe: 0 in a small round."""
    members = len(current.members) - SPREAD_ABOVE_MEMBERS
    return spread_fraction(node_id) * min(SPREAD_MAX_SECONDS, max(0.0, SPREAD_SECONDS_PER_MEMBER * members))


class Isolation:
    """A watch for the case that this node is cut off from all others. All methods run on the agent's loop.

    ``look_up`` asks the store for nodes, and calls back on another thread.
    """

    def __init__(
        self,
        node_id: str,
        look_up: Callable[[Sequence[str], Callable[[list[NodeInfo]], None]], None],
        runtime: Runtime,
        find: Unreachable = unreachable,
    ) -> None:
        self._node_id, self._look_up, self._runtime, self._find = node_id, look_up, runtime, find
        self._known: list[NodeInfo] = []
        self._probe_at, self._alone = -math.inf, False

    def begin(self, current: Round) -> None:
        """Begin a round. The node of rank 0 asks where its neighbours are, while there is a store to ask.

        The others know the address of rank 0 from the round itself. So this costs a job one read of two rows a round.
        """
        self._known, self._alone = [], False
        if len(current.members) > 1 and current.members[0].node_id == self._node_id:
            self._look_up(neighbours(current, self._node_id), self._known.extend)

    def probe(self, current: Round, post: Callable[[Probed], None]) -> None:
        """Probe the peers after a failure of a round, and post the outcome, from any thread (rule L5). Never blocks."""

        def begin(known: list[NodeInfo]) -> None:
            aims = targets(current, self._node_id, known)
            self._runtime.ask(lambda: run(aims), then=post, name="elastic-probe")

        def run(aims: list[ProbeTarget]) -> Probed:
            if (pause := spread(current, self._node_id)) > 0:
                self._runtime.sleep(pause)
            return Probed(current.number, self._failed(aims) or ())

        self._look_up(neighbours(current, self._node_id), begin)

    def fence_in(self, contact: Contact, ledger: Ledger) -> float:
        """Return in how many seconds the workers of a round have to be stopped (rule S4)."""
        if self.is_replaced(contact.known_at, ledger):
            return 0.0
        fence_at = contact.at + FENCE_SHARE * ledger.settings.timing.fence_after
        return max(0.0, fence_at - self._runtime.now())

    def is_replaced(self, silent_since: float, ledger: Ledger) -> bool:
        """Return True if the others may have gone on without this node, as the newest probe of its peers shows.

        It has had no contact with the store since ``silent_since``.
        """
        current, now, agreement = ledger.round, self._runtime.now(), ledger.settings.agreement
        timing = ledger.settings.timing
        enough = current is not None and len(current.members) - 1 >= max(1, agreement.min_nodes)
        can_go_on = enough and agreement.on_node_loss is OnNodeLoss.REPLACE
        if current is None or not can_go_on or now - silent_since < REPLACED_FACTOR * timing.lost_after:
            self._alone = False
            return False
        if now >= self._probe_at:
            self._probe_at = now + timing.lost_after
            aims = targets(current, self._node_id, self._known)
            self._runtime.ask(lambda: self._failed(aims), then=partial(self._note, aims), name="elastic-isolation")
        return self._alone

    def _failed(self, aims: Sequence[ProbeTarget]) -> tuple[str, ...] | None:
        """Return the nodes that are not reached; None if no descriptor or thread is left, or an address is invalid."""
        try:
            return self._find(aims)
        except (OSError, RuntimeError):  # RuntimeError: no thread can be started
            return None

    def _note(self, aims: Sequence[ProbeTarget], failed: tuple[str, ...] | None) -> None:
        if failed is not None:
            self._alone = bool(aims) and {aim.node_id for aim in aims} <= {*failed}
