"""What the author of a rendezvous backend writes against, and the names of torch's package of the same name.

* ``backend`` is the interface of a store, ``options`` is what a backend declares that it takes. ``handler`` has the
  interface of a whole rendezvous in torch's form, and the parameters from which both are made.
* ``guard`` wraps a backend's connection so that an error of the backend names it. ``seal`` signs what is written with
  the job's token, which ``job_token`` reads.

Core's own backend is ``plugins.local_backend``. ``protocol`` decides, over the records in a store, and ``session``
connects a node to its store. ``docs/protocol.md`` explains the protocol and defines its rules.
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

_NAMES = "Handler Info Parameters Error ClosedError ConnectionError StateError TimeoutError"
_PUBLIC = [f"Rendezvous{name}" for name in _NAMES.split()]
"""Names of ``torch.distributed.elastic.rendezvous`` that exist here too; ``elastic_core`` defines them."""


def __getattr__(name: str) -> Any:
    """Import ``registry``, as torch calls it, and the public names on first use."""
    if name == "registry":
        return import_module("elastic_core.plugins.handler_registry")
    if name in _PUBLIC:
        return getattr(import_module("elastic_core"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
