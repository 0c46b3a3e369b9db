"""torch's public names under ``elastic_core``: all of torch's are served, or left out with a reason.

``plugins/torchrun/tests/test_torch_names.py`` has what the constructors and the registry of handlers do.
"""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import elastic_core
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
    "Std": "a flag in torch's, and here a job, too",
    "record": "torch's takes an error_handler; python_api.md names both",
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
import elastic_core.rendezvous.options
import elastic_core.agent.report
import elastic_core as elastic
import elastic_torchrun.foreign.registry
assert elastic.WorkerSpec is WorkerSpec is elastic.agent.server.api.WorkerSpec
assert by_its_module is LocalElasticAgent is elastic.LocalElasticAgent
assert by_launcher is LaunchConfig is elastic.launch.LaunchConfig
assert elastic.multiprocessing.errors.record is elastic.record is record
assert elastic.rendezvous.registry.register is elastic_torchrun.foreign.registry.register
assert RendezvousParameters is elastic_core.rendezvous.options.RendezvousParameters
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


def test_a_name_that_is_left_out_raises_with_the_reason() -> None:
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


def test_a_handler_of_one_of_our_backends_is_one_of_torchs_kind() -> None:
    parameters = served("rendezvous", "RendezvousParameters")("c10d", "localhost:0", "job", 1, 1, "127.0.0.1")
    handler = served("rendezvous.registry", "get_rendezvous_handler")(parameters)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size, handler.get_run_id(), handler.is_closed()) == (0, 1, "job", False)
    assert handler.shutdown()
