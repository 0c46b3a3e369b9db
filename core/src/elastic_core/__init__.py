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
* ``gates``: a node's two gates, the state of its agent, and the agent's end, as plugins see them.
* ``causes``: the cause of a worker's failure. ``monitors``: a round's workers, as plugins see them.
  ``progress_table``: the progress of workers.
* ``protocol``: the decisions, as pure functions: ``leader`` for the job, ``node`` for one node.
* ``host``: facts about this machine.
* ``config``: the settings of a run, and every environment variable.
* ``rendezvous``: what the author of a backend writes against.
* ``threads``: calls in a thread, with a limit of time. ``version``: the version of this distribution.
  ``decision_log``: decisions for a bug report. ``questions``: what monitors ask all nodes, and the answers.
  ``digest``: digests of text, without OpenSSL. ``distributions``: what can be installed besides core.
* ``incidents``, ``errors``, ``events``, ``progress``, ``exit_codes``: shared vocabulary. (``__main__`` is ``elastic``.)

``docs/internals/architecture.md`` follows a failure through these packages. Read first ``hookspecs``, then
``protocol.leader``, then ``agent.supervisor``.

Public names are imported when they are first used: ``import elastic_core`` itself imports no other module. Plugins
import from the modules of ``PUBLIC`` alone; ``docs/render_public.py`` writes their stubs for type checkers.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's, without the import, which takes longer than all else here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

PUBLIC = {
    "elastic_core": "what most plugins and training scripts need: settings, hooks, gates, errors",
    "elastic_core.agent": "an agent in this process, marks of its directories, and the root cause of a failed job",
    "elastic_core.causes": "the cause of a worker's failure, and what a plugin gets to find it",
    "elastic_core.cli": "commands: their options, how a run is settled, warnings",
    "elastic_core.cli.main": "the entry point of ``elastic``",
    "elastic_core.config": "the settings of a run: flags, the program, ``--rdzv_conf``, environment variables",
    "elastic_core.config.parse": "reads the values of flags and settings from text",
    "elastic_core.errors": "the errors that users see, each with a hint",
    "elastic_core.events": "events, which observers receive, and their levels",
    "elastic_core.exit_codes": "the exit codes of ``elastic run``, and those of workers in words",
    "elastic_core.host": "facts about this machine: names, addresses, ports, processes, terminal",
    "elastic_core.incidents": "failures, their history, and verdicts on them",
    "elastic_core.monitors": "a round and its workers, as monitors see them",
    "elastic_core.plugins": "the installed plugins, those of a run, and the backend for one node",
    "elastic_core.progress": "progress and checkpoints of a worker",
    "elastic_core.protocol": "the records in a store, their codec and limits, and a node's state machine",
    "elastic_core.questions": "questions of monitors to all nodes of a round, and the answers",
    "elastic_core.rendezvous": "the interface of a backend, and its options and parameters",
    "elastic_core.session": "a node's connection to its store, and what can be read and asked from outside of the job",
    "elastic_core.session.join": "enters a run, or opens it",
    "elastic_core.starter": "how a plugin brings a process that forks workers",
    "elastic_core.threads": "calls in a thread, with a limit of time",
    "elastic_core.warden": "the parent of workers: its client, its messages, a starter's side, signals and subreapers",
    "elastic_core.worker": "inside a worker: graceful stop, error file, the channel to the agent",
}
"""The modules that plugins may import, and the subject of each."""

NAMES = {
    "config.flag": "Flag",
    "config.run": "RunConfig",
    "decision_log": "Decision",
    "errors": "ElasticError PluginError RendezvousClosedError RendezvousConnectionError RendezvousError "
    "RendezvousRefusedError RendezvousStateError RendezvousTimeoutError StoreLostError UnhealthyNodeError UsageError",
    "gates": "AgentEnd AgentState JoinGate JoinedRun RunSummary StartGate",
    "hookspecs": "hookimpl",
    "monitors": "Assignment LineReader RunningRound",
    "rendezvous.backend": "RendezvousBackend",
    "rendezvous.options": "RendezvousOptions RendezvousParameters",
    "version": "__version__",
    "worker.error_file": "record",
    "worker.library": "ElasticDistributedSampler TrainState init_process_group",
    "worker.progress": "report",
}
"""The public names of this package: those of each module. Public packages below it have such a table, too."""

_SUBMODULES = ("agent", "errors", "hookspecs", "rendezvous")  # what ``elastic.NAME`` imports, of core


def names_of(package: str, names: Mapping[str, str], *, torchs: bool = False) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports the module of a public name when the name is used.

    ``names`` has the public names of each module, by the path of the module below ``elastic_core``. With ``torchs``,
    elastic-torchrun adds names of torch's package to this one.
    """
    homes = {name: module for module, listed in names.items() for name in listed.split()}

    def find(name: str) -> Any:
        from importlib import import_module

        if name in homes:
            return getattr(import_module(f"{__name__}.{homes[name]}"), name)
        is_module = os.path.exists(f"{sys.modules[package].__path__[0]}/{name}.py")  # which is about to be imported
        if is_module or not torchs:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{__name__}.worker.library").added_name(package, name)

    return find


__all__ = [name for module in NAMES if module != "worker.library" for name in NAMES[module].split()]
_find = names_of(__name__, NAMES, torchs=True)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    return _find(name)


def __dir__() -> list[str]:
    return [*__all__, *_SUBMODULES, *NAMES["worker.library"].split()]


class _LastFinder:
    """Asks elastic-torchrun for a module under this package that no other finder has found."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.startswith(f"{__name__}."):
            from importlib import import_module

            return import_module(f"{__name__}.worker.library").added_names(name).find_spec(name)
        return None


sys.meta_path.append(_LastFinder())
