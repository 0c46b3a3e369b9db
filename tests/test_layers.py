"""Imports go down: the layers of elastic_core, no circle, and what each package may import at all.

``pyproject.toml`` has the layers, for import-linter. What that cannot say is checked here, over the syntax trees:
imports inside functions and those for type checkers count like all others.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src"
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

IMPURE = {"importlib", "logging", "os", "platform", "socket", "subprocess", "threading", "time"}
"""What protocol would need for a thread, a clock, or I/O."""
OUTSIDE_WARDEN = {
    "elastic_core.exit_codes": "names of exit codes, an enum: the warden says why it could not start a process",
    "elastic_core.worker.channel": "the name of the variable and the form of a packet, which a worker's process shares",
}
"""What the warden's process imports besides its own package, and why."""
FOR_TORCHRUN = "elastic_torchrun"
"""What backends may import: they register handlers with plain torchrun, which elastic-torchrun makes when asked."""
DISTRIBUTIONS = sorted((ROOT / "plugins").glob("*/src/*/__init__.py"))


def modules_below(root: Path) -> dict[str, Path]:
    """The files of the modules of a source tree, by name."""
    found = {}
    for path in root.rglob("*.py"):
        *parents, last = path.relative_to(root).with_suffix("").parts
        found[".".join(parents if last == "__init__" else [*parents, last])] = path
    return found


def imported_by(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a file imports; of a package's name that is a module, the module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    yield inner if inner in modules else module
            case ast.ImportFrom():
                pytest.fail(f"{path}:{node.lineno} has a relative import")


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Each module of core, and all that it imports."""
    modules = modules_below(CORE)
    return {name: set(imported_by(path, modules)) for name, path in modules.items()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Our own modules that are imported with one, itself among them, without the packages that contain them."""
    found, pending = {start}, [start]
    while pending:
        news = (graph[pending.pop()] & graph.keys()) - found
        found |= news
        pending += news
    return found


def test_no_layer_imports_one_above_it() -> None:
    """In a process of its own: import-linter sets up logging for itself."""
    command = [sys.executable, "-c", LINT, "--no-cache", "--no-logo", "pyproject.toml"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "1 kept, 0 broken" in linted.stdout


def test_no_module_imports_itself_by_way_of_others(graph: dict[str, set[str]]) -> None:
    circles = {frozenset(ring) for name in graph if len(ring := circle_of(graph, name)) > 1}
    assert not circles, [sorted(ring) for ring in circles]


def circle_of(graph: Mapping[str, set[str]], name: str) -> set[str]:
    """The modules that this one imports and that import this one, itself among them."""
    return {other for other in reachable(graph, name) if name in reachable(graph, other)}


def test_the_protocol_has_no_thread_clock_or_input(graph: dict[str, set[str]]) -> None:
    impure = {
        (name, imported)
        for name in graph
        if name.startswith("elastic_core.protocol.")
        for imported in graph[name]
        if imported.partition(".")[0] in IMPURE
    }
    assert not impure


def test_the_wardens_process_imports_the_standard_library_and_itself(graph: dict[str, set[str]]) -> None:
    process = reachable(graph, "elastic_core.warden.process")
    assert {name for name in process if not name.startswith("elastic_core.warden")} == set(OUTSIDE_WARDEN)
    imported = {name.partition(".")[0] for module in process for name in graph[module]}
    assert imported <= {*sys.stdlib_module_names, "elastic_core"}


def test_the_checks_see_what_they_are_to_see(graph: dict[str, set[str]]) -> None:
    assert "elastic_core.warden.messages" in graph["elastic_core.agent.preload"], "for type checkers"
    assert "elastic_core.agent.membership" in graph["elastic_core.api.run_agent"], "in a function"
    rings = {"a": {"b"}, "b": {"c"}, "c": {"b"}}
    assert [circle_of(rings, name) for name in rings] == [{"a"}, {"b", "c"}, {"b", "c"}]


@pytest.mark.parametrize("distribution", [path.parent for path in DISTRIBUTIONS], ids=lambda path: path.name)
def test_a_plugin_imports_no_other_plugin(distribution: Path) -> None:
    others = {path.parent.name for path in DISTRIBUTIONS} - {distribution.name, FOR_TORCHRUN}
    modules = modules_below(distribution.parent)
    imported = {name.partition(".")[0] for path in modules.values() for name in imported_by(path, modules)}
    assert not imported & others


def test_core_imports_no_plugin(graph: dict[str, set[str]]) -> None:
    imported = {name.partition(".")[0] for names in graph.values() for name in names}
    assert not imported & {"torch", "redis", "etcd", *(path.parent.name for path in DISTRIBUTIONS)}
