from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_warmstart.checks import Facts, Wanted, objection

ENVIRONMENT = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": "/lib"}
FACTS = Facts(
    command=("python", "-u", "train.py"),
    environment=ENVIRONMENT,
    directory="/work",
    cpus=frozenset({0, 1}),
)
WANTED = Wanted(argv=("python", "-u", "train.py", "--lr", "1"), environment=ENVIRONMENT, directory="", cpus=None)
NO_OMP = {"PATH": "/bin"}


def with_variable(name: str, value: str = "1") -> Wanted:
    return replace(WANTED, environment={**ENVIRONMENT, name: value})


@pytest.mark.parametrize(
    "wanted",
    [
        WANTED,
        replace(WANTED, argv=FACTS.command),
        replace(WANTED, directory="/work"),
        with_variable("RANK"),
        with_variable("TORCHELASTIC_RUN_ID"),
        with_variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        with_variable("CUDA_VISIBLE_DEVICES"),
        replace(WANTED, cpus=frozenset({0, 1})),
        replace(WANTED, cpus=frozenset({0})),  # with OMP_NUM_THREADS libraries do not count CPUs
    ],
)
def test_a_worker_that_differs_in_what_is_read_late_may_be_forked(wanted: Wanted) -> None:
    assert objection(FACTS, wanted) is None


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (
            replace(WANTED, argv=("python", "-u", "other.py")),
            "the preloaded process is for python -u train.py, not for python -u other.py",
        ),
        (replace(WANTED, argv=("python", "-u")), "the preloaded process is for python -u train.py, not for python -u"),
        (replace(WANTED, directory="/tmp"), "the preloaded process runs in /work, not in /tmp"),
        (
            with_variable("OMP_PROC_BIND", "true"),
            "OMP_PROC_BIND is set, which ties threads to CPUs while libraries are loaded",
        ),
        (
            with_variable("GOMP_CPU_AFFINITY", "0"),
            "GOMP_CPU_AFFINITY is set, which ties threads to CPUs while libraries are loaded",
        ),
        (
            with_variable("OMP_NUM_THREADS", "2"),
            "OMP_NUM_THREADS differs from the preloaded process's, and is read while libraries are loaded",
        ),
        (
            with_variable("PYTHONPATH", "/other"),
            "PYTHONPATH differs from the preloaded process's, and is read while libraries are loaded",
        ),
        (
            replace(WANTED, environment={"PATH": "/bin"}),
            "OMP_NUM_THREADS, PYTHONPATH differs from the preloaded process's, and is read while libraries are loaded",
        ),
    ],
)
def test_a_worker_that_would_come_out_otherwise_is_not_forked(wanted: Wanted, reason: str) -> None:
    assert objection(FACTS, wanted) == reason


def test_a_worker_on_cpus_of_its_own_is_not_forked_where_libraries_have_counted_them() -> None:
    facts = replace(FACTS, environment=NO_OMP)
    wanted = replace(WANTED, environment=NO_OMP, cpus=frozenset({0}))
    reason = "it is bound to CPUs of its own without OMP_NUM_THREADS, and libraries count CPUs while they are loaded"
    assert objection(facts, wanted) == reason
    assert objection(facts, replace(wanted, cpus=facts.cpus)) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (
            replace(FACTS, tasks=("python", "blas", "a", "b", "c")),
            "the preloaded process has 5 threads, which a fork does not get (python, blas, a and 2 more)",
        ),
        (
            replace(FACTS, devices=("/dev/nvidia0",), initialised=("torch.cuda",)),
            "the preloaded process has set up a device, which a fork cannot use (torch.cuda, /dev/nvidia0)",
        ),
        (
            replace(FACTS, memory_policy=True),
            "a NUMA memory policy is set, and the preloaded process's memory was placed by it",
        ),
        (
            replace(FACTS, shadowed=(("json", "/home/me/json.py"), ("re", "/home/me/re.py"))),
            "/home/me/json.py takes the place of the preloaded module json",
        ),
    ],
)
def test_a_fork_server_that_cannot_be_shared_forks_nobody(facts: Facts, reason: str) -> None:
    assert objection(facts, WANTED) == reason
