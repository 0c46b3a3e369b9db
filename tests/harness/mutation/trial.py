"""Tries one mutant in a process of its own: the tests that come to its function, then plans of the simulator."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

from simulator import campaign, profiles
from simulator.plan import Plan
from simulator.play import play

from mutation.operators import Mutant

FOUND = Path(__file__).parents[2] / "simulator" / "found"


def install(mutant: Mutant, tree: ast.Module) -> None:
    """Give the mutant's code to the function, wherever it has been imported to.

    Args:
        mutant: Which.
        tree: The syntax tree of its module, in which the mutant's change is made.

    Raises:
        ValueError: Python does not compile it to a function that can take the other's place.
    """
    mutant.edit.exchange(mutant.edit.new)
    path = sys.modules[mutant.module].__file__ or ""
    code = compile(ast.fix_missing_locations(tree), path, "exec")
    for name in mutant.function.split("."):
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
    function_of(mutant.module, mutant.function).__code__ = code


def function_of(module: str, qualified: str) -> FunctionType:
    """Return a function or method of an imported module, without what it is wrapped in."""
    found: object = sys.modules[module]
    for name in qualified.split("."):
        found = inspect.getattr_static(found, name)
    while not isinstance(found, FunctionType):
        wrapped = [getattr(found, name, None) for name in ("fget", "func", "__func__", "__wrapped__")]
        found = next(inside for inside in wrapped if inside is not None)
    return found


def plans(count: int) -> Iterator[tuple[str, Plan]]:
    """Yield the plans that were found once, then so many of a campaign; each with its name."""
    for path in sorted(FOUND.glob("*.json")) if count else ():
        yield f"found plan {path.stem}", Plan.load(path.read_text())
    for number in range(count):
        yield f"plan {number}", profiles.draw(*campaign.parameters_of(number))


def noticed_by_plans(count: int, tell: Callable[[str], None]) -> str | None:
    """Return the name of the first plan that is violated, or raises, and what came of it; None without one.

    Args:
        count: StopPlans of a campaign to play.
        tell: Is told the name of each plan before it is played.
    """
    gc.disable()  # as a campaign does
    for number, (name, plan) in enumerate(plans(count)):
        if number % campaign.CHUNK == 0:
            gc.collect()
        tell(name)
        try:
            violation = play(plan).violation
        except Exception as exc:
            return f"{name}: {type(exc).__name__}"
        if violation is not None:
            return f"{name}: {violation.name}"
    return None
