"""``python -m mutation``: try the mutants of everything that decides, and list those that no test notices."""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from mutation.operators import Mutant, functions, mutants
from mutation.server import Server

MODULES = (
    "leader",
    "failure_detector",
    "leader_view",
    "roster",
    "protocol.repair",
    "protocol.node",
    "admission",
    "leader_entries",
    "planned_stop",
    "counters",
    "ledger",
    "entries",
    "limits",
    "incidents",
    "protocol.questions",
    "session.join",
)
"""The modules that decide, by the last of their names, or as many of them as no other module of core ends with."""
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TESTS = (
    "core/tests/protocol",
    "core/tests/session",
    "core/tests/test_incidents.py",
)
EQUIVALENTS = HERE / "equivalents.json"
ARGUMENTS = ["-q", "-s", "-p", "no:cacheprovider", "-k", "not Backend", "--ignore-glob=*test_session*"]
"""Of pytest: a backend's conformance decides nothing of a run, and sessions wait more than they decide."""
WANTED = 90.0
"""Per cent of the mutants that are not equivalent, which are to be noticed."""


@dataclass(frozen=True)
class Result:
    """The outcome of a mutant."""

    module: str
    name: str
    line: int
    digest: str
    """Of its function, which may have changed since."""
    status: str
    """``killed``, ``survived``, ``equivalent``, or ``invalid`` if Python does not take it."""
    by: str
    """The test or the plan that noticed it, or how many did not, or why none can."""


def main() -> int:
    """Run the command line; return 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"the last names of some of [{' '.join(MODULES)}]")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name has this")
    parser.add_argument("--plans", type=int, default=1000, help="to play where no test notices the mutant [1000]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes [one per CPU]")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="a line a mutant [mutants.jsonl]")
    parser.add_argument("--tests", action="append", help=f"where tests are [{' and '.join(TESTS)}]")
    parser.add_argument("--again", action="store_true", help="try those again that have survived")
    parser.add_argument("--show", action="store_true", help="try none, only show what --results has")
    options = parser.parse_args()
    tried, equivalent = list(trials(options.modules or MODULES, options.only)), equivalents()
    known = {(one.module, one.name, one.digest): one for one in _read(options.results)}
    results, untried = [], []
    for mutant, tree, digest in tried:
        before = known.get((mutant.module, mutant.name, digest))
        if mutant.name in equivalent:
            results.append(_result(mutant, digest, "equivalent", equivalent[mutant.name]))
        elif before is not None and not (options.again and before.status == "survived"):
            results.append(before)
        else:
            untried.append((mutant, tree, digest))

    def done(mutant: Mutant, status: str, by: str) -> None:
        digest = next(digest for other, _, digest in untried if other is mutant)
        results.append(_result(mutant, digest, status, by))
        with options.results.open("a") as file:
            file.write(json.dumps(asdict(results[-1])) + "\n")

    if untried and not options.show:
        print(f"{len(tried)} mutants, {len(untried)} to try", flush=True)
        server = Server([(mutant, tree) for mutant, tree, _ in untried], options.jobs, options.plans, done)
        if code := pytest.main([*ARGUMENTS, *(str(ROOT / test) for test in options.tests or TESTS)], plugins=[server]):
            return int(code)
    return 0 if _summary(results) else 1


def find(ending: str) -> tuple[str, Path]:
    """Find the module of core whose name ends so; return its full name, and its file.

    Raises:
        SystemExit: There is none, or more than one.
    """
    core = importlib.util.find_spec("elastic_core")
    assert core is not None
    folder = Path(next(iter(core.submodule_search_locations or ())))
    paths = list(folder.rglob(ending.replace(".", "/") + ".py"))
    if len(paths) != 1:
        raise SystemExit(f"{len(paths)} modules of core are called {ending!r}, not one")
    return ".".join(("elastic_core", *paths[0].relative_to(folder).with_suffix("").parts)), paths[0]


def trials(modules: Sequence[str], only: str = "") -> Iterator[tuple[Mutant, ast.Module, str]]:
    """Yield the mutants whose name has ``only``, each with the tree of its module and the digest of its function."""
    for ending in modules:
        module, path = find(ending)
        importlib.import_module(module)
        tree = ast.parse(path.read_text())
        for function, definition in functions(tree):
            digest = hashlib.sha256(ast.dump(definition).encode()).hexdigest()[:8]
            yield from ((one, tree, digest) for one in mutants(module, function, definition) if only in one.name)


def equivalents() -> dict[str, str]:
    """Return the reasons why no test can notice some mutants, by the name of the mutant."""
    listed: dict[str, dict[str, str]] = json.loads(EQUIVALENTS.read_text())
    return {f"{name}: {change}": why for name, changes in listed.items() for change, why in changes.items()}


def _read(path: Path) -> Iterator[Result]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield Result(**json.loads(line))


def _result(mutant: Mutant, digest: str, status: str, by: str) -> Result:
    return Result(mutant.module, mutant.name, mutant.line, digest, status, by)


def _summary(results: Sequence[Result]) -> bool:
    """Print who survived, and a table; whether enough were noticed."""
    for one in results:
        if one.status in ("survived", "invalid"):
            print(f"{one.module.rpartition('.')[2]}.py:{one.line}: {one.name}: {one.status}: {one.by}")
    print(
        f"\n{'module':<12} {'mutants':>8} {'by tests':>9} {'by plans':>9} "
        f"{'equivalent':>11} {'survived':>9} {'noticed':>8}"
    )
    modules = dict.fromkeys(one.module for one in results)
    for title, part in [*((module, {module}) for module in modules), ("all", {*modules})]:
        count = Counter(_kind(one) for one in results if one.module in part)
        noticed = count["tests"] + count["plans"]
        share = 100 * noticed / max(1, noticed + count["survived"])
        print(
            f"{title.rpartition('.')[2]:<12} {count.total():>8} {count['tests']:>9} {count['plans']:>9} "
            f"{count['equivalent']:>11} {count['survived']:>9} {share:>7.1f}%"
        )
    return share >= WANTED


def _kind(result: Result) -> str:
    if result.status != "killed":
        return result.status
    return "plans" if "::" not in result.by else "tests"


if __name__ == "__main__":
    sys.exit(main())
