"""A request from outside of a job: a row in its roster that is no node's, for as long as the request lasts.

Each function raises RendezvousConnectionError where the store cannot be reached, and RendezvousStateError where the
store holds something invalid.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elastic_core.errors import RendezvousRefusedError, UsageError
from elastic_core.host import host_name, installed_versions
from elastic_core.protocol import Ledger, NodeInfo, NodeRow, Versions, encode_row
from elastic_core.rendezvous import RendezvousBackend
from elastic_core.session import load


def running_job(store: RendezvousBackend, job: str) -> Ledger:
    """Return the ledger of the job.

    Raises:
        UsageError: There is none.
        RendezvousRefusedError: No agent hosts it.
    """
    require_agent(store, job)
    ledger = load(store, time.monotonic())
    if ledger is None or ledger.closed is not None:
        raise UsageError(f"There is no job {job!r} that goes on here.", hint="See --rdzv_id, as the agents have it.")
    return ledger


def require_agent(store: RendezvousBackend, job: str) -> None:
    """Raise RendezvousRefusedError for an embedded store that this process hosts, since no agent of the job does."""
    if store.embedded and store.hosting:
        raise RendezvousRefusedError(f"No agent of job {job!r} is there to host its store.")


@contextmanager
def requested(store: RendezvousBackend, what: str, **asked: Any) -> Iterator[str]:
    """Enter a request's row for as long as the block runs; yield its id."""
    request = f"{what}-{uuid.uuid4().hex[:12]}"
    versions = Versions(**installed_versions())
    info = NodeInfo(
        node_id=request, host=host_name(), host_id=request, slot=0, local_world_size=0, role=what, versions=versions
    )
    store.enter(request, encode_row(NodeRow(info=info, **asked)))
    try:
        yield request
    finally:
        store.remove(request)
