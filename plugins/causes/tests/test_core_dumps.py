"""The name of a core file, from the kernel's pattern; ``tests/test_failure_stories.py`` has a real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_causes.evidence import core_file_glob, describe_core_dump


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "expected"),
    [
        ("core", False, "core"),
        ("core", True, "core.42"),
        ("core.%p", False, "core.42"),
        ("core.%p", True, "core.42"),
        ("/cores/%e.%p.%t", False, "/cores/*.42.*"),
        ("/cores/%h-%P", True, "/cores/*-*.42"),
        ("100%%", False, "100%"),
        ("%%p", True, "%p.42"),
        ("core%", False, "core"),
        ("a[1]*?", False, "a[[]1][*][?]"),
        ("", True, None),
        ("|/usr/share/apport/apport -p%p", False, None),
    ],
)
def test_the_name_of_a_core_file(pattern: str, uses_pid: bool, expected: str | None) -> None:
    assert core_file_glob(pattern, 42, uses_pid=uses_pid) == expected


def settings(folder: Path, pattern: str, uses_pid: str = "0\n") -> Path:
    (folder / "core_pattern").write_text(f"{pattern}\n")
    (folder / "core_uses_pid").write_text(uses_pid)
    return folder


def test_the_newest_file_that_is_not_older_than_the_process_is_its_core_dump(tmp_path: Path) -> None:
    kernel = settings(tmp_path, "core.%p.%t")
    for name, written in (
        ("core.42.100", 100.0),
        ("core.42.200", 200.0),
        ("core.42.300", 300.0),
        ("core.7.400", 400.0),
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (written, written))
    (tmp_path / "core.42.999").mkdir()
    assert describe_core_dump(42, str(tmp_path), 150.0, kernel) == f"core dump: {tmp_path}/core.42.300"
    assert describe_core_dump(42, str(tmp_path), 301.0, kernel) == ""


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("|/usr/lib/systemd/systemd-coredump %P %u %g", "core dump: coredumpctl info 42"),
        ("|/usr/share/apport/apport -p%p", ""),
        ("core", ""),
    ],
)
def test_a_program_that_takes_core_dumps_is_named_where_it_is_known(tmp_path: Path, pattern: str, told: str) -> None:
    assert describe_core_dump(42, str(tmp_path), 0.0, settings(tmp_path, pattern)) == told


def test_without_the_kernels_settings_no_core_dump_is_known(tmp_path: Path) -> None:
    assert describe_core_dump(42, str(tmp_path), 0.0, tmp_path) == ""
