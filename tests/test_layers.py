"""The structure of the sources: layers and layouts of packages, and the lists of this repository's distributions.

``pyproject.toml`` has the layers, for import-linter. What that cannot say is checked here, over the syntax trees:
imports inside functions and those for type checkers count like all others.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from elastic_core.distributions import distributions
from elastic_core.plugins.entry_points import Catalogue, Group
from elastic_core.plugins.flags import declared_flags
from elastic_core.starter import FOLDER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODULES = ("failures", "library", "names")  # the keys of ``distributions.toml`` that are a module each
ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src"
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

IMPURE = {"importlib", "logging", "os", "platform", "socket", "subprocess", "threading", "time"}
"""Modules that protocol would need for a thread, a clock, or I/O."""
IN_WARDEN = {
    "elastic_core": "the root, which finds the public names of packages and imports nothing",
    "elastic_core.exit_codes": "names of exit codes, an enum: the warden says why it could not start a process",
    "elastic_core.host": "the package, which imports nothing",
    "elastic_core.host.processes": "the processes that it is to kill",
    "elastic_core.warden": "the package, which imports nothing",
    **{f"elastic_core.warden.{name}": "the process itself" for name in ("process", "spawn", "stop", "linux")},
    "elastic_core.warden.channel": "what it and the agent send each other",
    "elastic_core.warden.starter": "its side of the starter",
    "elastic_core.worker": "the package, which imports nothing",
    "elastic_core.worker.channel": "the name of the variable and the form of a packet, which a worker's process shares",
}
"""The modules of core that the warden's process imports, and why; ``client`` and ``messages`` are the agent's."""
FOR_TORCHRUN = "elastic_torchrun"
"""Backends may import it: they register handlers with plain torchrun, which elastic-torchrun makes when asked."""
REQUIRED = {
    "elastic_hangs": {"elastic_causes", "elastic_operate"},  # frames of stacks; a command finds its job
    "elastic_health": {"elastic_causes", "elastic_devices"},  # the limit of memory; the visible GPUs
}
"""The plugins that another one requires, and imports."""
DISTRIBUTIONS = sorted((ROOT / "plugins").glob("*/src/*/__init__.py"))
SOURCES = [CORE, *sorted(ROOT.glob("plugins/*/src")), *sorted(ROOT.glob("examples/*/src"))]
PACKAGES = sorted(path for source in SOURCES for path in source.rglob("__init__.py"))
OTHER_NAMES = {
    "elastic_core": "elastic leader node supervisor",  # the command, and modules to begin with
    "elastic_warmstart": "__main__",  # a module of Python's start
    "warden": "exit_codes sitecustomize",
    "rendezvous": "protocol session",  # packages beside it
    "worker": "init_process_group",
    "elastic_rdzv_c10d": "c10d",
    "elastic_rdzv_etcd": "etcd",
    "elastic_rdzv_file": "file",
    "elastic_rdzv_redis": "redis",
    "elastic_health": "disk memory shm",  # checks
    "elastic_metrics": "prometheus_client",
    "elastic_slurm": "scontrol",
    "elastic_torchrun": "main torchrun",
    "elastic_torch_save": "elastic_core",
}
"""Names that the layout of a package quotes and that are no modules of it, in lower case and without a dot."""
MOST_LINES = 600  # of a module, as in CONTRIBUTING.md


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


def test_the_contracts_of_pyproject_are_kept() -> None:
    """In a process of its own: import-linter sets up logging for itself."""
    command = [sys.executable, "-c", LINT, "--no-cache", "--no-logo", "pyproject.toml"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "2 kept, 0 broken" in linted.stdout


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


def test_the_wardens_process_imports_the_standard_library_and_named_modules(graph: dict[str, set[str]]) -> None:
    packages = {name: imported | parents(name) for name, imported in graph.items()}
    process = reachable(packages, "elastic_core.warden.process")
    assert process == set(IN_WARDEN)
    imported = {name.partition(".")[0] for module in process for name in graph[module]}
    assert imported <= {*sys.stdlib_module_names, "elastic_core"}


def parents(name: str) -> set[str]:
    """The packages that are imported with a module, without the root, which imports nothing by itself."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(2, len(parts))}


def test_a_process_that_imports_the_warden_has_no_other_module_of_core() -> None:
    """As the warden runs, without site-packages."""
    script = f"import sys; sys.path.append({str(CORE)!r}); import elastic_core.warden.process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    found = {name for name in loaded.stdout.split() if name.partition(".")[0] == "elastic_core"}
    assert found == {"elastic_core", *IN_WARDEN}


def test_the_checks_see_what_they_are_to_see(graph: dict[str, set[str]]) -> None:
    assert "elastic_core.warden.messages" in graph["elastic_core.warden.client"], "for type checkers"
    assert "elastic_core.agent.membership" in graph["elastic_core.agent.start"], "in a function"
    rings = {"a": {"b"}, "b": {"c"}, "c": {"b"}}
    assert [circle_of(rings, name) for name in rings] == [{"a"}, {"b", "c"}, {"b", "c"}]


@pytest.mark.parametrize("distribution", [path.parent for path in DISTRIBUTIONS], ids=lambda path: path.name)
def test_a_plugin_imports_no_plugin_that_it_does_not_require(distribution: Path) -> None:
    allowed = {distribution.name, FOR_TORCHRUN} | REQUIRED.get(distribution.name, set())
    others = {path.parent.name for path in DISTRIBUTIONS} - allowed
    modules = modules_below(distribution.parent)
    imported = {name.partition(".")[0] for path in modules.values() for name in imported_by(path, modules)}
    assert not imported & others


def test_core_imports_no_plugin(graph: dict[str, set[str]]) -> None:
    imported = {name.partition(".")[0] for names in graph.values() for name in names}
    assert not imported & {"torch", "redis", "etcd", *(path.parent.name for path in DISTRIBUTIONS)}


def docstring(init: Path) -> str:
    return ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""


def layout(init: Path) -> tuple[set[str], set[str]]:
    """The modules of a package, and the names that the docstring of its ``__init__.py`` quotes."""
    package = init.parent
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    quoted = re.findall(r"``([a-z_][a-z0-9_]*)``|:mod:`(\w+)`", docstring(init))
    return modules - {"__init__"}, {name for names in quoted for name in names if name}


@pytest.mark.parametrize("init", PACKAGES, ids=lambda path: path.parent.name)
def test_the_docstring_of_a_package_names_its_modules_and_no_other(init: Path) -> None:
    modules, named = layout(init)
    others = set(OTHER_NAMES.get(init.parent.name, "").split())
    assert (sorted(modules - named), sorted(named - modules)) == ([], sorted(others))


def test_a_module_that_a_docstring_of_a_package_names_by_its_path_exists() -> None:
    modules = {name for source in SOURCES for name in modules_below(source)}
    paths = {path for init in PACKAGES for path in re.findall(r"``([a-z_0-9]+(?:\.[a-z_0-9]+)+)``", docstring(init))}
    paths |= {f"elastic_core.{path}" for path in paths}
    ours = {path for path in paths if ".".join(path.split(".")[:2]) in modules}
    assert "elastic_core.protocol.leader" in ours
    assert ours <= modules


def toml(path: Path) -> Any:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def folders(pattern: str) -> set[str]:
    """The paths of the repository that match, in which there is something to install, to import or to run."""
    return {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if [*path.glob("*.toml"), *path.rglob("*.py")]}


PLUGINS = {brings["folder"] for brings in distributions().values()}
EXAMPLES = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("examples/*/pyproject.toml")}
EXAMPLES -= {"examples/monitor"}  # its flag would be in the help and the pages of all: tests/test_watch_loss.py has it
PROJECTS = {folder: toml(ROOT / folder / "pyproject.toml") for folder in PLUGINS}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tox() -> ConfigParser:
    found = ConfigParser(interpolation=None)
    found.read(ROOT / "tox.ini", encoding="utf-8")
    return found


def test_every_folder_of_a_distribution_is_known() -> None:
    assert folders("plugins/*") == PLUGINS


MADE = runpy.run_path(str(ROOT / "docs" / "render_distributions.py"))["files"]()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_list_of_the_distributions_is_that_of_their_table(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run: python docs/render_distributions.py"


def test_make_and_tox_install_every_distribution(tox: ConfigParser) -> None:
    command = ["make", "--print-data-base", "--question", "help"]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    [installed] = re.findall(r"^DISTRIBUTIONS := (.*)$", known, re.MULTILINE)
    assert set(installed.split()) == {"core"} | PLUGINS | EXAMPLES
    assert installed_by(tox["distributions"]["deps"]) == {"core"} | PLUGINS | EXAMPLES
    for environment in ("e2e", "type"):
        assert "{[distributions]deps}" in tox[f"testenv:{environment}"]["deps"]


def test_tox_tests_every_plugin_alone(tox: ConfigParser) -> None:
    environments = re.split(r",\s*(?![^{]*})", tox["tox"]["env_list"])
    assert {Path(plugin).name for plugin in PLUGINS} <= {*environments}
    assert not [name for name in tox if name.startswith("testenv:") and f"plugins/{name[8:]}" in PLUGINS]
    assert "./plugins/{env_name}\n" in tox["testenv"]["deps"]
    assert tox["testenv"]["commands"].startswith("pytest plugins/{env_name}/tests ")


def installed_by(deps: str) -> set[str]:
    """The folders of this repository among the lines of a tox environment, without their extras."""
    return set(re.findall(r"^\./([\w/]+)", deps, re.MULTILINE))


def test_tox_and_make_check_the_types_of_one_list(tox: ConfigParser) -> None:
    [typed] = re.findall(r"^TYPED := (.*)$", MAKEFILE, re.MULTILINE)
    assert tox["testenv:type"]["commands"] == f"mypy {typed} {{posargs}}"


def test_every_plugin_has_its_sources_in_src() -> None:
    assert folders("plugins/*/src") == {f"{plugin}/src" for plugin in PLUGINS}


def test_core_knows_every_distribution_and_what_it_brings() -> None:
    """But for the handlers, which torchrun asks for; ``--rdzv_backend`` has a backend for each."""
    kinds = {group.key: group.kind for group in Group if group not in (Group.HANDLERS, Group.FLAGS)}
    flags = dict[str, list[str]]()
    catalogue = Catalogue.read()
    for name, flag in declared_flags(catalogue).items():
        flags.setdefault(catalogue.find(flag.reader, Group.FLAGS).distribution, []).extend(
            filter(None, (name, flag.off))
        )
    assert (ROOT / "distributions.toml").resolve() == CORE / "elastic_core" / "distributions.toml"
    found = {}
    for folder, project in PROJECTS.items():
        declared = project["project"].get("entry-points", {})
        brings = {kinds[group]: sorted(names) for group, names in declared.items() if group in kinds}
        name = project["project"]["name"]
        more: dict[str, object] = {"all": False} if name == "elastic-testing" else {}
        more |= {"flags": sorted(flags[name])} if name in flags else {}
        needed = {need.partition("~")[0] for need in project["project"]["dependencies"]} & distributions().keys()
        more |= {"requires": sorted(needed)} if needed else {}
        included = project["tool"]["hatch"]["build"]["targets"]["wheel"].get("force-include", {}).values()
        if starters := [Path(file).stem for file in included if Path(file).parent.name == FOLDER]:
            more["starters"] = starters
        found[name] = {"folder": folder, **more, **brings}
    known = {
        name: {
            kind: names if kind in ("folder", "all") else sorted(names)
            for kind, names in brings.items()
            if kind not in MODULES or find_spec(names) is None
        }
        for name, brings in distributions().items()
    }
    assert known == found
    assert [*known] == sorted(known)


def test_modules_have_at_most_600_lines() -> None:
    paths = {str(path.relative_to(source)): path for source in SOURCES for path in source.rglob("*.py")}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in paths.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
