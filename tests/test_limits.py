"""Sizes and shapes that only shrink: of core and its packages, of classes and functions, of its surface, of the pages.

``limits.toml`` has a figure for each. A test fails where one is exceeded; it also fails where one has become too high,
so that what was gained is kept: then write the new figure there.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import elastic_core
from elastic_core import hookspecs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "elastic_core"
PLUGINS = sorted(ROOT.glob("plugins/*/src"))
EXAMPLES = sorted(ROOT.glob("examples/*/src"))
PUBLIC_MODULES = 25  # at most
LIMITS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))
SLACK = 1.05  # of a number of lines or words: a figure that is higher by more is too high
FIELDS, METHODS, PARAMETERS, LINES = 15, 20, 6, 60
"""The most fields and public methods of a class, parameters and lines of a function."""
WORDS_FOR_PEOPLE = {"why", "message", "place", "report", "detail", "reason"}
READS_WORDS = {"split", "startswith", "endswith", "partition", "rpartition", "removeprefix", "find", "index"}


def sources(*roots: Path) -> Iterator[tuple[str, ast.Module]]:
    """Each module below these folders: its path, from the one that has its distribution, and its syntax tree."""
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root.parent if root == CORE else root).as_posix()
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def lines_below(folder: Path, *, deep: bool = True) -> int:
    """The lines of the modules in a folder."""
    paths = folder.rglob("*.py") if deep else folder.glob("*.py")
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def check(found: Mapping[str, float], limits: Mapping[str, float], what: str, slack: float = 1.0) -> None:
    """Fail where a figure is above its limit, has none, or is so far below it that the limit is too high."""
    grown = [f"{key}: {found[key]:g}, limit {limits.get(key, 0):g}" for key in found if found[key] > limits.get(key, 0)]
    assert not grown, f"{what} may only shrink: {grown}"
    high = [f"{key} = {found.get(key, 0):g}" for key in limits if limits[key] > found.get(key, 0) * slack]
    assert not high, f"{what}: keep what was gained, in tests/limits.toml: {high}"


def test_core_and_its_packages_only_shrink() -> None:
    packages = {path.name: lines_below(path) for path in CORE.iterdir() if (path / "__init__.py").exists()}
    found = {"core": lines_below(CORE), "modules": lines_below(CORE, deep=False), **packages}
    check(found, LIMITS["lines"], "the lines of core", SLACK)


def test_distributions_only_shrink() -> None:
    """A new distribution brings its own figure. ``all`` has core and the examples' distributions, too."""
    found = {source.parent.name: lines_below(source) for source in PLUGINS}
    check({**found, "all": sum(map(lines_below, (CORE, *PLUGINS, *EXAMPLES)))}, LIMITS["distributions"], "lines", SLACK)


def test_the_agent_is_made_of_few_modules() -> None:
    found = {package: len([*(CORE / package).rglob("*.py")]) for package in LIMITS["number_of_modules"]}
    check(found, LIMITS["number_of_modules"], "the number of modules")


def strings(tree: ast.Module) -> Iterator[str]:
    """The string constants of a module that are no docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def names_of_plugins() -> set[str]:
    """Every name by which a string could mean a distribution of ours: its own, and that of its package."""
    names = set()
    for source in PLUGINS:
        project = tomllib.loads((source.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        names |= {project["name"], *(path.name for path in source.iterdir() if path.is_dir())}
    return {name for name in names if not name.startswith("_")}


def test_core_names_no_plugin() -> None:
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names_of_plugins(), key=len)[::-1]))
    found = {
        module: count
        for module, tree in sources(CORE)
        if (count := sum(bool(pattern.search(text)) for text in strings(tree)))
    }
    check(found, LIMITS["names_of_plugins"], "strings of core that name a plugin")


def test_plugins_import_public_modules_of_core_alone() -> None:
    """Those of ``elastic_core.PUBLIC``, and each of them has a plugin that needs it."""
    imported = set()
    for _, tree in sources(*PLUGINS, *EXAMPLES):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {path if is_module(path) else node.module for path in names.values()}
    imported = {name for name in imported if name.partition(".")[0] == "elastic_core"}
    assert sorted(imported - elastic_core.PUBLIC.keys()) == [], "not public"
    assert sorted(elastic_core.PUBLIC.keys() - imported) == [], "public for no plugin"
    assert len(elastic_core.PUBLIC) <= PUBLIC_MODULES


def is_module(name: str) -> bool:
    """Whether this is a module or a package of core."""
    path = CORE.parent / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def hooks() -> list[str]:
    return [name for name in vars(hookspecs) if name.startswith("elastic_")]


def test_each_hook_has_a_user() -> None:
    """An implementation in core or in a distribution of this repository, an example among them."""
    implemented = {
        node.name
        for _, tree in sources(CORE, *PLUGINS, *EXAMPLES)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("hookimpl" in ast.unparse(one) for one in node.decorator_list)
    }
    check({name: 1 for name in hooks() if name not in implemented}, LIMITS["hooks_without_a_user"], "unused hooks")


def fields_of(node: ast.ClassDef) -> int:
    """The number of fields of a class: those that its body declares, or else those that its methods set."""
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    written = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and is_set_on_self(each)}
    return len(declared | written)


def is_set_on_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def public_methods_of(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef) and not each.name.startswith("_") for each in node.body)


def parameters_of(node: ast.FunctionDef) -> int:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in every if each.arg not in ("self", "cls")])


@cache
def shapes() -> tuple[tuple[str, str, int], ...]:
    return tuple(shapes_of_core())


def shapes_of_core() -> Iterator[tuple[str, str, int]]:
    """Every shape that is out of the ordinary: its kind, where it is, and its size."""
    for module, tree in sources(CORE):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield "fields", f"{module}::{node.name}", fields_of(node)
                yield "public_methods", f"{module}::{node.name}", public_methods_of(node)
            elif isinstance(node, ast.FunctionDef):
                where = f"{module}::{node.name}"
                yield "parameters", where, parameters_of(node)
                yield "function_lines", where, (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize(
    ("kind", "most"),
    [("fields", FIELDS), ("public_methods", METHODS), ("parameters", PARAMETERS), ("function_lines", LINES)],
)
def test_classes_and_functions_are_small_but_for_those_of_today(kind: str, most: int) -> None:
    found: dict[str, float] = {}
    for each, where, size in shapes():
        if each == kind and size > most:
            found[where] = max(size, found.get(where, 0))
    check(found, LIMITS[kind], f"{kind} above {most}")


def test_no_decision_of_the_protocol_is_taken_on_words() -> None:
    """Texts made for people are not taken apart, but where they are put together."""
    found: Counter[str] = Counter()
    for module, tree in sources(CORE):
        if "/cli/" in module or module.endswith("/report.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS_WORDS:
                found[module] += isinstance(node.func.value, ast.Attribute) and node.func.value.attr in WORDS_FOR_PEOPLE
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                searched = node.comparators[0]
                found[module] += isinstance(searched, ast.Attribute) and searched.attr in WORDS_FOR_PEOPLE
            elif isinstance(node, ast.Import) and "/protocol/" in module:
                found[module] += any(alias.name == "re" for alias in node.names)
    check(
        {module: count for module, count in found.items() if count}, LIMITS["decisions_on_words"], "decisions on words"
    )


def test_names_and_docstrings_are_plain() -> None:
    riddles = re.compile(r"def (test_(?:who|what|nobody|somebody)_\w+)")
    opening = re.compile(r'"""(?:What|Who|Whether|How|Where)\b')
    everywhere = [*CORE.rglob("*.py"), *(path for source in PLUGINS for path in source.rglob("*.py"))]
    folders = [ROOT / "tests", ROOT / "core" / "tests", *ROOT.glob("plugins/*/tests"), *ROOT.glob("examples/*/tests")]
    harness = [*(ROOT / "simulator").rglob("*.py")]
    tests = [path for folder in folders for path in folder.rglob("*.py")]

    def count(pattern: re.Pattern[str], paths: Iterable[Path]) -> int:
        return sum(len(pattern.findall(path.read_text(encoding="utf-8"))) for path in paths)

    found = {
        "test_names": count(riddles, [path for path in tests if path.name.startswith("test_")]),
        "docstrings_of_sources": count(opening, everywhere),
        "docstrings_of_harness": count(opening, [*harness, *(path for path in tests if "harness" in path.parts)]),
    }
    check(found, LIMITS["words"], "names and docstrings that a reader has to decode")


def test_the_pages_are_short() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if not {"internals", "reference"} & set(path.parts)]
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    check({"words": words}, LIMITS["docs"], "the words of the pages", SLACK)
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in pages}
    long = {name: length for name, length in lengths.items() if length > 400}
    check(long, LIMITS["long_pages"], "the lines of pages above 400", SLACK)
