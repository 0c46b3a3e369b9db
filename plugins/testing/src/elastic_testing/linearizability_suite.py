"""The contract between connections: the calls of several processes on one store are linearizable."""

# ruff: noqa: D102  (a test's name says what it checks)

from __future__ import annotations

import pytest

from elastic_testing.connections import Connections, MakeBackend
from elastic_testing.faults import BadLine, Keeper, LossyCalls
from elastic_testing.history import check_history
from elastic_testing.workload import work

CALLS = 1000  # of all processes together, or fewer, where those take longer than this
SECONDS = 1.0
RESTARTS = 1  # of the store, while they work


class LinearizabilityConformance(Connections):
    """Part of the suites for processes, bad lines and restarts, and tried with as many of these as a test class has."""

    @pytest.fixture
    def seed(self) -> int:
        """Of the random choices. Parametrize it, in a ``pytest_generate_tests``, to have more than one run."""
        return 0

    @pytest.fixture
    def line(self) -> BadLine | None:
        """See :class:`~elastic_testing.line_suite.LineConformance`; without one, whole calls are lost."""
        return None

    @pytest.fixture
    def keeper(self) -> Keeper | None:
        """See :class:`~elastic_testing.restart_suite.RestartConformance`; without one, nothing is restarted."""
        return None

    def test_the_calls_of_several_processes_are_linearizable(
        self, make_backend: MakeBackend, line: BadLine | None, keeper: Keeper | None, seed: int
    ) -> None:
        if line is None:
            line = LossyCalls()
            make_backend = line.through(make_backend)
        check_history(work(make_backend, line, keeper, calls=CALLS, seconds=SECONDS, restarts=RESTARTS, seed=str(seed)))
