"""torch's names under ``elastic_core``: ``torch.distributed.elastic`` replaced by ``elastic_core`` in an import works.

``MODULES`` has all of them. Core asks :func:`find_spec` for a module that it does not have, and :func:`find_name` for a
name. Nothing is imported before a name is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOT, TORCHS = "elastic_core", "torch.distributed.elastic"
ALL = "*"  # all names of a module
_LAUNCH = "ChildFailedError LaunchConfig SignalException elastic_launch launch_agent"
_LAUNCHER = {"elastic_torchrun.launch": "LaunchConfig elastic_launch launch_agent"}
_SERVER = {
    "elastic_torchrun.local_agent": "LocalElasticAgent RunResult WorkerSpec WorkerState",
    f"{TORCHS}.agent.server": "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE",
}
_MULTIPROCESSING = {
    "elastic_torchrun.launch": "ProcessFailure SignalException",
    "elastic_torchrun.local_agent": "Std to_map",
    f"{TORCHS}.multiprocessing": "DefaultLogsSpecs LogsDest LogsSpecs",
}
_RENDEZVOUS = {
    "elastic_core.errors": "RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousStateError "
    "RendezvousTimeoutError",
    "elastic_core.rendezvous": "RendezvousParameters",
    "elastic_torchrun.rendezvous_api": "BootstrapStoreInfo HandlerAnswer RendezvousHandler RendezvousInfo",
    "elastic_torchrun.handlers": "RendezvousGracefulExitError RendezvousHandlerCreator rendezvous_handler_registry",
    f"{TORCHS}.rendezvous": "RendezvousHandlerRegistry RendezvousStoreInfo",
}
_SAMPLER = {"elastic_torch": "ElasticDistributedSampler"}
_THEIRS = (
    "agent.server.health_check_server control_plane metrics metrics.api multiprocessing.errors.error_handler "
    "multiprocessing.errors.handlers multiprocessing.redirects multiprocessing.subprocess_handler "
    "multiprocessing.subprocess_handler.handlers multiprocessing.subprocess_handler.subprocess_handler "
    "multiprocessing.tail_log rendezvous.c10d_rendezvous_backend rendezvous.dynamic_rendezvous "
    "rendezvous.etcd_rendezvous rendezvous.etcd_rendezvous_backend rendezvous.etcd_server rendezvous.etcd_store "
    "rendezvous.static_tcp_rendezvous rendezvous.utils timer timer.api timer.debug_info_logging "
    "timer.file_based_local_timer timer.local_timer utils utils.api utils.data.cycling_iterator utils.distributed "
    "utils.log_level utils.logging utils.process_state utils.store"
)
"""The modules that are torch's own: their objects work by themselves, or with Elastic's agent."""

MODULES: Mapping[str, Mapping[str, str]] = {
    "": {
        "elastic_torchrun.launch": f"{_LAUNCH} ProcessFailure",
        "elastic_torchrun.local_agent": "LocalElasticAgent RunResult Std WorkerSpec WorkerState",
        "elastic_torchrun.rendezvous_api": "RendezvousHandler RendezvousInfo",
    },
    **{path: {f"{TORCHS}.{path}": ALL} for path in _THEIRS.split()},
    "agent": {},
    "agent.server": _SERVER,
    "agent.server.api": _SERVER,
    "agent.server.local_elastic_agent": {
        **_SERVER,
        f"{TORCHS}.agent.server.local_elastic_agent": "TORCHELASTIC_HEALTH_CHECK_PORT "
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    },
    "launch": {"elastic_torchrun.launch": _LAUNCH},
    "launcher": _LAUNCHER,
    "launcher.api": _LAUNCHER,
    "multiprocessing": _MULTIPROCESSING,
    "multiprocessing.api": {**_MULTIPROCESSING, f"{TORCHS}.multiprocessing.api": "get_std_cm"},
    "multiprocessing.errors": {
        "elastic_core.worker.error_file": "record",
        "elastic_torchrun.launch": "ChildFailedError ProcessFailure",
        f"{TORCHS}.multiprocessing.errors": "ErrorHandler get_error_handler",
    },
    "numa": {},
    "numa.binding": {"torch.numa.binding": ALL},
    "rendezvous": _RENDEZVOUS,
    "rendezvous.api": _RENDEZVOUS,
    "rendezvous.registry": {
        "elastic_torchrun.foreign.registry": "find names register unregister using",
        "elastic_torchrun.handlers": "get_rendezvous_handler",
    },
    "run": {
        "elastic_torchrun.launcher": "main run",
        "torch.distributed.run": "determine_local_world_size get_args_parser get_rdzv_endpoint get_use_env parse_args "
        "parse_min_max_nnodes run_script_path",
    },
    "utils.data": {**_SAMPLER, f"{TORCHS}.utils.data": "CyclingIterator"},
    "utils.data.elastic_distributed_sampler": _SAMPLER,
}
"""The modules by their names under ``elastic_core``, each with the modules that define its names, and these names."""

_NO_AGENT = "Elastic's agent has no base class; hooks take part in its work (docs/authors/writing_a_plugin.md)"
_NO_WORKERS = "the agent's workers are its own; RunResult says how the run ended"
_NO_PROCESSES = (
    "a program that starts processes itself needs no agent; "
    f"keep the import from {TORCHS}.multiprocessing, which works under elastic run"
)
LEFT_OUT = {
    "ElasticAgent": _NO_AGENT,
    "SimpleElasticAgent": _NO_AGENT,
    "Worker": _NO_WORKERS,
    "WorkerGroup": _NO_WORKERS,
    "start_processes": _NO_PROCESSES,
    "PContext": _NO_PROCESSES,
    "RunProcsResult": _NO_PROCESSES,
    "MultiprocessContext": _NO_PROCESSES,
    "SubprocessContext": _NO_PROCESSES,
    "config_from_args": "it returns torch's LaunchConfig, which Elastic does not take; call run(args)",
    "events": "elastic_core.events is Elastic's own, and torch's events are none of Elastic's agent",
}
"""torch's names that are not served, and the one module, with the reason."""


class _Names(ModuleType):
    """A module with torch's names."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return public_names(_path(self.__name__))
        return find_name(self.__name__, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *public_names(_path(self.__name__))]


class _NamesLoader:
    """Makes the modules; there is nothing to execute."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name, "torch's names, served by Elastic.")

    def exec_module(self, module: ModuleType) -> None:
        pass


def find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module under ``elastic_core`` that has torch's names; None if torch has none of that name.

    Raises:
        ImportError: An import statement names an object that is left out. (Python first takes it for a module.)
    """
    path = _path(name)
    if path in MODULES:
        return ModuleSpec(name, _NamesLoader(), is_package=True)  # type: ignore[arg-type]  # as the import system wants it
    module, _, last = path.rpartition(".")
    if module in MODULES and last in LEFT_OUT:
        raise ImportError(_left_out(name, last), name=name)
    return None


def find_name(module: str, name: str) -> Any:
    """Return a name of a module under ``elastic_core``, or of that package.

    Raises:
        AttributeError: torch has no such name, or it is left out.
        ImportError: The distribution that defines it is not installed.
    """
    path = _path(module)
    inner = f"{path}.{name}".lstrip(".")
    if inner in MODULES:
        return import_module(f"{ROOT}.{inner}")
    for home, names in MODULES.get(path, {}).items():
        if name in names.split() or (names == ALL and not name.startswith("__")):
            return getattr(import_module(home), name)
    if name in LEFT_OUT:
        raise AttributeError(_left_out(f"{module}.{name}", name))
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def public_names(path: str) -> list[str]:
    """Return the names of one of ``MODULES``, without modules."""
    found: list[str] = []
    for home, names in MODULES[path].items():
        if names == ALL:
            theirs = import_module(home)
            found += getattr(theirs, "__all__", None) or [name for name in dir(theirs) if not name.startswith("_")]
        else:
            found += names.split()
    return found


def _path(module: str) -> str:
    return module.removeprefix(ROOT).removeprefix(".")


def _left_out(name: str, last: str) -> str:
    return f"{name} is not there: {LEFT_OUT[last]}."
