"""Parts of a session by themselves, without its threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from views import entry, info, seen, start

from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import encode_entry, encode_row
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_core.rendezvous.backend import ORIGIN, RendezvousBackend
from elastic_core.session.heartbeat import Heartbeat
from elastic_core.session.join import Joined
from elastic_core.session.leader_driver import LeaderDriver
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.session.state import SessionCalls, SessionState


def ignore(*_: object) -> None:
    """Do nothing."""


def state_of(name: str, ledger: Ledger, store: RendezvousBackend, runtime: Runtime = RUNTIME) -> SessionState:
    """Return the state of a session that no other part acts on."""
    calls = SessionCalls(ignore, ignore, lambda _incident, _history: Verdict(Action.RESTART, ""), ignore)
    return SessionState(store, Joined(ledger, NodeRow(info=info(name))), runtime, calls)


def leader_of(
    judge: Callable[[Incident, History], Verdict], runtime: Runtime, publish: Callable[[Event], None], **calls: Any
) -> LeaderDriver:
    """Return the driver of the leader \"a\", whose plugins are these functions."""
    return LeaderDriver("a", runtime, SessionCalls(ignore, publish, judge, ignore, **calls))


def heartbeat_of(state: SessionState) -> Heartbeat:
    """Return the session's heartbeat, over a connection that it has made."""
    return Heartbeat(state)


def job(*, closed: bool = False) -> LocalBackend:
    """A run with two nodes, on host-a and host-b."""
    store, ledger = LocalBackend(MemoryStore()), start()
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    if closed:
        end = entry(ledger, Closed(success=True, why="done", exit_code=0), at=1.0)
        store.append(ledger.head.link, end.link, encode_entry(end))
    for name in "ab":
        store.enter(name, encode_row(seen(name, Phase.RUNNING, node=info(name)).row))
    return store
