from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module, metadata, util
from pathlib import Path

import pytest

import elastic_core
from elastic_core.worker import library


def test_every_public_name_is_there_and_every_lazy_one_is_public() -> None:
    namespace: dict[str, object] = {}
    exec("from elastic_core import *", namespace)
    assert {name for name in namespace if name != "__builtins__"} == set(elastic_core.__all__)
    libraries = [*library.OFFERED]
    assert elastic_core.NAMES["worker.library"].split() == libraries
    assert dir(elastic_core) == sorted([*elastic_core.__all__, *elastic_core._SUBMODULES, *libraries])


@pytest.mark.parametrize("package", elastic_core.PUBLIC)
def test_a_public_name_of_a_package_is_the_thing_itself_before_and_after_other_imports(package: str) -> None:
    for home, names in getattr(import_module(package), "NAMES", {}).items():
        module = import_module(f"elastic_core.{home}")
        for name in names.split():
            if home != "worker.library":  # of libraries that are not installed with core
                assert getattr(import_module(package), name) is getattr(module, name)
                assert util.find_spec(f"{package}.{name}") is None, "a module of that name would hide it"


def test_a_public_name_imports_its_module_alone() -> None:
    script = (
        "import sys; from elastic_core.config import Flag; print(*(name for name in sys.modules if 'config' in name))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "elastic_core.config.flag" in found
    assert "elastic_core.config.rdzv_conf" not in found


@pytest.mark.parametrize("name", elastic_core._SUBMODULES)
def test_a_submodule_is_reached_by_attribute(name: str) -> None:
    script = f"import elastic_core as elastic; print(elastic.{name}.__name__)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == f"elastic_core.{name}\n"


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("import elastic_core.multiprocessing.errors", "elastic_core.multiprocessing"),
        ("from elastic_core.agent.server import WorkerSpec", "elastic_core.agent.server"),
        ("from elastic_core.agent import server", "elastic_core.agent.server"),
        ("from elastic_core import WorkerSpec", "elastic_core.WorkerSpec"),
        ("from elastic_core.rendezvous import RendezvousStoreInfo", "elastic_core.rendezvous.RendezvousStoreInfo"),
        ("import elastic_core.rendezvous.registry", "elastic_core.rendezvous.registry"),
    ],
)
def test_an_import_of_torchs_names_says_what_to_install(statement: str, wanted: str) -> None:
    assert without_plugins(statement).stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {wanted}, if it is one of torch's names, needs elastic-torchrun, which is not installed "
        "here. Install elastic-torchrun from where elastic_core came."
    )


@pytest.mark.parametrize("name", ["multiprocessing", "agent.server", "rendezvous.RendezvousStoreInfo"])
def test_an_attribute_of_torchs_says_what_to_install_and_may_be_looked_for(name: str) -> None:
    """As pickle looks into every module for an object whose module it does not know."""
    module, _, last = f"elastic_core.{name}".rpartition(".")
    found = without_plugins(f"import {module}; print(hasattr({module}, {last!r})); {module}.{last}")
    assert found.stdout == "False\n"
    assert found.stderr.splitlines()[-1] == (
        f"AttributeError: module {module!r} has no attribute {last!r}: elastic_core.{name}, if it is one of torch's "
        "names, needs elastic-torchrun, which is not installed here. Install elastic-torchrun from where "
        "elastic_core came."
    )


def without_plugins(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script where nothing but core is installed."""
    script = f"import sys; sys.path.append({str(Path(elastic_core.__file__).parents[1])!r}); {script}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)


def test_a_public_name_is_the_thing_itself() -> None:
    from elastic_core.errors import UsageError

    assert elastic_core.UsageError is UsageError


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'elastic_core' has no attribute 'nothing'"):
        elastic_core.nothing  # noqa: B018  (looking it up is the test)


def test_the_version_is_the_distributions() -> None:
    assert elastic_core.__version__ == metadata.version("elastic-core")


def test_importing_the_package_imports_nothing_of_it() -> None:
    script = "import sys, elastic_core; print(*(name for name in sys.modules if name.startswith('elastic_core.')))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"


def test_core_imports_the_standard_library_pluggy_and_click_alone() -> None:
    later = {"tomli", "_sha2"}  # Python 3.10 has the one for tomllib, 3.12 the other
    allowed = {*sys.stdlib_module_names, *later, "click", "elastic_core", "pluggy", "_typeshed"}
    foreign = set()
    for path in Path(elastic_core.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module)):
                    modules = [module]
                case _:
                    continue
            foreign |= {(path.name, module) for module in modules if module.partition(".")[0] not in allowed}
    assert foreign == set()
