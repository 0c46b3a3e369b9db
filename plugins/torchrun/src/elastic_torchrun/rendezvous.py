"""torch's names for rendezvous handlers that core does not have: the registry of handlers by backend, and an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_core.config import settle
from elastic_core.config.parse import NodeRange
from elastic_core.errors import RendezvousError
from elastic_core.plugins import load_backend
from elastic_core.rendezvous import RendezvousParameters
from elastic_torchrun.foreign import registry
from elastic_torchrun.foreign.registry import HandlerPlugin
from elastic_torchrun.handlers import TorchrunHandler, handler_over
from elastic_torchrun.rendezvous_api import RendezvousHandler

RendezvousHandlerCreator = registry.Factory


class RendezvousGracefulExitError(RendezvousError):
    """The job does not need this node, which ends without a failure."""


def get_rendezvous_handler(params: Any) -> RendezvousHandler:
    """Return the handler of the backend that ``params`` names: a registered or an installed one.

    The handler of one of Elastic's backends is a :class:`TorchrunHandler`. An agent that is given it runs the job over
    the backend itself (:func:`launch_settings`).

    Raises:
        PluginError: The backend is not installed, or made no handler.
        UsageError: A parameter is invalid.
    """
    backend, endpoint = params.backend, params.endpoint
    if registry.find(backend) is None:
        backend, endpoint = settle(backend, endpoint, NodeRange(params.min_nodes, params.max_nodes))
    ours = RendezvousParameters(
        backend, endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, config=params.config
    )
    plugins = load_backend(backend)
    options = plugins.rendezvous_options()
    if isinstance(plugins.backend, HandlerPlugin):
        return plugins.backend.make(ours)
    own = handler_over(ours, options, lambda sealed: plugins.make_rendezvous(replace(sealed, token=None)))
    own.asked = params
    return own


def launch_settings(handler: RendezvousHandler) -> dict[str, Any]:
    """Return the fields of ``LaunchConfig`` for a handler of one of Elastic's backends; {} for any other handler."""
    if not isinstance(handler, TorchrunHandler) or (asked := handler.asked) is None:
        return {}
    return {
        "rdzv_backend": asked.backend,
        "rdzv_endpoint": asked.endpoint,
        "rdzv_configs": asked.config,
        "run_id": asked.run_id,
        "min_nodes": asked.min_nodes,
        "max_nodes": asked.max_nodes,
        "local_addr": asked.local_addr,
    }


class _Registry:
    """The handlers that ``--rdzv_backend`` finds, with the methods of torch's registry."""

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Make ``creator`` the backend of that name (:func:`elastic_torchrun.foreign.registry.register`)."""
        registry.register(backend, creator)

    def create_handler(self, params: Any) -> RendezvousHandler:
        """Return ``get_rendezvous_handler(params)``."""
        return get_rendezvous_handler(params)


rendezvous_handler_registry = _Registry()
