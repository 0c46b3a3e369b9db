"""Elastic: launch and supervise distributed training that survives.

General layout, in the order in which a run passes through it:

* ``cli``: the command line; turns flags into one frozen :class:`RunConfig` or refuses them.
* ``config``, ``conf``, ``program``, ``environment``: what a run was asked to do, and every environment variable.
* ``discovery``, ``hookspecs``, ``plugins``, ``defaults``: what is installed, what a plugin can be asked, who is asked,
  and core's own answers. ``observers`` and ``judging`` keep foreign code from harming the job.
* ``launch`` with ``launch_config``, ``multiprocessing`` with ``process_failure``, ``recording``, ``holding``: the same
  from Python, and what a worker may call.
  ``torch_worker`` reaches what needs torch, which is ``elastic_torch`` or another library; ``training`` is what
  scripts may expect of it.
* ``agent``: one process per node: the event loop, the warden that is the parent of all workers, their output.
* ``rendezvous``: who is in the job, and as what. ``backend`` is what a store must be able to do; ``ledger``,
  ``decide`` and ``node`` are the protocol as pure functions.
* ``events``, ``incidents``, ``errors``, ``exit_codes``, ``terminal``: the words in which all of them speak.

To understand the system, read ``hookspecs``, ``rendezvous.decide`` and the loop in ``agent.supervisor``.

Names are imported when they are first used: ``import elastic_core`` itself costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, without the import, which takes longer than all else here

if TYPE_CHECKING:
    from typing import Any

    from elastic_core.config.run import RunConfig as RunConfig
    from elastic_core.errors import (
        ElasticError as ElasticError,
        PluginError as PluginError,
        RendezvousClosedError as RendezvousClosedError,
        RendezvousConnectionError as RendezvousConnectionError,
        RendezvousError as RendezvousError,
        RendezvousRefusedError as RendezvousRefusedError,
        RendezvousStateError as RendezvousStateError,
        RendezvousTimeoutError as RendezvousTimeoutError,
        StoreLostError as StoreLostError,
        UsageError as UsageError,
    )
    from elastic_core.hookspecs import hookimpl as hookimpl
    from elastic_core.rendezvous.backend import RendezvousBackend as RendezvousBackend
    from elastic_core.rendezvous.handler import (
        RendezvousHandler as RendezvousHandler,
        RendezvousInfo as RendezvousInfo,
        RendezvousParameters as RendezvousParameters,
    )
    from elastic_core.rendezvous.options import RendezvousOptions as RendezvousOptions
    from elastic_core.version import __version__ as __version__
    from elastic_core.worker.error_file import record as record
    from elastic_core.worker.library import (
        ElasticDistributedSampler as ElasticDistributedSampler,
        TrainState as TrainState,
        init_process_group as init_process_group,
    )

_HOME = {
    "ElasticError": "errors",
    "PluginError": "errors",
    "RendezvousBackend": "rendezvous.backend",
    "RendezvousClosedError": "errors",
    "RendezvousConnectionError": "errors",
    "RendezvousError": "errors",
    "RendezvousHandler": "rendezvous.handler",
    "RendezvousInfo": "rendezvous.handler",
    "RendezvousOptions": "rendezvous.options",
    "RendezvousParameters": "rendezvous.handler",
    "RendezvousRefusedError": "errors",
    "RendezvousStateError": "errors",
    "RendezvousTimeoutError": "errors",
    "RunConfig": "config.run",
    "StoreLostError": "errors",
    "UsageError": "errors",
    "__version__": "version",
    "hookimpl": "hookspecs",
    "record": "worker.error_file",
}
"""Where each public name lives."""

_SUBMODULES = {
    "agent": "agent",
    "errors": "errors",
    "hookspecs": "hookspecs",
    "launch": "api.launch",
    "multiprocessing": "api.multiprocessing",
    "rendezvous": "rendezvous",
}
"""Modules that ``import elastic_core as elastic`` reaches by torch's names, as ``elastic.multiprocessing.Std``."""

_OF_LIBRARY = ("ElasticDistributedSampler", "TrainState", "init_process_group")
"""What a library brings (``worker.library``). Not in ``__all__``: ``import *`` works without any."""

__all__ = [
    "ElasticError",
    "PluginError",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousOptions",
    "RendezvousParameters",
    "RendezvousRefusedError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "RunConfig",
    "StoreLostError",
    "UsageError",
    "__version__",
    "hookimpl",
    "record",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"{__name__}.{_SUBMODULES[name]}")
    if name in _OF_LIBRARY:
        return getattr(import_module(f"{__name__}.worker.library"), name)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, *_SUBMODULES, *_OF_LIBRARY]
