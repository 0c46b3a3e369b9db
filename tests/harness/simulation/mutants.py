"""Breaks core on purpose, one line at a time, and sees whether the simulator notices.

``python -m simulation.mutants NAME`` plants one of the defects of :mod:`simulation.defects` and plays plans until one
of them is violated.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

from simulation.defects import MUTANTS
from simulation.mutant import Mutant
from simulation.thawing import thaw


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with one piece of its source exchanged."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        if source.count(self.mutant.old) != 1:
            raise SystemExit(
                f"mutant {self.mutant.name!r}: {self.mutant.module} has {source.count(self.mutant.old)} times, "
                f"not once: {self.mutant.old!r}"
            )
        code: CodeType = compile(source.replace(self.mutant.old, self.mutant.new), self.path, "exec")
        return code


class _Finder:
    """Finds the mutant's module before everybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            loader = _Loader(name, spec.origin)
            loader.mutant = self._mutant
            spec.loader = loader
        return spec


def plant(mutant: Mutant) -> None:
    """Plant a defect in this process; before anything of core is imported."""
    early = [name for name in sys.modules if name.startswith("elastic_core")]
    if early:
        raise SystemExit(f"too late to plant a mutant: {early[0]} is imported already")
    sys.meta_path.insert(0, _Finder(mutant))


def hunt(mutant: Mutant, most: int) -> str:
    """Play plans until one notices; a line about what came of it, '' if none did."""
    plant(mutant)
    thaw()
    from simulation.lots import draw
    from simulation.play import play

    for number in range(mutant.first, mutant.first + most):
        violation = play(draw(number // 2, mutant.profile, number % 2 == 1)).violation
        if violation is not None:
            return f"caught by plan {number} of {mutant.profile}: {str(violation).splitlines()[0]}"
    return ""


def main() -> int:
    """The command line; 1 if the mutant survives."""
    parser = argparse.ArgumentParser(prog="simulation.mutants", description=__doc__)
    parser.add_argument("name", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument("--most", type=int, help="plans that it may survive")
    options = parser.parse_args()
    mutant = next(mutant for mutant in MUTANTS if mutant.name == options.name)
    found = hunt(mutant, options.most or mutant.most)
    print(f"{mutant.name}: {found or 'survived'}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
