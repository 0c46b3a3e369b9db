"""A process of the benchmark of snapshots: saves a state to the disk and loads it, in every way that is compared.

It prints one JSON object: by figure, seconds and bytes of memory; :data:`COPIES` are those of plain copies.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.states import KINDS, peak, plain_copies, timed, training
from elastic_torch import Disk

DISK_FIRST, DISK_LATER, DISK_OVER = "`Disk.save`: the first", "`Disk.save`: later ones", "`Disk.save`: until published"
SAVE, SYNC = "`torch.save`", "`torch.save`, and fsync"
DCP = "`dcp.save`, which syncs"
ASYNC, ASYNC_KEPT, ASYNC_OVER = (
    "`dcp.async_save`",
    "`dcp.async_save` with a stager that is kept",
    "`dcp.async_save`: until written",
)
SAVES = (DISK_FIRST, DISK_LATER, ASYNC, ASYNC_KEPT, SAVE, SYNC, DCP)
LATER = (DISK_OVER, ASYNC_OVER)
DISK_LOAD, LOAD, DCP_LOAD = "`Disk.load`, which verifies", "`torch.load`", "`dcp.load`"
LOADS = (DISK_LOAD, LOAD, DCP_LOAD)
COPIES = "copies"


class Book:
    """The measurements, by figure."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.memory: dict[str, int] = {}

    def take(self, figure: str, act: Callable[[], object], *, then: Callable[[], object] | None = None) -> float:
        """Time one thing; its memory is what is taken until ``then``, which waits for what goes on beside, is over."""
        with peak() as memory:
            took = timed(act)
            if then is not None:
                then()
        self.seconds.setdefault(figure, []).append(took)
        self.memory[figure] = max(memory[0], self.memory.get(figure, 0))
        return took


def sync(file: Path) -> None:
    """Let a file be on the disk."""
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())


def forget(folder: Path) -> None:
    """Let all that is read from a folder next come from the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def with_torch(book: Book, state: dict[str, Any], folder: Path) -> None:
    """``torch.save``: one file, one thread."""
    file = folder / "state.pt"
    book.take(SAVE, lambda: torch.save(state, file))
    file.unlink()

    def durably() -> None:
        torch.save(state, file)
        sync(file)

    book.take(SYNC, durably)
    forget(folder)
    book.take(LOAD, lambda: torch.load(file, weights_only=True))
    file.unlink()


def with_dcp(book: Book, state: dict[str, Any], folder: Path) -> None:
    """Torch's distributed checkpoints, as they come; and with a stager that keeps its memory from save to save."""
    stager = DefaultStager(StagingOptions(False, False, False, False))

    def asynchronous(figure: str, **options: Any) -> None:
        pending: list[Any] = []
        over = 0.0

        def wait() -> None:
            nonlocal over
            over = timed(pending[0].result)

        took = book.take(
            figure, lambda: pending.append(async_save(state, checkpoint_id=folder / "dcp", **options)), then=wait
        )
        book.seconds.setdefault(ASYNC_OVER, []).append(took + over)
        shutil.rmtree(folder / "dcp")

    asynchronous(ASYNC)
    asynchronous(ASYNC_KEPT, async_stager=stager)
    del book.seconds[ASYNC_KEPT]  # its first one is like any other
    asynchronous(ASYNC_KEPT, async_stager=stager)
    stager.close()
    del stager
    book.take(DCP, lambda: save(state, checkpoint_id=folder / "dcp"))
    forget(folder)
    book.take(DCP_LOAD, lambda: load(state, checkpoint_id=folder / "dcp"))
    shutil.rmtree(folder / "dcp")


def with_disk(book: Book, state: dict[str, Any], folder: Path) -> None:
    """Ours."""
    with Disk(folder / "disk", keep=1) as disk:
        for step, figure in enumerate((DISK_FIRST, DISK_LATER, DISK_LATER), start=1):
            begin: list[float] = []
            took = book.take(
                figure,
                lambda step=step: disk.save(state, step),  # type: ignore[misc]  # mypy cannot infer such a lambda
                then=lambda begin=begin: begin.append(timed(disk.wait)),  # type: ignore[misc]  # nor this one
            )
            book.seconds.setdefault(DISK_OVER, []).append(took + begin[0])
        forget(folder)
        book.take(DISK_LOAD, lambda: disk.load(state))
    shutil.rmtree(folder / "disk")


def measured(kind: str, size: int, folder: Path) -> dict[str, Any]:
    """All of it, once: what is printed."""
    trained = training(kind, size)
    trained.begin()
    book = Book()
    copies = plain_copies(trained.tensors())
    for ways in (with_disk, with_dcp, with_torch):
        ways(book, trained.state(), folder)
        copies += plain_copies(trained.tensors())
    assert trained.has_done(0)
    return {"seconds": book.seconds, "memory": book.memory, COPIES: copies}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("size", type=int, help="bytes")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is a process alone
    print(json.dumps(measured(args.kind, args.size, args.folder)))


if __name__ == "__main__":
    main()
