"""The same for what torch and numpy make of a process: random numbers, threads, devices, processes, compilers."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.parity.conftest import Pair, Parity

TORCH = ["torch"]
GROUPS = ["threads", "seeded", "state", "autograd", "saved", "together"]
TWO = "--nproc_per_node=2"


# Ranks and lives -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(parity: Parity) -> Pair:
    """Two workers, which do everything; one is killed, and both do it again."""
    flags = [TWO, "--max_restarts=1", "--redirects=3"]
    return parity.run("torch_facts.py", *GROUPS, preload=TORCH, flags=flags)


def test_workers_with_torch_recover(two: Pair) -> None:
    for job in two:
        assert job.exit_code == 0, job.output
        assert job.lives[1, 0].exit_code == -signal.SIGKILL
        assert [job.report(rank, 1)["together"]["life"] for rank in (0, 1)] == [1, 1]


@pytest.mark.parametrize("group", GROUPS)
def test_torch_is_the_same(two: Pair, group: str) -> None:
    two.assert_equal(group)


def test_workers_with_torch_print_the_same(two: Pair) -> None:
    fresh, warm = (
        [(life.stdout, life.stderr) for (_, number), life in job.lives.items() if number == 1] for job in two
    )
    assert warm == fresh


def test_unseeded_draws_differ_between_ranks_and_lives(two: Pair) -> None:
    for job in two:
        draws = [life.report["draws"] for life in job.lives.values()]
        assert len(draws) == 4
        for name in draws[0]:
            assert len({str(draw[name]) for draw in draws}) == 4, f"{name} of {job.start.value}: {draws}"


@pytest.fixture(scope="module")
def program(parity: Parity) -> Pair:
    """A program that tells everything, as those without torch do."""
    return parity.run("torch_program.py", "--lr", "0.1", preload=TORCH)


def test_a_program_with_torch_sees_the_same(program: Pair, fact: str) -> None:
    program.assert_equal(fact)


def test_a_worker_alone_runs_as_many_threads(program: Pair) -> None:
    program.assert_equal("parallel")


# Threads -------------------------------------------------------------------------------------------------------------

ONE_CPU = "import os, sys; os.sched_setaffinity(0, {0}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
THREADS: dict[str, Mapping[str, Any]] = {
    "variables": {"env": {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}},
    "one CPU": {"python": [sys.executable, "-c", ONE_CPU]},
    "bound": {"flags": ["--numa_binding=exclusive", TWO], "env": {"OMP_NUM_THREADS": "2"}},
}


@pytest.fixture(scope="module")
def threads(parity: Parity) -> Mapping[str, Callable[[], Pair]]:
    """Workers for which torch computes the number of threads differently."""
    return {
        name: parity.start("torch_facts.py", "threads", preload=TORCH, **options) for name, options in THREADS.items()
    }


@pytest.mark.variant
@pytest.mark.parametrize("name", THREADS)
def test_as_many_threads_run(threads: Mapping[str, Callable[[], Pair]], name: str) -> None:
    threads[name]().assert_equal("threads")


# Processes and compilers ---------------------------------------------------------------------------------------------

CHILDREN = ["load by fork", "spawn by fork", "load by spawn", "load by forkserver", "spawn by spawn"]
"""The uses of other processes in torch, and the method that starts them."""


@pytest.fixture(scope="module")
def children(parity: Parity) -> Pair:
    """A worker whose torch starts processes in every way."""
    return parity.run("torch_children.py", *CHILDREN, preload=TORCH)


@pytest.mark.parametrize("name", CHILDREN)
def test_torchs_processes_work_the_same(children: Pair, name: str) -> None:
    assert children.fresh.exit_code == 0, children.fresh.output
    children.assert_equal(name)


def test_a_worker_whose_torch_starts_processes_says_the_same(children: Pair) -> None:
    children.assert_equal()


@pytest.mark.variant
@pytest.mark.timeout(180)  # two compilers at once, 15 s of CPU time each
def test_torch_compiles_the_same(parity: Parity) -> None:
    assert shutil.which("g++"), "torch.compile needs a C++ compiler: apt-get install g++"
    # Without caches, or one side would find what the other has compiled.
    pair = parity.run("torch_compiled.py", preload=TORCH, env={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
    assert pair.fresh.report()["generated"] > 0, pair.fresh.output
    pair.assert_equal()
