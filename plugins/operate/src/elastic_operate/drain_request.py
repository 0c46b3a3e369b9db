"""Requests of people: ``elastic drain`` and ``elastic release`` enter a row in the roster that is no node's.

The leader answers a drain with a DRAIN. It takes a release, which vouches that a host is gone for good, for a proof
(rule S8), and removes the row.
Each function raises RendezvousConnectionError where the store cannot be reached, and RendezvousStateError where the
store holds something invalid.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from elastic_core.errors import RendezvousConnectionError, RendezvousTimeoutError, StoreLostError, UsageError
from elastic_core.protocol import MAX_DRAINED_NODES, PROOF_HEARTBEATS, Ledger, NodeRow, list_names
from elastic_core.rendezvous import Cursor, RendezvousBackend
from elastic_core.session import peek, readable
from elastic_operate.job_request import requested, running_job

DRAIN_WAIT_SECONDS = 20.0
"""Seconds in which the agents must have said that they leave: more than it takes to replace a leader that is gone."""


def ask(store: RendezvousBackend, host: str, job: str, *, patience: float = DRAIN_WAIT_SECONDS) -> int:
    """Ask all agents of ``host`` to leave, and wait until they have said that they do; returns their number.

    ``host`` is the name that its agents give, and ``job`` the job's id, for messages. ``patience`` is in seconds.

    Raises:
        UsageError: There is no such job, or no agent of it runs there (names the hosts where some do), or the one there
            hosts the store that the others need.
        RendezvousTimeoutError: They have not answered.
    """
    ledger, deadline = running_job(store, job), time.monotonic() + patience
    here = _staying(store, ledger)
    first = wanted = {row.info.node_id for row in here if row.info.host == host}
    if not wanted:
        hosts = list_names(sorted({row.info.host for row in here})) or "nowhere"
        raise UsageError(f"No agent of job {job!r} runs on {host!r}.", hint=f"They run on: {hosts}.")
    opening = peek(store, ledger.head.anchors.open) if store.embedded else None  # its author hosts an embedded store
    hosts_store = opening is not None and opening.author in wanted
    if hosts_store and any(row.info.host != host for row in here):
        raise UsageError(
            f"An agent on {host!r} hosts the store of job {job!r}: the job would end with it.",
            hint="Drain the other hosts, or keep the store where no agent has to stay, with another --rdzv_backend. "
            "To end the job all the same, send that agent SIGTERM.",
        )
    while wanted:
        answered = False
        try:
            asked = sorted(wanted)[:MAX_DRAINED_NODES]
            with requested(store, "drain", drain=tuple(asked)):
                _await(store, asked, deadline)
                answered = True
            # An agent that was being checked has another row once it has joined, which is newer than the request.
            wanted = {row.info.node_id for row in _staying(store, ledger) if row.info.host == host}
        except RendezvousConnectionError as exc:
            if not (store.embedded and (answered or (hosts_store and _is_gone(store, exc)))):
                raise
            break  # an embedded store ends with the last agent, perhaps before its answer was read
    return len(first)


def _is_gone(store: RendezvousBackend, exc: RendezvousConnectionError) -> bool:
    """Return whether an operation failed because an embedded store is gone for good, and not for the network."""
    try:
        if not isinstance(exc, StoreLostError):
            store.connect().close()
    except RendezvousConnectionError as again:
        exc = again
    return isinstance(exc, StoreLostError)


def release(store: RendezvousBackend, host: str, job: str, *, patience: float = DRAIN_WAIT_SECONDS) -> int:
    """Vouch that ``host`` is gone for good, and wait until the leader has read it; returns the number of its nodes.

    ``host`` is the name that its agents gave, and ``job`` the job's id, for messages. ``patience`` is in seconds.

    Raises:
        UsageError: There is no such job, no agent of it was there, or all of them still heartbeat.
        RendezvousTimeoutError: No agent of the job is there to decide.
    """
    ledger = running_job(store, job)

    def heartbeats() -> dict[str, int]:
        found = [seen for seen in readable(store.roster()) if seen.row.info.host == host and not seen.row.is_request]
        return {seen.row.info.node_id: seen.heartbeat for seen in found}

    if not (before := heartbeats()):
        hosts = list_names(sorted({seen.row.info.host for seen in readable(store.roster()) if not seen.row.is_request}))
        raise UsageError(f"No agent of job {job!r} was on {host!r}.", hint=f"They are or were on: {hosts or 'none'}.")
    time.sleep(PROOF_HEARTBEATS * ledger.settings.timing.beat_interval)
    after = heartbeats()
    if not (still := tuple(node_id for node_id, heartbeat in before.items() if after.get(node_id) == heartbeat)):
        raise UsageError(
            f"{host!r} is not gone: the heartbeats of all its agents in job {job!r} go on.",
            hint=f"To have them leave, use elastic drain {host}.",
        )
    with requested(store, "release", release=still) as request:
        deadline, cursor = time.monotonic() + patience, Cursor()
        while any(seen.node_id == request for seen in store.roster([request])):  # the leader removes it
            if (left := deadline - time.monotonic()) <= 0:
                message = f"Within {patience:g} s no agent of job {job!r} has accepted that {host!r} is gone."
                hint = "Start the agents that will continue the job, then run elastic release again."
                raise RendezvousTimeoutError(message, hint=hint)
            cursor = store.wait(cursor, roster=True, timeout=min(left, 1.0))
    return len(still)


def _staying(store: RendezvousBackend, ledger: Ledger) -> list[NodeRow]:
    """Return the rows of the nodes in the run, or in none yet, that do not leave for good."""
    rows = [seen.row for seen in readable(store.roster())]
    return [row for row in rows if row.run in (ledger.head.run, "") and not (row.is_departing or row.is_request)]


def _await(store: RendezvousBackend, wanted: Collection[str], deadline: float) -> None:
    """Wait until each of these has said that it leaves, or is gone."""
    cursor = Cursor()
    while True:
        cursor = store.wait(cursor, roster=True, timeout=0)
        rows = {seen.row.info.node_id: seen.row for seen in readable(store.roster(wanted))}
        if not (staying := sorted(node_id for node_id, row in rows.items() if not row.is_departing)):
            return
        if (left := deadline - time.monotonic()) <= 0:
            names = list_names(f"{rows[node_id].info} ({node_id})" for node_id in staying)
            raise RendezvousTimeoutError(
                f"{names} did not say within the time that it leaves.",
                hint="The agent may be gone, or its workers finish because others have. See the agent's output.",
            )
        cursor = store.wait(cursor, roster=True, timeout=left)
