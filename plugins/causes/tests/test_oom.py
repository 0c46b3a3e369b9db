"""The kernel's count of processes killed for want of memory: a real kill in a cgroup, and the files of v1 and v2."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_causes.oom import OomCounter, find_counter

V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
UNLIMITED = str(2**63 - 4096)
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of this test that has 64 MiB of memory, below this process's own."""
    counter = find_counter()
    assert counter.file is not None, "this system has no memory cgroup that can be read"
    directory = counter.file.parent / f"elastic-test-{uuid.uuid4().hex[:8]}"
    directory.mkdir()
    try:
        v2 = counter.file.name == "memory.events"
        (directory / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(64 << 20))
        yield directory
    finally:
        directory.rmdir()


def test_a_kill_for_want_of_memory_is_counted(cgroup: Path) -> None:
    files = [cgroup / name for name in ("memory.events", "memory.oom_control") if (cgroup / name).exists()]
    counter = OomCounter(files[0])
    before = counter.read()
    program = "import sys; sys.stdin.readline(); bytearray(1 << 30)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        process.communicate(b"\n")
    assert process.returncode == -9
    assert counter.read() == before + 1


def make(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "count", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.events": V2, "a/b/memory.max": "1024\n"}, 2, 1024),
        ("0::/a/b\n", {"memory.events": V2, "memory.max": "max\n"}, 2, None),
        ("5:cpu:/\n4:cpu,memory:/a\n0::/\n", {"memory/a/memory.oom_control": V1}, 5, None),
        (
            "4:memory:/a\n",
            {"memory/memory.oom_control": V1, "memory/memory.limit_in_bytes": UNLIMITED},
            5,
            None,
        ),
        ("0::/a\n", {}, 0, None),
        ("", {}, 0, None),
        ("0::/a\n", {"a/memory.events": "garbage"}, 0, None),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 in a container", "no files", "no cgroup", "garbage"],
)
def test_the_counter_of_a_cgroup(
    own: str, files: dict[str, str], count: int, limit: int | None, tmp_path: Path
) -> None:
    make(tmp_path / "root", files)
    (tmp_path / "own").write_text(own)
    counter = find_counter(tmp_path / "root", tmp_path / "own")
    assert (counter.read(), counter.limit_bytes()) == (count, limit)


def test_a_counter_that_disappears_counts_nothing(tmp_path: Path) -> None:
    make(tmp_path, {"memory.events": V2})
    counter = OomCounter(tmp_path / "memory.events")
    assert counter.read() == 2
    with contextlib.suppress(OSError):
        os.unlink(tmp_path / "memory.events")
    assert counter.read() == 0
