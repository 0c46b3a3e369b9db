"""A planted defect: a piece of a function of core, and its replacement; both are found as syntax trees.

The function's module, line breaks and comments make no difference: a module can be renamed, moved or formatted. A
defect whose piece of code does not exist is an error.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("elastic_core", "simulator")
"""Packages that are searched for definitions."""


@dataclass(frozen=True)
class Defect:
    """A planted defect."""

    name: str
    within: str
    """The qualified name of a function, class or constant, without its module: ``_decide_halted``, ``RowWriter.run``.

    If several modules have such a piece of code, the module's last name goes before it: ``supervisor.FENCE_SHARE``.
    """
    old: str
    """An expression, or consecutive statements; it occurs exactly once in all definitions of that name."""
    new: str
    profile: str
    """The profile whose plans find it soonest."""
    most: int = 400
    """Plans that it may survive."""
    first: int = 0
    """The first plan to play, for a defect that few plans find."""


@dataclass(frozen=True)
class Source:
    """The source of a module that is not imported."""

    name: str
    path: Path
    tree: ast.Module


@dataclass(frozen=True)
class _Place:
    """The position of a piece of code: a field of a syntax node, and the index if that is a list."""

    source: Source
    node: ast.AST
    field: str
    at: int | None
    line: int


def plant_in_source(defect: Defect) -> Source:
    """Return the source of the defect's module, with the defect.

    Raises:
        LookupError: The piece of code occurs in no definition of that name, or more than once.
    """
    old, new = _parse(defect.old, defect.new)
    found: list[_Place] = []
    definitions = 0
    for source in sources(defect.within.rpartition(".")[2]):
        module = source.name.rpartition(".")[2]
        for definition in _definitions(source.tree, defect.within.removeprefix(f"{module}.")):
            definitions += 1
            found += _places(source, definition, [ast.dump(node) for node in old])
    if len(found) != 1:
        where = ", ".join(f"{place.source.name}:{place.line}" for place in found)
        problem = f"{len(found)} times ({where})" if found else f"in none of {definitions} definition(s) of that name"
        raise LookupError(f"defect {defect.name!r}: {defect.within} has {defect.old!r} {problem}, not once")
    place = found[0]
    for node in new:
        for part in ast.walk(node):
            if "lineno" in part._attributes:
                part.lineno = part.end_lineno = place.line  # type: ignore[attr-defined]  # every one with a place has these
                part.col_offset = part.end_col_offset = 0  # type: ignore[attr-defined]
    if place.at is None:
        setattr(place.node, place.field, new[0])
    else:
        getattr(place.node, place.field)[place.at : place.at + len(old)] = new
    return place.source


def sources(word: str) -> Iterator[Source]:
    """Yield all modules whose text contains a word, without importing them."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in map(Path, spec.submodule_search_locations or ()):
            for path in sorted(folder.rglob("*.py")):
                if word in (text := _text(path)):
                    name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
                    yield Source(name.removesuffix(".__init__"), path, ast.parse(text))


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


def _parse(*texts: str) -> Iterator[list[ast.AST]]:
    """Return each text as a list of one expression, if all are expressions; else each as its statements."""
    bodies = [ast.parse(text).body for text in texts]
    values = [[stmt.value for stmt in body if isinstance(stmt, ast.Expr)] for body in bodies]
    single = all(len(body) == len(value) == 1 for body, value in zip(bodies, values, strict=True))
    return iter(values if single else bodies)  # type: ignore[arg-type]  # lists of nodes, both


def _definitions(node: ast.Module | ast.ClassDef, name: str) -> Iterator[ast.stmt]:
    """Yield the functions, classes and constants of a qualified name."""
    first, _, rest = name.partition(".")
    for stmt in node.body:
        match stmt:
            case ast.ClassDef() if rest and stmt.name == first:
                yield from _definitions(stmt, rest)
            case ast.ClassDef() | ast.FunctionDef() if stmt.name == name:
                yield stmt
            case ast.Assign(targets=[ast.Name(id=constant)]) | ast.AnnAssign(target=ast.Name(id=constant)):
                if constant == name:
                    yield stmt


def _places(source: Source, definition: ast.stmt, wanted: list[str]) -> Iterator[_Place]:
    """Yield the positions at which these nodes occur in sequence."""
    for node in ast.walk(definition):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                dumps = [ast.dump(part) if isinstance(part, ast.AST) else "" for part in value]
                for at in range(len(dumps) - len(wanted) + 1):
                    if dumps[at : at + len(wanted)] == wanted:
                        yield _Place(source, node, field, at, value[at].lineno)
            elif isinstance(value, ast.expr) and [ast.dump(value)] == wanted:
                yield _Place(source, node, field, None, value.lineno)
