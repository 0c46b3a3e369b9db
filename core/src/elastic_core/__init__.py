"""Elastic: launch and supervise distributed training that survives failures.

General layout. A package imports only packages below it in this list; a test holds that.

* ``cli``: the ``elastic`` command.
* ``agent``: one process per node. ``supervisor`` is its event loop.
* ``warden``: the process that is the parent of all workers, and the agent's side of it.
* ``worker``: what runs inside a worker.
* ``plugins``: installed plugins, and how foreign code is called without harm to the job.
* ``session``: the threads that connect a node to its store.
* ``starter``: how a plugin brings a process that forks workers on request.
* ``hookspecs``: every hook and its contract.
* ``gates``, ``monitors``: a node's two gates, and a round's workers, as plugins see them. ``progress_table``: the
  progress of these workers. ``round_questions``: which monitors answer and follow questions.
* ``protocol``: the decisions, as pure functions: ``leader`` for the job, ``node`` for one node.
* ``host``: facts about this machine.
* ``config``: the settings of a run, and every environment variable.
* ``rendezvous``: what the author of a backend writes against.
* ``assignment``: what a worker is told of itself. ``threads``: calls in a thread, with a limit of time.
  ``version``: the version of this distribution. ``questions``: what monitors ask all nodes, and the answers.
  ``digest``: digests of text, without OpenSSL. ``distributions``: what can be installed besides core.
* ``incidents``, ``errors``, ``events``, ``progress``, ``exit_codes``: shared vocabulary. (``__main__`` is ``elastic``.)

The seven stations of a failure (``docs/internals/architecture.md`` names the files): the **warden** reaps a dead
worker, the **agent**'s event loop receives the event, the node's state machine (``protocol.node``) returns what
follows, the **session** writes the node's row, the store wakes the leader's reader, the **leader**
(``protocol.leader``) appends an entry, every **agent** acts on the entry. Read first ``hookspecs``, then
``protocol.leader``, then ``agent.supervisor``.

Public names are imported when they are first used: ``import elastic_core`` itself imports no other module.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's, without the import, which takes longer than all else here

if TYPE_CHECKING:
    from typing import Any

    from elastic_core.config.flag import Flag as Flag
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
        UnhealthyNodeError as UnhealthyNodeError,
        UsageError as UsageError,
    )
    from elastic_core.gates import JoinGate as JoinGate, StartGate as StartGate
    from elastic_core.hookspecs import hookimpl as hookimpl
    from elastic_core.monitors import LineReader as LineReader, RunningRound as RunningRound
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
    from elastic_core.worker.progress import report as report

_HOME = {
    name: module
    for module, names in {
        "config.flag": "Flag",
        "config.run": "RunConfig",
        "errors": "ElasticError PluginError RendezvousClosedError RendezvousConnectionError RendezvousError "
        "RendezvousRefusedError RendezvousStateError RendezvousTimeoutError StoreLostError UnhealthyNodeError "
        "UsageError",
        "gates": "JoinGate StartGate",
        "hookspecs": "hookimpl",
        "monitors": "LineReader RunningRound",
        "rendezvous.backend": "RendezvousBackend",
        "rendezvous.handler": "RendezvousHandler RendezvousInfo RendezvousParameters",
        "rendezvous.options": "RendezvousOptions",
        "version": "__version__",
        "worker.error_file": "record",
        "worker.progress": "report",
    }.items()
    for name in names.split()
}  # the module of each public name
__all__ = [*_HOME]  # noqa: PLE0604  (strings)

_SUBMODULES = ("agent", "errors", "hookspecs", "rendezvous")  # what ``elastic.NAME`` imports, of core
_OF_LIBRARY = ("ElasticDistributedSampler", "TrainState", "init_process_group")
"""Names that need an installed library (``worker.library``), and are not in ``__all__``, so that ``import *`` works."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    library = import_module(f"{__name__}.worker.library")
    return getattr(library, name) if name in _OF_LIBRARY else library.added_name(__name__, name)


def __dir__() -> list[str]:
    return [*__all__, *_SUBMODULES, *_OF_LIBRARY]


class _LastFinder:
    """Asks elastic-torchrun for a module under this package that no other finder has found."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.startswith(f"{__name__}."):
            from importlib import import_module

            return import_module(f"{__name__}.worker.library").added_names(name).find_spec(name)
        return None


sys.meta_path.append(_LastFinder())
