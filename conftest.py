"""Hooks and fixtures of the tests of all distributions, such as the number of seeds of a randomized test."""

from __future__ import annotations

import os
import tempfile
import zlib

import pytest

FEW = 2
"""Seeds of everyday runs; ``make soak`` asks for many more."""
PLANS = 2_000
"""Plans that everyday runs play in the simulator, and how many of them are one test."""
BLOCK = 1_000
OUTAGE = 4.0
"""Seconds for which everyday runs do without their store: well beyond what makes a silent node a lost one in tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help = f"with how many seeds every test that takes a `seed` is run [{FEW}]"
    parser.addoption("--seeds", type=int, default=FEW, metavar="N", help=help)
    help = f"how many plans the simulator plays [{PLANS}]"
    parser.addoption("--plans", type=int, default=PLANS, metavar="N", help=help)
    help = f"for how many seconds jobs do without their store in a test that takes an `outage` [{OUTAGE:g}]"
    parser.addoption("--outage", type=float, default=OUTAGE, metavar="SECONDS", help=help)


@pytest.fixture
def outage(request: pytest.FixtureRequest) -> float:
    """Seconds for which a job does without its store."""
    seconds: float = request.config.getoption("--outage")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: `make soak` repeats it with many seeds, or a longer outage")
    config.addinivalue_line("markers", "variant: of a test that everyday runs have; only `make soak` takes it as well")
    config.addinivalue_line("markers", "slow: takes seconds, so `make check` leaves it to `make test`")
    text = "everyday(*ids, every=N): of the cases, only those of these ids, or each Nth; all others are variants"
    config.addinivalue_line("markers", text)
    # Agents of tests keep the files by which commands find jobs where the developer's own commands do not look.
    runtime = tempfile.TemporaryDirectory(prefix="elastic-tests-")
    config.add_cleanup(runtime.cleanup)
    os.environ["XDG_RUNTIME_DIR"] = runtime.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))
    if "block" in metafunc.fixturenames:
        plans = metafunc.config.getoption("--plans")
        blocks = [(first, min(BLOCK, plans - first)) for first in range(0, plans, BLOCK)]
        metafunc.parametrize("block", blocks, ids=[f"from-{first}" for first, _ in blocks])


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (mark := item.get_closest_marker("everyday")) is not None and not _is_everyday(item, mark):
            item.add_marker(pytest.mark.variant)
        if isinstance(item, pytest.Function) and {"seed", "block", "outage"} & set(item.fixturenames):
            item.add_marker(pytest.mark.soak)
        if item.get_closest_marker("variant"):
            item.add_marker(pytest.mark.soak)
    if config.getoption("--seeds") == FEW:
        variants = [item for item in items if item.get_closest_marker("variant")]
        config.hook.pytest_deselected(items=variants)
        items[:] = [item for item in items if item not in variants]
    jobs = config.rootpath / "tests"  # whole jobs take longest, so they begin first
    items.sort(key=lambda item: not item.path.is_relative_to(jobs))


def _is_everyday(item: pytest.Item, mark: pytest.Mark) -> bool:
    """Return True if everyday runs have this case of a test: an id stands for all ids that begin with it."""
    case = item.name.partition("[")[2].removesuffix("]")
    if every := mark.kwargs.get("every"):
        return zlib.crc32(case.encode()) % int(every) == 0
    return any(case == wanted or case.startswith(f"{wanted}-") for wanted in mark.args)
