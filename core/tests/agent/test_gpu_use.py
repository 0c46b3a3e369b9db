"""The use of GPUs, told by a program in the place of nvidia-smi."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic_core.agent.gpu_use import ARGUMENTS, MOST_FAILURES, GpuUse, Use, parse, users

PMON = """# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       4001     C     98     23      -      -      -      -    python
    1       4002     C      0      0      -      -      -      -    python
    1       4003     C      -      -      -      -      -      -    python
    2          -     -      -      -      -      -      -      -    -
"""


def smi(folder: Path, program: str) -> str:
    """A command in the place of nvidia-smi."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\nimport sys\n{program}\n")
    path.chmod(0o755)
    return str(path)


def finished(gpus: GpuUse) -> tuple[Use, ...]:
    """What the run that is under way tells."""
    assert gpus.thread is not None
    gpus.thread.join()
    return gpus.look(0.0)


def test_a_process_without_a_share_of_the_processors_uses_no_gpu() -> None:
    assert parse(PMON) == (Use(0, 4001),)


@pytest.mark.parametrize(
    ("uses", "here", "using"),
    [
        pytest.param((Use(0, 10),), {10, 11}, {10}, id="a worker"),
        pytest.param((Use(0, 99),), {10, 11, 99}, set(), id="a process of another job"),
        pytest.param((Use(1, 4001),), {10, 11}, {11}, id="a container's host tells its own pids"),
        pytest.param((Use(5, 4001),), {10, 11}, set(), id="a GPU of another container"),
        pytest.param((), {10, 11}, set(), id="nothing"),
    ],
)
def test_which_workers_use_a_gpu(uses: tuple[Use, ...], here: set[int], using: set[int]) -> None:
    assert users(uses, {10: 0, 11: 1}, here.__contains__) == using


def test_a_look_tells_what_the_last_run_has_found_and_begins_another(tmp_path: Path) -> None:
    program = f"assert sys.argv[1:] == {[*ARGUMENTS]}\nprint({PMON!r})"
    now = [0.0]
    gpus = GpuUse(lambda: smi(tmp_path, program), lambda: now[0])
    assert gpus.look(5.0) == ()
    assert finished(gpus) == (Use(0, 4001),)
    assert gpus.look(5.0) == (), "it is told once"
    assert gpus.thread is None, "the next run is not due"
    now[0] = 5.0
    gpus.look(5.0)
    assert finished(gpus) == (Use(0, 4001),)


@pytest.mark.parametrize("program", ["sys.exit('No devices were found')", "raise OSError"])
def test_after_three_failures_it_is_not_run_any_more_and_says_so_once(tmp_path: Path, program: str) -> None:
    now = [0.0]
    told: list[str] = []
    gpus = GpuUse(lambda: smi(tmp_path, program), lambda: now[0], told.append)
    for _ in range(MOST_FAILURES):
        now[0] += 10.0
        gpus.look(1.0)
        assert finished(gpus) == ()
    now[0] += 10.0
    gpus.look(1.0)
    assert gpus.thread is None
    assert len(told) == 1, "the reason is told once"
    assert "exit status 1" in told[0]


def test_nothing_is_run_where_there_is_no_nvidia_smi() -> None:
    gpus = GpuUse(lambda: None)
    assert gpus.look(1.0) == ()
    assert gpus.thread is None
