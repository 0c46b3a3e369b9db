"""Which directories are known to be on a file system that all nodes see."""

from __future__ import annotations

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
    found = shared_directory.find({"SLURM_SUBMIT_DIR": directory}, MOUNTS)
    assert found == ((f"{directory}/.elastic", "SLURM_SUBMIT_DIR") if shared else None)


def test_the_home_directory_is_the_second_choice() -> None:
    environ = {"SLURM_SUBMIT_DIR": "/tmp/job", "HOME": "/home/me"}
    assert shared_directory.find(environ, MOUNTS) == ("/home/me/.elastic", "HOME")


@pytest.mark.parametrize(
    ("named", "found"), [("/data/x", ("/data/x/.elastic", "ELASTIC_SHARED_DIRECTORY")), ("", None)]
)
def test_a_directory_that_is_named_by_hand_wins_and_an_empty_name_means_none(
    named: str, found: tuple[str, str] | None
) -> None:
    environ = {"SLURM_SUBMIT_DIR": "/home/me", "ELASTIC_SHARED_DIRECTORY": named}
    assert shared_directory.find(environ, MOUNTS) == found


def test_of_two_mounts_at_one_point_the_later_one_counts() -> None:
    over = MOUNTS + "40 22 0:50 / /home rw - tmpfs tmpfs rw\n"
    assert shared_directory.find({"SLURM_SUBMIT_DIR": "/home/me"}, over) is None
