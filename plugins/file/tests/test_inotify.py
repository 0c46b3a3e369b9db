"""An alarm wakes for changes where the kernel tells of them, looks again where it cannot, and can always be closed."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from pathlib import Path

import pytest

from elastic_rdzv_file import inotify
from elastic_rdzv_file.inotify import Alarm, told
from elastic_testing.race import PATIENCE, background


def test_only_file_systems_known_to_be_local_are_trusted(tmp_path: Path) -> None:
    assert told("/dev/shm")
    assert not told("/proc"), "not on the list"
    with pytest.raises(FileNotFoundError, match="missing"):
        told(f"{tmp_path}/missing")


@pytest.mark.parametrize("change", ["create", "link", "rename in", "rename within", "delete", "delete the directory"])
def test_changes_wake_a_sleeper(tmp_path: Path, change: str) -> None:
    watched, outside = tmp_path / "watched", tmp_path / "outside"
    watched.mkdir()
    outside.touch()
    if change in ("rename within", "delete"):
        (watched / "file").touch()
    alarm = Alarm()
    assert alarm.watch(str(watched))
    assert not alarm.watch(str(watched))
    assert not alarm.sleep(0)
    match change:
        case "create":
            (watched / "file").touch()
        case "link":
            os.link(outside, watched / "file")
        case "rename in":
            outside.rename(watched / "file")
        case "rename within":
            (watched / "file").rename(watched / "other")
        case "delete":
            (watched / "file").unlink()
        case "delete the directory":
            watched.rmdir()
    assert alarm.sleep(PATIENCE)
    assert not alarm.sleep(0), "one change wakes once"
    alarm.close()


def test_close_wakes_a_sleeper_and_gives_its_descriptors_back(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    alarm = Alarm()
    alarm.watch(str(tmp_path))
    future = background(lambda: alarm.sleep(10 * PATIENCE))
    alarm.close()
    assert future.result(PATIENCE)
    alarm.close()
    assert alarm.sleep(10 * PATIENCE), "it does not begin"
    assert not alarm.watch(f"{tmp_path}/other")
    assert os.listdir("/proc/self/fd") == before


def test_a_poll_interval_is_kept_whatever_the_file_system(tmp_path: Path) -> None:
    alarm = Alarm(0.01)
    assert not alarm.watch(str(tmp_path))
    assert not alarm.sleep(10 * PATIENCE)
    alarm.close()


def test_a_host_without_inotify_instances_is_looked_at_again_and_told_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Exhausted:
        statfs = inotify._libc.statfs

        @staticmethod
        def inotify_init1(flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(inotify, "_libc", Exhausted)
    inotify._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        alarms = [Alarm(), Alarm()]
        for alarm in alarms:
            alarm.watch("/dev/shm")
            assert not alarm.sleep(10 * PATIENCE)
            alarm.close()
    assert [record.message.split(", so")[0] for record in caplog.records] == [
        "inotify cannot be had (Too many open files)"
    ]


def test_a_missing_directory_is_an_error_and_no_reason_to_poll(tmp_path: Path) -> None:
    alarm = Alarm()
    with pytest.raises(FileNotFoundError, match="missing"):
        alarm.watch(f"{tmp_path}/missing")
    assert alarm.watch(str(tmp_path))
    alarm.close()
