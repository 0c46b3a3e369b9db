"""Our backends under plain torchrun: ``torchrun --rdzv_backend=NAME`` with a handler that keeps our protocol.

A backend's distribution announces a function of the group ``torchrun.handlers`` that returns :func:`handler_of` for
its plugin. torchrun loads all of that group whenever it starts, so nothing here imports torch before a run asks.

torchrun's agent stays what it is: it starts and stops workers, and counts restarts. The handler does the rest, with
the same session, the same leader and the same node's state machine as ``elastic run``: who is in, who is lost, when a
round ends.

* The agent asks every ``--monitor_interval`` how many nodes wait. One more than none makes it stop its workers and ask
  for the next round; so that is how the handler says that this round is over, whatever the reason.
* It asks for the next round unbidden when a worker failed here: that is how the handler hears of it.
* It says nothing when its workers have finished, but enters a barrier on the round's store: the handler sees that key.
* It says nothing when it is killed. Its heartbeats stop with it; its workers may live on, so it takes no slot on its
  host.

A program that asks for a handler by torch's names (:func:`get_rendezvous_handler`) gets the same one.

General layout:

* ``handler``: one node of the protocol, with torchrun's agent in the place of ours. ``stores``: the store of a round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from elastic_core.config import parse_conf, scheduler_uid, settle
from elastic_core.config.parse import NodeRange
from elastic_core.errors import RendezvousError
from elastic_core.plugins import load_backend
from elastic_core.rendezvous import RendezvousOptions, RendezvousParameters, read_token
from elastic_torchrun.foreign import registry
from elastic_torchrun.foreign.registry import HandlerPlugin
from elastic_torchrun.handlers.handler import TorchrunHandler
from elastic_torchrun.rendezvous_api import RendezvousHandler

RendezvousHandlerCreator = registry.Factory


def handler_of(plugin: str) -> Callable[[Any], RendezvousHandler]:
    """Return what torchrun registers: makes the handler of one run from torch's parameters."""

    def make(torchs: Any) -> RendezvousHandler:
        hooks = import_module(plugin)
        return handler_over(torchs, hooks.elastic_rendezvous_options(), hooks.elastic_make_rendezvous)

    return make


def handler_over(
    torchs: Any, options: RendezvousOptions, connect: Callable[[RendezvousParameters], Any]
) -> TorchrunHandler:
    """Return the handler of one run from torch's parameters, over a backend with these options, reached by ``connect``.

    Raises:
        UsageError: A key of the parameters, or its value, is invalid.
    """
    text = ",".join(f"{key}={value}" for key, value in torchs.config.items())
    read = parse_conf(text, backend=torchs.backend, options=options)
    parameters = RendezvousParameters(
        backend=torchs.backend,
        endpoint=torchs.endpoint,
        run_id=torchs.run_id,
        min_nodes=torchs.min_nodes,
        max_nodes=torchs.max_nodes,
        local_addr=torchs.local_addr,
        token=read_token(os.environ, read.token_file),
        config=read.backend,
    )
    return TorchrunHandler(connect, parameters, read, read.run_uid or scheduler_uid(os.environ))


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
