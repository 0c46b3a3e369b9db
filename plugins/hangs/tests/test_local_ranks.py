"""The search for the processes of this host that are a job's workers."""

from __future__ import annotations

import pytest

from elastic_core.errors import UsageError
from elastic_hangs.lookup import LocalProcess, locate_local, workers_of
from elastic_operate.job_store import NoStoreError


def process(pid: int, *, rank: int, uid: str = "a", number: int = 1, started: int = 0) -> LocalProcess:
    return LocalProcess(uid, number, rank, 4, started, pid)


@pytest.mark.parametrize(
    ("processes", "pids"),
    [
        pytest.param([], [], id="none"),
        pytest.param([process(8, rank=1), process(7, rank=0)], [7, 8], id="by rank"),
        pytest.param([process(5, rank=0, started=9), process(7, rank=0)], [7], id="not what a worker started"),
        pytest.param([process(9, rank=0), process(7, rank=0)], [7], id="of the same tick the lower pid"),
        pytest.param([process(7, rank=0), process(9, rank=1, number=2)], [9], id="not of a round before"),
        pytest.param([process(7, rank=0, number=2), process(9, rank=1, uid="b")], [7, 9], id="two agents"),
    ],
)
def test_which_processes_are_workers(processes: list[LocalProcess], pids: list[int]) -> None:
    assert [worker.pid for worker in workers_of("job", processes)] == pids


def test_two_jobs_of_one_id_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Several jobs with the id 'job' have a rank 0 .* processes 7 and 9"):
        workers_of("job", [process(7, rank=0), process(9, rank=0, uid="b")])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nothing", "No job. No worker of job 'nothing' was found on this host, among this user's processes."),
        (None, "No job."),
    ],
)
def test_a_job_that_is_not_there_is_named_only_if_the_user_has_named_it(named: str | None, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        locate_local(named, NoStoreError("No job."), full=False)
    assert raised.value.message == message
