"""What the tests of all distributions share: with how many seeds a test that draws lots is run."""

from __future__ import annotations

import pytest

FEW = 3
"""Seeds of everyday runs; ``make soak`` asks for many more."""
PLANS = 20_000
"""Plans that everyday runs play in the simulator, and how many of them are one test."""
BLOCK = 1_000


def pytest_addoption(parser: pytest.Parser) -> None:
    help = f"with how many seeds every test that takes a `seed` is run [{FEW}]"
    parser.addoption("--seeds", type=int, default=FEW, metavar="N", help=help)
    help = f"how many plans the simulator plays [{PLANS}]"
    parser.addoption("--plans", type=int, default=PLANS, metavar="N", help=help)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: draws lots from its seed; `make soak` repeats it with many")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))
    if "block" in metafunc.fixturenames:
        plans = metafunc.config.getoption("--plans")
        blocks = [(first, min(BLOCK, plans - first)) for first in range(0, plans, BLOCK)]
        metafunc.parametrize("block", blocks, ids=[f"from-{first}" for first, _ in blocks])


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and {"seed", "block"} & set(item.fixturenames):
            item.add_marker(pytest.mark.soak)
