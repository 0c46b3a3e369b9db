"""Asking the agents of a host to leave: a row of the roster that is no node's, which the chair answers with a DRAIN."""

from __future__ import annotations

import time
import uuid

from elastic_core.agent.identity import host_name
from elastic_core.errors import RendezvousRefusedError, RendezvousTimeoutError, UsageError
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.rendezvous.codec import encode_row
from elastic_core.rendezvous.ledger import Ledger
from elastic_core.rendezvous.parting import readable
from elastic_core.rendezvous.reading import load, peek
from elastic_core.rendezvous.rows import NodeInfo, NodeRow
from elastic_core.rendezvous.settings import Versions

PATIENCE = 20.0
"""Seconds in which the agents must have said that they leave: more than it takes to replace a chair that is gone."""


def ask(store: RendezvousBackend, host: str, job: str, *, patience: float = PATIENCE) -> int:
    """Ask all agents of ``host`` to leave, and wait until they have said that they do; how many those are.

    Args:
        store: A connection to the job's store.
        host: The host's name, as its agents say it.
        job: The job's id, for messages.
        patience: Seconds to wait.

    Raises:
        UsageError: There is no such job, or no agent of it runs there (names the hosts where some do), or the one there
            hosts the store that the others need.
        RendezvousTimeoutError: They have not answered.
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: It holds something that cannot be.
    """
    if store.embedded and store.hosting:
        raise RendezvousRefusedError(f"No agent of job {job!r} is there: nobody hosts its store.")
    ledger = load(store, time.monotonic())
    if ledger is None or ledger.closed is not None:
        raise UsageError(f"There is no job {job!r} that goes on here.", hint="See --rdzv_id, as the agents have it.")
    here = [seen.row for seen in readable(store.roster()) if seen.row.run == ledger.head.run]
    wanted = {row.info.node_id for row in here if row.info.host == host and not row.leaving}
    if not wanted:
        hosts = ", ".join(sorted({row.info.host for row in here if not row.leaving})) or "nowhere"
        raise UsageError(f"No agent of job {job!r} runs on {host!r}.", hint=f"They run on: {hosts}.")
    if store.embedded and _opener(store, ledger) in wanted and any(row.info.host != host for row in here):
        raise UsageError(
            f"An agent on {host!r} hosts the store of job {job!r}: the job would end with it.",
            hint="Drain the other hosts, or keep the store where no agent has to stay, with another --rdzv_backend. "
            "To end the job all the same, send that agent SIGTERM.",
        )
    request = f"drain-{uuid.uuid4().hex[:12]}"
    info = NodeInfo(
        node_id=request,
        host=host_name(),
        host_id=request,
        seat=0,
        local_world_size=0,
        role="drain",
        versions=Versions.here(),
    )
    store.enter(request, encode_row(NodeRow(info=info, drain=host)))
    try:
        _await(store, wanted, time.monotonic() + patience)
    finally:
        store.remove(request)
    return len(wanted)


def _opener(store: RendezvousBackend, ledger: Ledger) -> str | None:
    """Who opened the run: where a store is embedded, its host."""
    opening = peek(store, ledger.head.anchors.open)
    return None if opening is None else opening.author


def _await(store: RendezvousBackend, wanted: set[str], deadline: float) -> None:
    """Wait until each of these has said that it leaves, or is gone."""
    cursor = Cursor()
    while True:
        cursor = store.wait(cursor, roster=True, timeout=0)
        rows = {seen.row.info.node_id: seen.row for seen in readable(store.roster(wanted))}
        staying = sorted(node_id for node_id, row in rows.items() if not row.leaving)
        if not staying:
            return
        if (left := deadline - time.monotonic()) <= 0:
            names = ", ".join(f"{rows[node_id].info} ({node_id})" for node_id in staying)
            raise RendezvousTimeoutError(
                f"{names} did not say within the time that it leaves.",
                hint="Nobody may be there any more, or its workers finish because others have. See the agent's output.",
            )
        cursor = store.wait(cursor, roster=True, timeout=left)
