"""py-spy, where it is installed: a program in its place says what py-spy says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from elastic_hangs.stacks import PySpy, as_text, collect, main_stack

DUMP = [
    {
        "pid": 10,
        "thread_id": 140362608176000,
        "thread_name": "MainThread",
        "os_thread_id": 10,
        "active": True,
        "owns_gil": True,
        "frames": [
            {"name": "match", "filename": "/usr/lib/python3.11/re/__init__.py", "line": 166},
            {"name": "<module>", "filename": "/home/me/train.py", "line": 2},
        ],
    },
    {
        "pid": 10,
        "thread_id": 16,
        "thread_name": None,
        "os_thread_id": 11,
        "frames": [{"name": "load", "filename": "/home/me/data.py", "line": 5}],
    },
]
DENIED = "Error: Permission Denied: Try running again with elevated permissions by going 'sudo env ...'"


def spy(folder: Path, program: str) -> Path:
    """A command in the place of py-spy."""
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{program}\n")
    path.chmod(0o755)
    return path


def test_its_stacks_are_read_like_those_of_faulthandler() -> None:
    text = as_text(json.dumps(DUMP), 10)
    assert [frame.call for frame in main_stack(text)] == ["match (re/__init__.py:166)", "<module> (train.py:2)"]
    assert 'Thread 0x10 [python] (most recent call first):\n  File "/home/me/data.py", line 5 in load' in text


def test_a_process_that_does_not_answer_is_read_from_outside_without_a_pause(tmp_path: Path) -> None:
    program = f"assert sys.argv[1:4] == ['dump', '--json', '--nonblocking']\nprint({json.dumps(json.dumps(DUMP))})"
    command = spy(tmp_path, program.replace("10,", f"{os.getpid()},"))
    found = collect([os.getpid()], spy=PySpy(find=lambda: str(command)))[os.getpid()]
    assert found.place == "in match (re/__init__.py:166), called at train.py:2"


@pytest.mark.parametrize(
    "program",
    ["print('no JSON')", "print('[{}]')", "sys.exit('Error: Failed to suspend process')", "time.sleep(600)"],
)
def test_a_py_spy_that_fails_leaves_the_state_that_the_kernel_knows(tmp_path: Path, program: str) -> None:
    said: list[str] = []
    reader = PySpy(said.append, lambda: str(spy(tmp_path, program)))
    assert reader.dump([os.getpid()], seconds=1.0) == {}
    assert said == []


def test_that_it_lacks_the_permission_is_said_once_and_it_is_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    runs = tmp_path / "runs"
    reader = PySpy(
        said.append, lambda: str(spy(tmp_path, f"open({str(runs)!r}, 'a').write('x')\nsys.exit({DENIED!r})"))
    )
    assert reader.dump([os.getpid()]) == {}
    assert reader.dump([os.getpid()]) == {}
    assert runs.read_text() == "x"
    [message] = said
    assert "CAP_SYS_PTRACE" in message


def test_without_it_nothing_is_run() -> None:
    assert PySpy(find=lambda: None).dump([os.getpid()]) == {}
    assert PySpy(find=lambda: "/nonexistent/py-spy").dump([os.getpid()]) == {}
