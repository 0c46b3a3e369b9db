"""torch's public names under ``elastic_core``: all of torch's are served, or left out with a reason."""

from __future__ import annotations

import inspect
import json
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import elastic_core
from elastic_core.errors import PluginError, RendezvousError, UsageError
from elastic_core.plugins import handler_registry
from elastic_core.rendezvous.handler import RendezvousHandler, RendezvousParameters
from elastic_core.worker.error_file import record
from elastic_torchrun.launch import ChildFailedError, SignalException
from elastic_torchrun.launch_config import LaunchConfig
from elastic_torchrun.local_agent import RunResult, WorkerState
from elastic_torchrun.multiprocessing import RunProcsResult, Std, to_map
from elastic_torchrun.process_failure import ProcessFailure
from elastic_torchrun.rendezvous import (
    RendezvousGracefulExitError,
    get_rendezvous_handler,
    launch_settings,
    rendezvous_handler_registry,
)
from elastic_torchrun.torch_names import ALL, LEFT_OUT, MODULES, ROOT

ROOTS = {
    "torch.distributed.elastic": "",
    "torch.distributed.launcher": "launcher",
    "torch.distributed.run": "run",
    "torch.numa": "numa",
}
OF_MODULES_LEFT_OUT = ("events",)
OTHER_ARGUMENTS = {
    "ElasticDistributedSampler": "the fourth argument of DistributedSampler; start_index is given by name",
    "PContext": "start_processes makes it",
    "Std": "a flag in torch's, and here a job, too",
    "record": "torch's takes an error_handler; migrating.md names both",
}
"""The classes and functions whose arguments by place are not torch's, with the reason."""
LINES = """
from elastic_core.agent.server import LocalElasticAgent, WorkerSpec
from elastic_core.agent.server.api import RunResult, WorkerState
from elastic_core.agent.server.local_elastic_agent import LocalElasticAgent as by_its_module
from elastic_core.launch import LaunchConfig
from elastic_core.launcher.api import LaunchConfig as by_launcher, elastic_launch
from elastic_core.multiprocessing import DefaultLogsSpecs, Std
from elastic_core.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from elastic_core.rendezvous import RendezvousHandlerRegistry, RendezvousParameters, rendezvous_handler_registry
from elastic_core.timer import *
import elastic_core.rendezvous.registry
import elastic_core.rendezvous.handler
import elastic_core.agent.report
import elastic_core as elastic
assert elastic.WorkerSpec is WorkerSpec is elastic.agent.server.api.WorkerSpec
assert by_its_module is LocalElasticAgent is elastic.LocalElasticAgent
assert by_launcher is LaunchConfig is elastic.launch.LaunchConfig
assert elastic.multiprocessing.errors.record is elastic.record is record
assert elastic.rendezvous.registry.register is elastic_core.plugins.handler_registry.register
assert RendezvousParameters is elastic_core.rendezvous.handler.RendezvousParameters
assert FileTimerClient.__module__.startswith("torch.")
print("imported")
"""


def torchs_modules() -> Iterator[tuple[str, str]]:
    """Yield the names of torch's public modules, and their paths under ``elastic_core``."""
    for root, path in ROOTS.items():
        yield root, path
        for found in pkgutil.walk_packages(getattr(import_module(root), "__path__", ()), f"{root}."):
            if not found.name.rpartition(".")[2].startswith("_"):
                yield found.name, f"{path}{found.name.removeprefix(root)}".removeprefix(".")


def torchs_names() -> Iterator[tuple[str, str, Any]]:
    """Yield the path of each module of torch's, each public name of it, and the object."""
    for module_name, path in torchs_modules():
        module = import_module(module_name)
        defined = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
            if value.__module__.startswith(module_name)
        ]
        for name in getattr(module, "__all__", defined):
            yield path, name, getattr(module, name)


def served(path: str, name: str) -> Any:
    return getattr(import_module(f"{ROOT}.{path}".rstrip(".")), name)


def is_left_out(path: str, name: str) -> bool:
    return name in LEFT_OUT or path.partition(".")[0] in LEFT_OUT


def by_place(of: Any) -> list[str] | None:
    """Return the arguments that can be given by place; None for what has no signature."""
    try:
        parameters = inspect.signature(of).parameters.values()
    except (TypeError, ValueError):
        return None
    return [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]


def test_every_module_of_torchs_is_there() -> None:
    missing = {path for _, path in torchs_modules() if path not in MODULES}
    assert {path.partition(".")[0] for path in missing} == set(OF_MODULES_LEFT_OUT)
    for _, path in torchs_modules():
        if path not in missing:
            assert import_module(f"{ROOT}.{path}".rstrip(".")).__name__ == f"{ROOT}.{path}".rstrip(".")


def test_every_public_name_of_torchs_is_served_or_left_out() -> None:
    names = [(path, name) for path, name, _ in torchs_names()]
    assert len(names) > 200, "the introspection has found torch's names"
    assert [at for at in names if not is_left_out(*at) and served(*at) is None] == []
    left_out = {name for path, name in names if is_left_out(path, name) and path not in OF_MODULES_LEFT_OUT}
    assert {name for name in left_out if name in LEFT_OUT} == {*LEFT_OUT} - {*OF_MODULES_LEFT_OUT}


def test_what_is_left_out_is_not_there_and_says_why() -> None:
    for path, name, _ in torchs_names():
        if name in LEFT_OUT:
            with pytest.raises(ImportError) as caught:
                exec(f"from {ROOT}.{path} import {name}", {})
            assert str(caught.value) == f"{ROOT}.{path}.{name} is not there: {LEFT_OUT[name]}."


def test_our_classes_and_functions_take_torchs_arguments_by_place() -> None:
    differ = set()
    for path, name, torchs in torchs_names():
        if not is_left_out(path, name) and (theirs := by_place(torchs)) is not None:
            differ |= {name} - ({name} if by_place(served(path, name)) == theirs else set())
    assert differ == {*OTHER_ARGUMENTS}


@pytest.mark.parametrize("path", MODULES)
def test_every_name_of_the_table_is_defined_and_listed(path: str) -> None:
    module = import_module(f"{ROOT}.{path}".rstrip("."))
    names = {name for listed in MODULES[path].values() for name in listed.split()} - {ALL}
    for name in names:
        assert getattr(module, name) is not None
    if getattr(module, "__file__", None) is None:  # no package of core
        assert names <= {*module.__all__} <= {*dir(module)}


@pytest.mark.parametrize("launcher", [[], ["-m", "elastic_core", "run"]], ids=["python", "elastic run"])
def test_torchs_import_lines_run_with_the_package_replaced(tmp_path: Path, launcher: list[str]) -> None:
    (tmp_path / "script.py").write_text(LINES)
    done = subprocess.run(
        [sys.executable, *launcher, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


def test_an_import_of_a_module_of_torchs_imports_nothing_else() -> None:
    script = (
        "import sys, elastic_core.multiprocessing.errors, elastic_core.timer; "
        "print(*(name for name in ('torch', 'elastic_torchrun.launch') if name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize("statement", ["import elastic_core.nothing", "import elastic_core.timer.nothing"])
def test_a_module_that_torch_has_not_either_is_not_there(statement: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{statement.split()[1]}'"):
        exec(statement, {})


def test_a_name_that_torch_has_not_either_is_not_there() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'elastic_core'"):
        exec("from elastic_core import nothing", {})
    assert not hasattr(elastic_core.rendezvous, "nothing")


# Constructors --------------------------------------------------------------------------------------------------------


def test_a_failure_reads_its_error_file(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    written = {"message": {"message": "ValueError: sad", "extraInfo": {"py_callstack": "…", "timestamp": "7"}}}
    file.write_text(json.dumps(written))
    failure = ProcessFailure(1, 997, 1, str(file))
    assert (failure.local_rank, failure.pid, failure.exitcode, failure.error_file) == (1, 997, 1, str(file))
    assert (failure.message, failure.timestamp, failure.error_file_data) == ("ValueError: sad", 7, written)


@pytest.mark.parametrize("text", [None, "", "[]", '{"other": 1}', '{"message'])
def test_a_failure_without_a_valid_error_file_says_how_the_process_ended(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "error.json"
    if text is not None:
        file.write_text(text)
    failure = ProcessFailure(0, 997, -9, str(file))
    assert (failure.error_file, failure.message, failure.signal_name()) == ("<N/A>", "was killed by SIGKILL", "SIGKILL")
    assert failure.error_file_data == {"message": "<NONE>"}


def test_a_failed_job_is_made_of_a_name_and_failures_and_recorded_as_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "job.json"))
    failures = {}
    for rank in (0, 1):
        written = {"message": f"error {rank}", "extraInfo": {"py_callstack": "…", "timestamp": str(9 - rank)}}
        (tmp_path / f"{rank}.json").write_text(json.dumps({"message": written}))
        failures[rank] = ProcessFailure(rank, 997, 3, str(tmp_path / f"{rank}.json"))
    error = ChildFailedError("trainer", failures)
    assert (error.name, error.failures, error.returncode) == ("trainer", failures, 1)
    assert error.get_first_failure() == (1, failures[1])
    assert str(error) == error.format_msg() == "trainer has failed. rank 0: error 0; rank 1: error 1"

    def fails() -> None:
        raise error

    with pytest.raises(ChildFailedError):
        record(fails)()
    recorded = json.loads((tmp_path / "job.json").read_text())["message"]
    assert (recorded["message"], recorded["errorCode"]) == ("error 1", 3)


def test_other_objects_are_made_as_torchs() -> None:
    error = SignalException("told to stop", signal.SIGTERM)
    assert (str(error), error.sigval, error.code) == ("told to stop", signal.SIGTERM, 143)
    result = RunResult(WorkerState.FAILED, {0: 1}, {})
    assert (result.return_values, result.failures, result.is_failed()) == ({0: 1}, {}, True)
    processes = RunProcsResult({0: 1}, {}, {0: "out"}, {0: "err"})
    assert (processes.stdouts, processes.stderrs) == ({0: "out"}, {0: "err"})
    assert to_map(Std.ALL, 2) == {0: Std.ALL, 1: Std.ALL}
    assert to_map({1: Std.OUT}, 3) == {0: Std.NONE, 1: Std.OUT, 2: Std.NONE}


@pytest.mark.parametrize(("variable", "expected"), [(None, 30), ("7", 7)])
def test_a_configuration_has_its_time_for_the_end_once_it_is_made(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: int
) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if variable is not None:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", variable)
    assert LaunchConfig(1, 1, 1).shutdown_timeout == expected
    assert LaunchConfig(1, 1, 1, shutdown_timeout=0).shutdown_timeout == 0
    with pytest.raises(ValueError, match="shutdown_timeout=-1 is negative"):
        LaunchConfig(1, 1, 1, shutdown_timeout=-1)


@pytest.mark.parametrize("name", MODULES["rendezvous"]["elastic_core.errors"].split())
def test_an_error_of_a_rendezvous_needs_no_message(name: str) -> None:
    kind = served("rendezvous", name)
    assert str(kind()) == name
    assert str(kind("too late")) == "too late"


# Handlers ------------------------------------------------------------------------------------------------------------


class Mine(RendezvousHandler):
    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params

    def next_rendezvous(self) -> tuple[None, int, int]:
        return None, 0, 1


@pytest.fixture
def registered() -> Iterator[str]:
    rendezvous_handler_registry.register("mine", Mine)
    yield "mine"
    handler_registry.unregister("mine")


@pytest.mark.parametrize("make", [get_rendezvous_handler, rendezvous_handler_registry.create_handler])
@pytest.mark.parametrize("module", [ROOT, "torch.distributed.elastic"])
def test_a_registered_handler_is_made_of_either_packages_parameters(
    registered: str, module: str, make: Callable[[Any], RendezvousHandler]
) -> None:
    params = import_module(f"{module}.rendezvous").RendezvousParameters
    handler = make(params(registered, "here:1", "job", 1, 2, "127.0.0.1", key="value"))
    assert isinstance(handler, Mine)
    assert (handler.params.run_id, handler.params.max_nodes, handler.params.get("key")) == ("job", 2, "value")
    assert launch_settings(handler) == {}, "the agent asks the handler"
    assert handler_registry.find(registered) is Mine, "--rdzv_backend finds it, too"


def test_a_handler_of_a_backend_of_ours_names_the_rendezvous_to_the_agent(tmp_path: Path) -> None:
    params = RendezvousParameters("file", str(tmp_path), "job", 1, 2, None, lost_after=7)
    handler = get_rendezvous_handler(params)
    assert (handler.get_backend(), handler.get_run_id()) == ("file", "job")
    config = LaunchConfig(**launch_settings(handler))
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("file", str(tmp_path), "job")
    assert (config.min_nodes, config.max_nodes, config.rdzv_configs) == (1, 2, {"lost_after": 7})


def test_a_handler_of_one_node_gives_a_round() -> None:
    handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "job", 1, 1, "127.0.0.1"))
    info = handler.next_rendezvous()
    assert not isinstance(info, tuple)
    assert (info.rank, info.world_size, handler.is_closed()) == (0, 1, False)
    assert handler.shutdown()


def test_what_is_no_backend_is_refused() -> None:
    with pytest.raises(PluginError, match="There is no rendezvous backend 'nowhere'"):
        get_rendezvous_handler(RendezvousParameters("nowhere", "", "job", 1, 1))
    with pytest.raises(UsageError, match="there is no key 'unknown'"):
        get_rendezvous_handler(RendezvousParameters("file", "/tmp", "job", 1, 1, unknown=1))


def test_a_graceful_exit_is_an_error_of_a_rendezvous_and_known_to_the_agent() -> None:
    error = RendezvousGracefulExitError("not needed")
    assert isinstance(error, RendezvousError)
    assert handler_registry.is_graceful_exit(error)
