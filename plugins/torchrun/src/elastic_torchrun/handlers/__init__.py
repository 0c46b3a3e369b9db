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

General layout:

* ``handler``: one node of the protocol, with torchrun's agent in the place of ours. ``stores``: the store of a round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from elastic_core.config import parse_conf, scheduler_uid
from elastic_core.rendezvous import RendezvousOptions, RendezvousParameters, read_token
from elastic_torchrun.handlers.handler import TorchrunHandler
from elastic_torchrun.rendezvous_api import RendezvousHandler

__all__ = ["TorchrunHandler", "handler_of", "handler_over"]


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
    uid = read.run_uid or scheduler_uid(os.environ)
    return TorchrunHandler(connect, parameters, read, uid)
