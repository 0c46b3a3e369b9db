"""Joining the workers of a round, and leaving them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace, TracebackType

import pytest

from elastic_core.errors import UsageError
from elastic_torch import process_group
from elastic_torch.process_group import device_index, init_process_group


@pytest.mark.parametrize(
    ("environ", "count", "index"),
    [
        ({}, 1, 0),
        ({"LOCAL_RANK": "3"}, 4, 3),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "3"}, 1, 0),
    ],
)
def test_a_worker_takes_the_gpu_of_its_local_rank(environ: dict[str, str], count: int, index: int) -> None:
    assert device_index(environ, count) == index


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"LOCAL_RANK": "2"}, 2),
        ({"LOCAL_RANK": "1"}, 1),
        ({"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"LOCAL_RANK": "0"}, 0),
    ],
)
def test_two_workers_never_share_a_gpu_by_mistake(environ: dict[str, str], count: int) -> None:
    said = rf"LOCAL_RANK is {environ['LOCAL_RANK']}, and this worker sees {count} GPU\(s\)"
    with pytest.raises(UsageError, match=said):
        device_index(environ, count)


def test_outside_of_a_launcher_it_says_how_to_start_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set"):
        init_process_group()


SCRIPT = """
import atexit, sys
import torch.distributed as dist
import elastic_torch

destroy = dist.destroy_process_group
dist.destroy_process_group = lambda *args: (print("destroyed", flush=True), destroy(*args))
elastic_torch.init_process_group(timeout=60)
print(dist.get_backend(), dist.is_initialized())
keep = dist.group.WORLD
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ["gloo True", "destroyed"]),
        ("destroy()", 0, ["gloo True"]),
        ("sys.exit(3)", 3, ["gloo True", "destroyed"]),
        ("raise ValueError('no such layer')", 1, ["gloo True"]),
        ("raise KeyboardInterrupt", -2, ["gloo True", "destroyed"]),
        ("import code; code.InteractiveInterpreter().runsource('1/0')", 0, ["gloo True", "destroyed"]),
    ],
    ids=["end", "by hand", "exit", "exception", "Ctrl-C", "an exception that it survived"],
)
def test_the_group_is_destroyed_at_the_end_but_not_after_an_exception(
    tmp_path: Path, end: str, code: int, said: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(end=end))
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **place}, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout.splitlines()) == (code, said), done.stderr


def raised(error: BaseException, *, ends: bool) -> BaseException:
    """Return an error with the traceback of one that has ended the program, or of one that a caller has printed."""
    inner = frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return error.with_traceback(TracebackType(None, frame if ends else inner, 0, 1))


@pytest.mark.parametrize(
    ("last", "destroyed"),
    [
        pytest.param(None, True, id="none"),
        pytest.param(raised(ValueError("x"), ends=True), False, id="one that ends the program"),
        pytest.param(raised(ValueError("x"), ends=False), True, id="one of a callback, which it survived"),
        pytest.param(raised(KeyboardInterrupt(), ends=True), True, id="Ctrl-C"),
        pytest.param(SyntaxError("x"), False, id="a program that cannot be compiled"),
    ],
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_last_exception_decides_whether_the_group_is_destroyed_and_a_reference_to_gloos_stays(
    monkeypatch: pytest.MonkeyPatch, last: BaseException | None, destroyed: bool, backend: str
) -> None:
    if last is None:
        monkeypatch.delattr(sys, "last_value", raising=False)
    else:
        monkeypatch.setattr(sys, "last_value", last, raising=False)
    group, calls = object(), list[str]()
    dist = SimpleNamespace(
        is_initialized=lambda: True,
        get_backend=lambda: backend,
        group=SimpleNamespace(WORLD=group),
        destroy_process_group=lambda: calls.append("destroyed"),
    )
    monkeypatch.setattr(process_group, "dist", dist)
    before = sys.getrefcount(group)
    process_group._leave()
    assert calls == (["destroyed"] if destroyed else [])
    assert sys.getrefcount(group) - before == (1 if backend == "gloo" else 0)


def test_a_group_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "dist", SimpleNamespace(is_initialized=lambda: False))
    process_group._leave()
