"""The checks of the host: real directories and small file systems, and files of the kernel as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from elastic_causes.oom import OomCounter
from elastic_core import RunConfig
from elastic_core.config.program import Program, ProgramKind
from elastic_health.host import check_disk, check_memory, check_shm, directories
from elastic_health.sizes import format_size, parse_share, parse_size

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
SLAB = f"slab_reclaimable {4 << 20}\nslab_unreclaimable {900 << 20}"
MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    {} kB\nSwapTotal:      0 kB\nSwapFree:       {} kB\n"
ON_A_TMPFS = """
import sys
from pathlib import Path
from elastic_health.host import check_disk, check_shm
place = Path(sys.argv[1])
try:
    with (place / "filler").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
except OSError:
    pass
print(check_disk({"--log_dir": place}).what)
print(check_shm(directory=place).what)
"""


def config(**settings: object) -> RunConfig:
    return RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), **settings)  # type: ignore[arg-type] # a table's


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("1K", 1024), ("1.5 g", 3 << 29), ("10GiB", 10 << 30), ("2TB", 2 << 40)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "ten", "10X", "-1G", "50%", "1e3"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_a_share_is_a_size_or_a_part_of_the_whole() -> None:
    assert parse_share("90%") == (0, 0.9)
    assert parse_share("10G") == (10 << 30, 0.0)
    for text in ("101%", "x%"):
        with pytest.raises(ValueError, match=r"x|101"):
            parse_share(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 29, "1.5 GiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_size(size) == text


def test_the_directories_are_those_that_the_run_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    for place in (logs, saved):
        place.mkdir()
    run = config(log_dir=logs, checkpoint_path=f"{saved}/step_*/model.pt")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert directories(run, "1K") == {"temporary files": tmp_path, "--log_dir": logs, "--checkpoint_path": saved}
    assert directories(run) == {"temporary files": tmp_path, "--log_dir": logs}, "the agent only reads checkpoints"
    assert directories(config(checkpoint_path=f"{saved}/later"), "1K") == {"temporary files": tmp_path}


def test_a_tmpdir_that_cannot_be_written_is_passed_over_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setenv("TEMP", str(tmp_path))
    assert directories(config()) == {"temporary files": tmp_path}
    assert check_disk(directories(config())) is None


def test_a_healthy_directory_has_nothing_to_say_and_keeps_no_file(tmp_path: Path) -> None:
    assert check_disk({"--log_dir": tmp_path}) is None
    assert check_disk({"--log_dir": tmp_path}, "1K") is None
    assert list(tmp_path.iterdir()) == []


def test_a_disk_with_less_than_is_asked_for_is_named_with_both_sizes(tmp_path: Path) -> None:
    found = check_disk({"--log_dir": tmp_path}, "1000000T")
    assert found is not None
    assert f"free on the disk of {tmp_path} (--log_dir), less than 1000000T" in found.what


@needs_root
def test_a_full_disk_and_a_full_shm_are_named(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", ON_A_TMPFS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    disk, shm = done.stdout.splitlines()
    assert disk == f"cannot write to {tmp_path} (--log_dir): No space left on device"
    assert shm == f"found 0 B of 64.0 KiB free in {tmp_path}, less than 64.0 KiB"


@needs_root
def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"'
    say = "import sys; from pathlib import Path; from elastic_health.host import check_disk; "
    say += "found = check_disk({'--log_dir': Path(sys.argv[1])}); print(found.what); print(found.advice)"
    command = ["unshare", "--mount", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", say, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"cannot write to {tmp_path} (--log_dir): Read-only file system",
        "Mount it for writing, or name another.",
    ]


def test_the_memory_of_this_host_is_enough_for_an_interpreter() -> None:
    assert check_memory() is None


def test_memory_counts_free_swap_and_names_what_is_missing(tmp_path: Path) -> None:
    meminfo, none = tmp_path / "meminfo", OomCounter(None)
    meminfo.write_text(MEMINFO.format(1000, 1_000_000))
    assert check_memory(meminfo=meminfo, counter=none) is None
    meminfo.write_text(MEMINFO.format(1000, 0))
    found = check_memory(meminfo=meminfo, counter=none)
    assert found is not None
    assert found.what == "found 1000.0 KiB of memory available to this host, less than 64.0 MiB"


@pytest.mark.parametrize("limited", ["job", "job/step"])
def test_the_limit_of_each_control_group_above_counts(tmp_path: Path, limited: str) -> None:
    own = tmp_path / "job" / "step"
    own.mkdir(parents=True)
    for group in (own, own.parent):
        (group / "memory.max").write_text(f"{1 << 30}\n" if str(group).endswith(limited) else "max\n")
        (group / "memory.current").write_text(f"{1 << 30}\n")
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {20 << 20}\nactive_file {8 << 20}\n{SLAB}\n")
    counter = OomCounter(own / "memory.events", own / "memory.max")
    found = check_memory(counter=counter)
    assert found is not None
    assert found.what == (
        f"found 32.0 MiB of memory available to its control group {tmp_path / limited}, whose limit is 1.0 GiB, "
        "less than 64.0 MiB"
    )
    assert check_memory("16M", counter=counter) is None


def test_the_page_cache_of_a_control_group_of_version_1_is_available(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text(f"{64 << 30}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{64 << 30}\n")
    counter = OomCounter(tmp_path / "memory.oom_control", tmp_path / "memory.limit_in_bytes")
    (tmp_path / "memory.stat").write_text(f"active_file 0\ntotal_active_file {60 << 30}\ntotal_inactive_file 0\n")
    assert check_memory("59G", counter=counter, meminfo=tmp_path / "none") is None
    (tmp_path / "memory.stat").write_text(f"active_file {60 << 30}\ntotal_active_file 0\ntotal_inactive_file 0\n")
    assert check_memory(counter=counter, meminfo=tmp_path / "none") is not None


def test_a_host_without_shm_is_healthy_unless_shm_is_asked_for(tmp_path: Path) -> None:
    missing = tmp_path / "shm"
    assert check_shm(directory=missing) is None
    found = check_shm("1G", directory=missing)
    assert found is not None
    assert found.what == f"cannot look at {missing}: No such file or directory"
