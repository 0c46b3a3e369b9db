"""Which directories are known to be on a file system that all nodes see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_slurm import shared_directory

MOUNTS = r"""
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /home rw,relatime shared:20 - nfs4 nas:/home rw,vers=4.2
31 22 0:41 / /scratch rw,noatime - lustre 10.0.0.1@tcp:/scratch rw
32 22 0:42 / /scratch/local rw - xfs /dev/nvme0n1 rw
33 22 0:43 / /mnt/my\040data rw - beegfs beegfs_nodev rw
34 22 0:44 / /s3 rw - fuse.s3fs s3fs rw
35 22 0:45 / /host rw - virtiofs host rw
36 22 0:46 / /tmp rw - tmpfs tmpfs rw
"""


FOLDER = f".elastic-{os.getuid()}"


def find(environ: dict[str, str], mounts: str = MOUNTS) -> tuple[str, str] | None:
    """Return what is found if each directory is there as it is named."""
    return shared_directory.find(environ, lambda: mounts, lambda directory: directory)


@pytest.mark.parametrize(
    ("directory", "shared"),
    [
        ("/home/me/project", True),
        ("/home", True),
        ("/homework", False),
        ("/scratch/me", True),
        ("/scratch/local/me", False),
        ("/mnt/my data", True),
        ("/s3/bucket", False),
        ("/host/me", False),
        ("/tmp", False),
        ("/root", False),
    ],
)
def test_a_directory_is_shared_by_the_type_of_its_mount(directory: str, shared: bool) -> None:
    found = find({"SLURM_SUBMIT_DIR": directory})
    assert found == ((f"{directory}/{FOLDER}", "SLURM_SUBMIT_DIR") if shared else None)


def test_the_home_directory_is_the_second_choice() -> None:
    environ = {"SLURM_SUBMIT_DIR": "/tmp/job", "HOME": "/home/me"}
    assert find(environ) == (f"/home/me/{FOLDER}", "HOME")


@pytest.mark.parametrize(
    ("named", "found"), [("/data/x", (f"/data/x/{FOLDER}", "ELASTIC_SHARED_DIRECTORY")), ("", None)]
)
def test_a_directory_that_is_named_by_hand_wins_and_an_empty_name_means_none(
    named: str, found: tuple[str, str] | None
) -> None:
    environ = {"SLURM_SUBMIT_DIR": "/home/me", "ELASTIC_SHARED_DIRECTORY": named}
    assert find(environ) == found


def test_of_two_mounts_at_one_point_the_later_one_counts() -> None:
    over = MOUNTS + "40 22 0:50 / /home rw - tmpfs tmpfs rw\n"
    assert find({"SLURM_SUBMIT_DIR": "/home/me"}, over) is None


def test_a_directory_in_which_no_folder_can_be_made_is_passed_over() -> None:
    environ = {"SLURM_SUBMIT_DIR": "/scratch/project", "HOME": "/home/me"}
    usable = {"/home/me": "/home/me"}
    assert shared_directory.find(environ, lambda: MOUNTS, usable.get) == (f"/home/me/{FOLDER}", "HOME")


def test_the_mount_is_that_of_the_directory_which_a_link_names() -> None:
    links = {"/root/me": "/home/me", "/home/you": "/tmp/you"}
    environ = {"SLURM_SUBMIT_DIR": "/home/you", "HOME": "/root/me"}
    assert shared_directory.find(environ, lambda: MOUNTS, links.get) == (f"/root/me/{FOLDER}", "HOME")


def test_the_mounts_are_read_once_the_automounter_has_mounted_the_directory() -> None:
    mounts = MOUNTS.replace("nfs4 nas:/home", "autofs auto.home")

    def mounting(directory: str) -> str:
        nonlocal mounts
        mounts += f"40 30 0:50 / {directory} rw - nfs4 nas:{directory} rw\n"
        return directory

    found = shared_directory.find({"SLURM_SUBMIT_DIR": "/home/me"}, lambda: mounts, mounting)
    assert found == (f"/home/me/{FOLDER}", "SLURM_SUBMIT_DIR")


def test_a_directory_is_resolved_if_it_is_there_and_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert shared_directory.resolve(str(tmp_path / "link")) == os.path.realpath(tmp_path)
    assert shared_directory.resolve(str(tmp_path / "none")) is None
    (tmp_path / "file").touch()
    assert shared_directory.resolve(str(tmp_path / "file")) is None
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert shared_directory.resolve(str(tmp_path)) is None
