from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import elastic_core
from elastic_core.worker import library


def test_every_public_name_is_there_and_every_lazy_one_is_public() -> None:
    namespace: dict[str, object] = {}
    exec("from elastic_core import *", namespace)
    assert {name for name in namespace if name != "__builtins__"} == set(elastic_core.__all__)
    assert {*elastic_core._HOME} == set(elastic_core.__all__)
    libraries = [*library.OFFERED, *library.OF_ELASTIC_TORCH]
    assert dir(elastic_core) == sorted([*elastic_core.__all__, *elastic_core._SUBMODULES, *libraries])


@pytest.mark.parametrize(
    ("name", "module"), [item for item in elastic_core._SUBMODULES.items() if item[1].startswith("elastic_core.")]
)
def test_a_submodule_is_reached_by_attribute(name: str, module: str) -> None:
    script = f"import elastic_core as elastic; print(elastic.{name}.__name__)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == f"{module}\n"


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
    allowed = {*sys.stdlib_module_names, "click", "elastic_core", "pluggy", "_typeshed"}
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
