"""``python -m simulator.plant NAME``: plant a defect of :mod:`simulator.defects`, and play plans until one finds it."""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

from simulator.defect import Defect, Source, plant_in_source
from simulator.defects import DEFECTS
from simulator.mutable_dataclasses import use_mutable_dataclasses


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that compiles a module from a changed syntax tree."""

    planted: Source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.planted.tree, self.path, "exec")
        return code


class _Finder:
    """Finder of the module with the defect, ahead of all others."""

    def __init__(self, planted: Source) -> None:
        self._planted = planted

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._planted.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            loader = _Loader(name, spec.origin)
            loader.planted = self._planted
            spec.loader = loader
        return spec


def plant(defect: Defect) -> None:
    """Plant a defect in this process, before any module of core is imported."""
    early = [name for name in sys.modules if name.startswith("elastic_core")]
    if early:
        raise SystemExit(f"too late to plant a defect: {early[0]} is imported already")
    sys.meta_path.insert(0, _Finder(plant_in_source(defect)))


def find_violation(defect: Defect, most: int) -> str:
    """Play plans until one is violated; return a line about it, or '' if none is."""
    plant(defect)
    use_mutable_dataclasses()
    from simulator.play import play
    from simulator.profiles import draw

    for number in range(defect.first, defect.first + most):
        violation = play(draw(number // 2, defect.profile, number % 2 == 1)).violation
        if violation is not None:
            return f"caught by plan {number} of {defect.profile}: {str(violation).splitlines()[0]}"
    return ""


def main() -> int:
    """Run the command line; return 1 if the defect survives."""
    parser = argparse.ArgumentParser(prog="python -m simulator.plant", description=__doc__)
    parser.add_argument("name", choices=[defect.name for defect in DEFECTS])
    parser.add_argument("--most", type=int, help="plans that it may survive")
    options = parser.parse_args()
    defect = next(defect for defect in DEFECTS if defect.name == options.name)
    found = find_violation(defect, options.most or defect.most)
    print(f"{defect.name}: {found or 'survived'}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
