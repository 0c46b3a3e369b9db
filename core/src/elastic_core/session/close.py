"""Closing a run from outside the leader, for a node that has no session any more: become the leader, then decide
(S1)."""

from __future__ import annotations

from elastic_core.exit_codes import ExitCode
from elastic_core.protocol.codec import encode_entry
from elastic_core.protocol.ledger import Body, Closed, Leader, advance, compose
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.join import Clock
from elastic_core.session.ledger_reader import load


def close_run(store: RendezvousBackend, author: str, why: str, clock: Clock) -> None:
    """Close the run as failed, unless it is closed.

    Raises:
        RendezvousConnectionError: The store cannot be reached.
        RendezvousStateError: The store holds something that cannot be.
    """
    while (ledger := load(store, clock.now())) is not None and ledger.closed is None:
        bodies: tuple[Body, ...] = (Leader(why=why), Closed(success=False, why=why, exit_code=ExitCode.JOB_FAILED))
        for body in bodies:
            now = clock.now()
            entry = compose(ledger, body, entry_id=clock.new_id(), author=author, now=now)
            if not store.append(ledger.head.link, entry.link, encode_entry(entry)):
                break  # somebody else was faster: look again
            ledger = advance(ledger, entry, now)
