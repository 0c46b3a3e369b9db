"""The interface for authors of a rendezvous backend, with the names of torch's package of the same name.

* ``backend`` is the interface of a store, ``options`` is what a backend declares that it takes. ``handler`` has the
  interface of a whole rendezvous in torch's form, and the parameters from which both are made.
* ``endpoint`` reads ``HOST[:PORT]``, and ``records`` packs entries and rows for a store of keys and values.
* ``guard`` wraps a backend's connection so that an error of the backend names it. ``seal`` signs what is written with
  the job's token, which ``job_token`` reads.

Core's own backend is ``plugins.local_backend``. ``protocol`` decides, over the records in a store, and ``session``
connects a node to its store. ``docs/internals/protocol.md`` explains the protocol and defines its rules.
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


def __getattr__(name: str) -> Any:
    core = import_module("elastic_core")
    if name.startswith("Rendezvous") and name in core.__all__:
        return getattr(core, name)
    return import_module("elastic_core.worker.library").added_name(__name__, name)
