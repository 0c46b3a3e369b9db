"""The imports of a run's fork server."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core.config.parse import Wrong
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.starter import find_starter
from elastic_warmstart import starter as module
from elastic_warmstart.flags import PRELOAD
from elastic_warmstart.starter import LATER, modules, starter


def config(kind: ProgramKind = ProgramKind.SCRIPT, nproc_per_node: int = 1, **settings: Any) -> RunConfig:
    return RunConfig(program=Program(kind, "train.py"), nproc_per_node=nproc_per_node, settings=settings)


def test_core_finds_it_by_its_file() -> None:
    assert find_starter(config(), {"A": "1"}) == starter(config(), {"A": "1"})
    assert find_starter(config(warm_start=False), {}) is None


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (config(preload=("numpy", "torch")), ("numpy", "torch")),
        (config(preload=()), ()),
        (config(warm_start=False), ()),
        (config(ProgramKind.EXECUTABLE, preload=("torch",)), ()),
    ],
)
def test_the_fork_server_imports_what_the_run_names(run: RunConfig, names: tuple[str, ...]) -> None:
    assert modules(run) == names
    found = starter(run, {})
    assert (() if found is None else found.imports) == names


@pytest.mark.parametrize(("there", "names"), [(True, ("torch",)), (False, ())])
def test_torch_is_what_is_imported_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, there: bool, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace() if there and name == "torch" else None)
    assert modules(config()) == names


@pytest.mark.parametrize(
    ("named", "later"),
    [
        pytest.param({}, LATER, id="what torch imports late is imported late"),
        pytest.param({"preload": ("torch",)}, (), id="a list of modules is the whole list"),
    ],
)
def test_the_fork_server_has_the_threads_that_workers_have(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, Any], later: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace())
    found = starter(config(nproc_per_node=2, **named), {"PATH": "/bin"})
    assert found is not None
    assert (found.imports, found.python, found.program) == (("torch",), (sys.executable, "-u"), ("train.py",))
    assert found.env == found.order["env"] == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    assert found.store == "elastic_warmstart.worker_store:serve"
    assert found.order["later"] == later


def test_modules_are_read_from_a_list_of_names() -> None:
    assert PRELOAD.parse("torch, a.b_c,torch") == ("torch", "a.b_c")
    assert PRELOAD.parse("") == ()
    with pytest.raises(Wrong, match=r"^has '\./x\.py', which cannot be a module's name$"):
        PRELOAD.parse("torch,./x.py")
