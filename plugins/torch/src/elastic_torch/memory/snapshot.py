"""One snapshot in shared memory, written so that a half-written one is recognized.

A memory file has a header of one page, the tensors' elements, each at a multiple of 64 bytes, and then what JSON can
say: the stamp, the tree, each tensor's type and shape. While it is written the header says so; the last thing that is
written is that it is complete. A process that is killed in between leaves a snapshot that is not read. (What JSON says
has a checksum; the elements have none, which would cost several times as much as their copy.)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elastic_core.errors import ResourceError
from elastic_torch.memory.snapshot_format import COMPLETE, HEADER, MAGIC, WRITING
from elastic_torch.state.host_memory import fill, pin, unpin
from elastic_torch.version import Stamp

HEADER_BYTES = HEADER.size
PAGE = 4096  # bytes before the first tensor's
_ALIGNED = 64
_SPARE = 1 << 16  # bytes of room for what JSON says to grow, beyond twice its size
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a buffer. The tensors are views of its memory, for as long as nothing else is written there."""

    stamp: Stamp
    said: Any
    views: Sequence[torch.Tensor]


class Buffer:
    """A memory file that holds one snapshot, or the trace of one that was not finished.

    Args:
        fd: Of the memory file; it is the buffer's from now on.
        new: Whether it was never written to.
        private: Whether it is a file that is only read: what is changed here stays in this process.

    Attributes:
        fd: Its descriptor.
        size: Its bytes.
        stamp: Of the snapshot that is complete in it, as far as this process has read, written or received it.
        settled: Whether :meth:`settle` has been asked for.
    """

    def __init__(self, fd: int, *, new: bool = False, private: bool = False) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.stamp: Stamp | None = None
        self.settled = False
        self._map = mmap.mmap(fd, self.size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
        self._new = new
        self._pinned: bool | None = None
        """True if a GPU's copies go here directly; None as long as there have been none."""
        self._layout = _Layout.of([])
        self._views: list[torch.Tensor] = []
        self._known: tuple[bytes, Snapshot] | None = None  # the last value read, and the header at that time

    @classmethod
    def create(cls, name: str, tensors: Sequence[torch.Tensor], said_bytes: int) -> Buffer:
        """Return a buffer for these tensors and so many bytes of JSON. All of its memory is taken at once.

        Raises:
            ResourceError: There is not so much.
        """
        end = _Layout.of([(tensor.dtype, tensor.shape) for tensor in tensors]).end
        return cls.sized(name, end + 2 * said_bytes + _SPARE + 100 * len(tensors))

    @classmethod
    def sized(cls, name: str, size: int) -> Buffer:
        """Return a buffer of so many bytes; raise ResourceError if there is not so much memory."""
        size = -(-max(size, 1) // PAGE) * PAGE
        if size > (left := available_memory()):  # the kernel would not refuse it, but kill a process for it
            raise ResourceError(
                f"There is no memory for a snapshot of {size / 2**20:.0f} MiB: {left / 2**20:.0f} MiB are available."
            )
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)  # a reader would die of SIGBUS if it shrank
            return cls(fd, new=True)
        except OSError as exc:
            os.close(fd)
            raise ResourceError(
                f"There is no memory for a snapshot of {size / 2**20:.0f} MiB: {exc.strerror}."
            ) from exc

    def close(self) -> None:
        """Let the descriptor go; the memory goes with its last view, unless another process holds it."""
        if self._pinned:
            unpin(self.bytes())
        os.close(self.fd)

    def settle(self) -> None:
        """Map all pages, which else happens one by one as they are used: writing takes five times as long then.

        For a thread beside that which uses the buffer: nothing in it changes, and it may be read and written meanwhile.
        """
        self.bytes().numpy()[::PAGE].max()  # reads each page, without Python's lock

    def write(self, stamp: Stamp, said: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """Make this the snapshot; False, and nothing is changed, if there is no room.

        The tensors may be on any device; this waits until they are copied.
        """
        types = [(tensor.dtype, tensor.shape) for tensor in tensors]
        layout = self._layout if types == self._layout.types else _Layout.of(types)
        text = f"[{stamp.round}, {stamp.step}, {json.dumps(said)}, {layout.table}]".encode()
        start = layout.end
        if start + len(text) > self.size:
            return False
        self.begin()
        self._lay_out(layout)
        gpu = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if gpu is not None and self._pinned is None:
            self._pinned = pin(self.bytes(), gpu)
        self._copy(tensors)
        self._map[start : start + len(text)] = text
        self._mark(COMPLETE, start, len(text), zlib.crc32(text))
        self.stamp = stamp
        return True

    def _copy(self, tensors: Sequence[torch.Tensor]) -> None:
        views = self._views
        if self._new:
            # A page that is written as a part of the file is neither cleared before, nor mapped by itself.
            left = [
                number
                for number, (tensor, place) in enumerate(zip(tensors, self._layout.places, strict=True))
                if not _put(self.fd, tensor, place)
            ]
            views, tensors = [views[number] for number in left], [tensors[number] for number in left]
            self._new = False
        fill(views, tensors)

    def read(self) -> Snapshot | None:
        """Return what is in it; None if that was never finished."""
        header = self._map[:HEADER_BYTES]
        magic, phase, start, length, crc = HEADER.unpack(header)
        text = self._map[start : start + length]
        if magic != MAGIC or phase != COMPLETE or zlib.crc32(text) != crc:
            return None
        if self._known is None or self._known[0] != header:
            try:
                round_, step, said, table = json.loads(text)
                layout = _Layout.of([(getattr(torch, name), torch.Size(shape)) for name, shape in table])
                if layout.end != start:
                    return None
                self._lay_out(layout)
                self._known = header, Snapshot(Stamp(int(round_), int(step)), said, self._views)
            except (ValueError, TypeError, AttributeError, RuntimeError):
                return None
        self.stamp = self._known[1].stamp
        return self._known[1]

    def bytes(self) -> torch.Tensor:
        """Return all of it, as a tensor of uint8 of shape (size,) over the same memory."""
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def used(self) -> int:
        """Return the bytes from its start that are used, the header's among them."""
        _, _, start, length, _ = HEADER.unpack_from(self._map)
        return int(start + length)

    def begin(self) -> None:
        """Begin to replace all of it by another buffer's bytes: until :meth:`finish` it holds nothing."""
        self._known = self.stamp = None
        self._mark(WRITING)

    def header(self) -> torch.Tensor:
        """Return what :meth:`finish` of another buffer takes, as uint8 of shape (40,)."""
        return self.bytes()[:HEADER_BYTES].clone()

    def finish(self, header: torch.Tensor, stamp: Stamp) -> None:
        """Complete it with another buffer's header, whose other bytes are there: a snapshot of this stamp."""
        _, phase, start, length, crc = HEADER.unpack(header.numpy().tobytes())
        self._mark(phase, start, length, crc)
        self._new, self.stamp = False, stamp

    def _mark(self, phase: int, start: int = 0, length: int = 0, crc: int = 0) -> None:
        if phase == COMPLETE:  # the word that it is comes after all others
            HEADER.pack_into(self._map, 0, MAGIC, WRITING, start, length, crc)
        HEADER.pack_into(self._map, 0, MAGIC, phase, start, length, crc)

    def _lay_out(self, layout: _Layout) -> None:
        if layout != self._layout:
            self._views = [
                _view(self._map, dtype, shape, place)
                for (dtype, shape), place in zip(layout.types, layout.places, strict=True)
            ]
            self._layout = layout


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of tensors in a buffer."""

    types: list[tuple[torch.dtype, torch.Size]]  # of each its type and shape
    places: list[int]  # of each its first byte
    end: int  # the first byte behind the last one
    table: str  # the types as JSON

    @classmethod
    def of(cls, types: list[tuple[torch.dtype, torch.Size]]) -> _Layout:
        places, place = [], PAGE
        for dtype, shape in types:
            places.append(place)
            place += -(-shape.numel() * dtype.itemsize // _ALIGNED) * _ALIGNED
        table = json.dumps([[str(dtype).removeprefix("torch."), list(shape)] for dtype, shape in types])
        return cls(types, places, place, table)


def available_memory() -> int:
    """Return the bytes that this process may still take: those of the host, or of its control group."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):  # there is none, or it has no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        available = min(available, limit - used + int(stat["inactive_file"]))
    return available


def _put(fd: int, tensor: torch.Tensor, place: int) -> bool:
    """Write a tensor's elements into a file; False where they do not lie in host memory as they are to be there."""
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.is_conj() or tensor.is_neg():
        return False
    left = tensor.view(-1).view(torch.uint8).numpy().data
    while left:
        written = os.pwrite(fd, left, place)
        left, place = left[written:], place + written
    return True


def _view(memory: mmap.mmap, dtype: torch.dtype, shape: torch.Size, place: int) -> torch.Tensor:
    if (count := shape.numel()) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place).view(shape)
