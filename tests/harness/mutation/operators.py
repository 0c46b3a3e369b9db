"""The mutants of a function: one small change of its syntax tree each."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""The boundary, and the opposite."""
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
READABLE = 12
"""Characters that a mutant's name quotes at least, where the change itself is shorter."""


@dataclass(frozen=True)
class Mutant:
    """A function with one small change."""

    module: str
    function: str
    """Its qualified name in the module."""
    line: int
    change: str
    """The old code, an arrow, and the new code, as Python; the same change at another place has a number."""
    edit: Edit

    @property
    def name(self) -> str:
        """The name of the mutant, wherever the function stands."""
        return f"{self.function}: {self.change}"


@dataclass(frozen=True)
class Edit:
    """A node that takes the place of another one."""

    parent: ast.AST
    field: str
    at: int | None
    """Its position, where the field is a list."""
    new: ast.AST | None

    def exchange(self, new: ast.AST | None) -> None:
        """Put a node there."""
        if self.at is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.at] = new


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield a module's functions and its classes' methods, but not those that return text, which is for people."""

    def within(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for stmt in body:
            if isinstance(stmt, ast.ClassDef):
                yield from within(stmt.body, f"{prefix}{stmt.name}.")
            elif isinstance(stmt, ast.FunctionDef) and not _returns(stmt, "str"):
                yield prefix + stmt.name, stmt

    return within(tree.body, "")


def mutants(module: str, function: str, definition: ast.FunctionDef) -> Iterator[Mutant]:
    """All mutants of a function, each different from all others. The tree must not be changed meanwhile."""
    original = ast.dump(definition)
    seen, numbers = {original}, Counter[str]()
    for parent, field, at, node, above in _places(definition, ()):
        for new in _variants(node, definition):
            edit = Edit(parent, field, at, new)
            quoted = _quoted(node, above)
            was = _text(quoted)
            edit.exchange(new)
            now, dump = _text(new if quoted is node else quoted), ast.dump(definition)
            edit.exchange(node)
            if dump in seen:
                continue
            seen.add(dump)
            change = f"{was} -> {now}"
            numbers[change] += 1
            number = f" #{numbers[change]}" if numbers[change] > 1 else ""
            line = next(part.lineno for part in (node, *reversed(above)) if isinstance(part, ast.stmt | ast.expr))
            yield Mutant(module, function, line, change + number, edit)
    assert ast.dump(definition) == original


_Place = tuple[ast.AST, str, int | None, ast.AST, tuple[ast.AST, ...]]


def _places(parent: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[_Place]:
    """Yield what may be mutated, outermost first, each with its parents; no annotation, default or text for people."""
    above = (*above, parent)
    for field, value in ast.iter_fields(parent):
        if field in ("decorator_list", "returns", "annotation", "exc", "pattern"):
            continue
        if field == "args" and isinstance(value, ast.arguments):
            continue
        single = not isinstance(value, list)
        for at, child in enumerate([value] if single else value):
            if isinstance(child, ast.AST) and not _is_text(child):
                yield parent, field, None if single else at, child, above
                yield from _places(child, above)


def _variants(node: ast.AST, definition: ast.FunctionDef) -> Iterator[ast.AST | None]:
    """Yield what may stand in the place of a node."""
    if _removable(node, definition):
        yield ast.Pass()
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield from (_with(node, ops=[*ops[:at], new(), *ops[at + 1 :]]) for new in COMPARISONS[type(op)])
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield _with(node, op=ARITHMETIC[type(op)]())
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield _with(node, func=ast.Name(CALLS[name], ast.Load()))
        case ast.Call(func=ast.Name(id="replace"), keywords=keywords):
            yield from (_with(node, keywords=keywords[:at] + keywords[at + 1 :]) for at in range(len(keywords)))
        case ast.If() | ast.IfExp() | ast.While():
            yield from (_with(node, test=ast.Constant(value)) for value in (True, False))
        case ast.comprehension(ifs=ifs):
            yield from (_with(node, ifs=ifs[:at] + ifs[at + 1 :]) for at in range(len(ifs)))
        case ast.match_case(guard=guard):
            yield _with(node, guard=ast.Constant(False))
            if guard is not None:
                yield _with(node, guard=None)
        case ast.Slice(lower=lower, upper=upper):
            yield from (_with(node, **{end: None}) for end, there in (("lower", lower), ("upper", upper)) if there)
        case ast.Tuple(elts=parts, ctx=ast.Load()) | ast.List(elts=parts, ctx=ast.Load()) | ast.Set(elts=parts):
            for at, part in enumerate(parts):
                if len(parts) > 1 and isinstance(part, ast.Starred):
                    yield _with(node, elts=parts[:at] + parts[at + 1 :])
        case ast.Return(value=ast.expr() as value):
            if _returns(definition, "bool"):
                yield from (_with(node, value=ast.Constant(result)) for result in (True, False))
            elif not isinstance(value, ast.Constant):
                yield _with(node, value=ast.Constant(None))


def _removable(node: ast.AST, definition: ast.FunctionDef) -> bool:
    """Return True if a statement can be left out, and what follows would still have all its variables."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue() | ast.For():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            stored = [part for part in ast.walk(definition) if isinstance(part, ast.Name) and part.id == name]
            given = any(part.arg == name for part in ast.walk(definition) if isinstance(part, ast.arg))
            return given or sum(isinstance(part.ctx, ast.Store) for part in stored) > 1
    return False


def _is_text(node: ast.AST) -> bool:
    """Return True if a node is text, which is for people."""
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.keyword(value=value) | ast.IfExp(body=value):
            return _is_text(value)
    return False


def _returns(definition: ast.FunctionDef, kind: str) -> bool:
    return isinstance(definition.returns, ast.Name) and definition.returns.id == kind


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _quoted(node: ast.AST, above: tuple[ast.AST, ...]) -> ast.AST:
    """Return the smallest part around a node that says where it is."""
    for part in (node, *reversed(above)):
        if isinstance(part, ast.stmt | ast.match_case) or (isinstance(part, ast.expr) and len(_text(part)) >= READABLE):
            return part
    return node


def _text(node: ast.AST | None) -> str:
    """Return the first line of a node, as Python."""
    return ast.unparse(node).splitlines()[0] if node is not None else ""
