"""Closes a run for a node that has no session any more: the node becomes the leader, then appends CLOSED (rule S1)."""

from __future__ import annotations

from elastic_core.exit_codes import ExitCode
from elastic_core.protocol import Body, Closed, Leader, advance, compose
from elastic_core.rendezvous import RendezvousBackend
from elastic_core.session import Runtime, load


def close_run(store: RendezvousBackend, author: str, why: str, runtime: Runtime) -> None:
    """Close the run as failed, unless it is closed.

    Raises:
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: The store holds something that cannot be.
    """
    while (ledger := load(store, runtime.now(), runtime.codec)) is not None and ledger.closed is None:
        bodies: tuple[Body, ...] = (Leader(why=why), Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED))
        for body in bodies:
            now = runtime.now()
            entry = compose(ledger, body, entry_id=runtime.new_id(), author=author, now=now)
            if not store.append(ledger.head.link, entry.link, runtime.codec.encode_entry(entry)):
                break  # another node was faster: look again
            ledger = advance(ledger, entry, now)
