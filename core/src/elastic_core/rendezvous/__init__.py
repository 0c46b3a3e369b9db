"""The rendezvous: how nodes find each other, agree on who is which rank, and notice who is gone.

General layout, from what a backend's author writes up to what the agent uses:

* ``backend`` is the store's interface. ``guard`` names a backend that breaks the rules. ``handler`` has the public
  types around it.
* ``registry`` knows the rendezvous handlers of others by name; ``asking`` is the mind of a node that has one, and
  ``exchange`` what such nodes tell each other.
* ``settings``, ``entries`` with the ``ledger`` that they make, and ``rows`` are the vocabulary: immutable records.
  ``codec`` turns them into JSON and back.
* ``decide`` (with ``planning``, ``view``, ``books`` and ``watch``) is the leader's decision, ``node`` is a node's,
  ``admission`` says who may join and ``succession`` who follows a leader that is gone. All are pure functions
  of what is known and what time it is.
* ``join``, ``reading``, ``leader``, ``heartbeat``, ``writer`` and ``session`` drive them: they read the store, call the
  minds, and write what these say. ``retry`` says how long they wait after a failure.
* ``places`` turns a round's members into ranks.

``docs/protocol.md`` explains the protocol and defines its rules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.errors import (
        RendezvousClosedError as RendezvousClosedError,
        RendezvousConnectionError as RendezvousConnectionError,
        RendezvousError as RendezvousError,
        RendezvousStateError as RendezvousStateError,
        RendezvousTimeoutError as RendezvousTimeoutError,
    )
    from elastic_core.rendezvous.handler import (
        RendezvousHandler as RendezvousHandler,
        RendezvousInfo as RendezvousInfo,
        RendezvousParameters as RendezvousParameters,
    )

_PUBLIC = (
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousTimeoutError",
)
"""Names of ``torch.distributed.elastic.rendezvous`` that are here too; ``elastic_core`` says where each lives."""


def __getattr__(name: str) -> Any:
    """``registry``, as torch calls it, and the public names; imported when they are first used."""
    if name == "registry":
        return import_module("elastic_core.plugins.handler_registry")
    if name in _PUBLIC:
        return getattr(import_module("elastic_core"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
