"""The memory tier: buffers and notes of a worker, which the agent keeps for the worker that comes after it.

A buffer is a memory file: a header of one page, the tensors' elements, each at a multiple of 64 bytes, and then what
JSON can say: the stamp, the tree, each tensor's type and shape. While it is written the header says so; the last thing
that is written is that it is complete. A process that is killed in between leaves a snapshot that is not read. (What
JSON says has a checksum; the elements have none, which would cost several times as much as their copy.)

Each commit is written into a buffer whose snapshot need not stay, so that one complete snapshot is always there. Two
buffers do for a state that each rank has in full: since a step needs all ranks, none is more than one commit ahead of
another, and so all have one in common. Of a sharded state those stay as well that the ranks may have to go back to when
a node is lost: the one that has replicas of all parts, and the one that is being sent. With replicas that are made fast
three buffers are enough, else four are taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import mmap
import os
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from elastic_core.errors import ResourceError, UsageError
from elastic_core.threads import asked
from elastic_core.worker import open_channel
from elastic_torch.memory.fd_store import held, hold, release
from elastic_torch.memory.snapshot_format import COMPLETE, HEADER, MAGIC, WRITING, is_of_other_release, note_in
from elastic_torch.state.host_memory import fill, pin, unpin
from elastic_torch.version import Stamp

logger = logging.getLogger("elastic_torch.memory")
HEADER_BYTES = HEADER.size
PAGE = 4096  # bytes before the first tensor's
_ALIGNED = 64
_SPARE = 1 << 16  # bytes of room for what JSON says to grow, beyond twice its size
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
ANSWER = 60.0  # seconds that the agent may take to hand over what it keeps; it normally takes a millisecond
NOTE_ANSWER = 10.0  # the same for a note
_IDLE = 10  # the nice value of what a busy machine is to leave for later
_NEVER = Stamp(-1, -1)
MOST = 4  # buffers of a sharded state: one to write to, the newest, the safe one, the one that is being sent
_THREAD = "elastic-snapshot"
"""The name of the threads that prepare buffers, for which the end of the process does not wait."""


class Buffers:
    """The buffers of this worker for one state, or for the replicas of one other rank's part of it.

    Args:
        name: Of the state, unlike any other's in the same worker.
        local_rank: The worker's number on its node, by which the next round's finds them again.
        count: How many there may be; two are made where nothing is pinned.
        pinned: Asked for the stamps of snapshots that must stay beside the newest one.
        replica: The number of the rank whose replicas they are, among those that this worker keeps replicas for.
    """

    def __init__(
        self,
        name: str,
        local_rank: int,
        count: int = 2,
        *,
        pinned: Callable[[], Collection[Stamp]] = tuple,
        replica: int | None = None,
    ) -> None:
        self._name, self._pinned, self._keeps = name, pinned, False
        self.prefix = f"{name}/{local_rank}" + ("" if replica is None else f"/replica/{replica}")
        """The beginning of the agent's names for them."""
        self._names = [f"{self.prefix}/{index}" for index in range(count)]
        self._second: Future[Buffer] | None = None  # the second buffer, while its memory is being taken
        with open_channel() as agent:
            self.outlives = agent is not None
            """True if there is an agent that keeps them; without one a snapshot is of no use."""
        self._buffers = [adopted(name) for name in self._names]
        self._newest: Buffer | None = None
        """The buffer that the next commit must not touch: the newest snapshot, or the one that was restored."""
        self.go_back_to(max(self.stamps(), default=None))
        if replica is None:
            # The newest snapshot is made ready to be read, and the other buffers to be written to.
            self._settle(sorted((buffer for buffer in self._buffers if buffer is not None), key=_age, reverse=True))

    def is_empty(self) -> bool:
        """Return True if nothing was ever kept."""
        return not any(self._buffers)

    def snapshots(self) -> list[Snapshot]:
        """Return the complete snapshots."""
        return [found for buffer in self._buffers if buffer is not None and (found := buffer.read()) is not None]

    def stamps(self) -> tuple[Stamp, ...]:
        """Return the stamps of the complete snapshots, the newest first."""
        return tuple(sorted((found.stamp for found in self.snapshots()), reverse=True))

    def go_back_to(self, stamp: Stamp | None) -> None:
        """Keep the snapshot with this stamp, if it is here, and no newer one: all ranks go on from it."""
        self._newest = None if stamp is None else self.buffer_of(stamp)

    def drop(self, is_dropped: Callable[[Stamp], bool]) -> None:
        """Let go of these snapshots, if they are here; their memory is for the next ones."""
        for buffer in self._buffers:
            if buffer is not None and (found := buffer.read()) is not None and is_dropped(found.stamp):
                buffer.begin()
        self.go_back_to(max(self.stamps(), default=None))

    def snapshot(self, stamp: Stamp) -> Snapshot:
        """Return the snapshot with this stamp, or raise LookupError. The next commit goes to another buffer."""
        found = next((found for found in self.snapshots() if found.stamp == stamp), None)
        if found is None:
            raise LookupError(f"no snapshot of {stamp}")
        self.go_back_to(stamp)
        return found

    def buffer_of(self, stamp: Stamp) -> Buffer | None:
        """Return the buffer of the snapshot with this stamp; from any thread, as long as it is pinned."""
        return next((buffer for buffer in self._buffers if buffer is not None and buffer.stamp == stamp), None)

    def keep(self, stamp: Stamp, said: Any, tensors: list[torch.Tensor]) -> None:
        """Commit: copy the state into a buffer. Where there is no room for it, this tier ends, with a warning.

        Raises:
            UsageError: Another state of this worker, of the same name, keeps its snapshots too.
        """
        self._check_name()
        index = self._next()
        try:
            if self._buffers[index] is None and self._second is not None:
                self._put(index, self._second.result())
                self._second = None
            buffer = self._buffers[index]
            if buffer is None or not buffer.write(stamp, said, tensors):
                buffer = Buffer.create(self._names[index], tensors, len(json.dumps(said)))
                buffer.write(stamp, said, tensors)
                self._put(index, buffer)
        except ResourceError as exc:
            self._end(exc.message)
            return
        self._newest = buffer
        self._prepare(buffer)

    def room(self, size: int) -> Buffer:
        """Return an empty buffer of at least so many bytes, to be finished; raise ResourceError if none can be kept."""
        index = self._next()
        buffer = self._buffers[index]
        if buffer is None or buffer.size < size:
            buffer = Buffer.sized(self._names[index], size + size // 8)
            self._put(index, buffer)
        buffer.begin()
        return buffer

    def forget(self) -> None:
        """Let go of all of them, and have the agent do so."""
        for index, name in enumerate(self._names):
            release(name)
            if (buffer := self._buffers[index]) is not None:
                buffer.close()
        self._buffers, self._newest = [None] * len(self._names), None

    def _check_name(self) -> None:
        """Refuse a second state of this name; one that only took the place of another is none (as in tests)."""
        last = _keepers.get(self._names[0])
        if self._keeps and last is not None and last is not self:
            raise UsageError(
                f"Two training states of this worker are named {self._name!r}: each would go on from the other's.",
                hint='Give each a name of its own: TrainState(..., name="generator").',
            )
        self._keeps = True
        _keepers[self._names[0]] = self

    def _prepare(self, written: Buffer) -> None:
        """Prepare memory in a thread, so that the next commits cost less than this one."""
        self._settle([written])
        other = self._next()
        if self.outlives and self._buffers[other] is None and self._second is None:
            self._second = asked(partial(Buffer.sized, self._names[other], written.size), name=_THREAD)

    def _settle(self, buffers: Sequence[Buffer]) -> None:
        left = [buffer for buffer in buffers if not buffer.settled]

        def settle() -> None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IDLE)  # this thread's
            for buffer in left:
                buffer.settle()

        for buffer in left:
            buffer.settled = True
        if left:
            asked(settle, name=_THREAD)

    def _next(self) -> int:
        """Return the buffer to write to: the oldest one that is not needed; a new one if there is none, or just one."""
        pinned = self._pinned()
        there = [buffer for buffer in self._buffers if buffer is not None]
        free = [buffer for buffer in there if buffer is not self._newest and buffer.stamp not in pinned]
        if len(there) < len(self._buffers) and (not free or len(there) == 1):
            return self._buffers.index(None)
        return self._buffers.index(min(free, key=_age))

    def _put(self, index: int, buffer: Buffer) -> None:
        try:
            if self.outlives and not hold(self._names[index], buffer.fd):
                self._end("the agent does not answer, or has no plugin that keeps them (elastic-torch's 'snapshots')")
        except ResourceError:
            buffer.close()
            raise
        if (old := self._buffers[index]) is not None:
            old.close()
        self._buffers[index] = buffer

    def _end(self, why: str) -> None:
        self.outlives = False
        warnings.warn(f"No snapshots are kept in memory from here on: {why}", stacklevel=4)


def _age(buffer: Buffer) -> Stamp:
    return buffer.stamp or _NEVER


_keepers: weakref.WeakValueDictionary[str, Buffers] = weakref.WeakValueDictionary()
"""The object that kept a state last in this process, by the name of its first buffer."""


def adopted(name: str) -> Buffer | None:
    """Return what the agent keeps under a name; None where there is nothing, or no agent.

    Raises:
        ResourceError: The agent has not said: to go on without it might be to begin the training anew.
    """
    began = time.monotonic()
    fd = held(name, ANSWER)
    if fd is None:
        if time.monotonic() - began < ANSWER:
            return None
        raise ResourceError(
            f"The agent has not answered for {ANSWER:.0f} seconds, so what it keeps of the training is not known.",
            hint="The next round asks again. If its host is as busy as that, leave the agent a core.",
        )
    if is_of_other_release(fd):
        logger.warning(
            "The snapshot %s in memory is of another release of elastic-torch, and is lost. Keep one release for as "
            "long as a job runs.",
            name,
        )
    if os.fstat(fd).st_size < PAGE:
        os.close(fd)
        return None
    return Buffer(fd)


def leave_note(name: str, text: bytes, timeout: float = NOTE_ANSWER) -> None:
    """Leave a note, in place of one of this name; wait ``timeout`` s; ResourceError if the agent does not keep it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, text)
        hold(name, fd, timeout)
    finally:
        os.close(fd)


def read_note(name: str, timeout: float = NOTE_ANSWER) -> bytes | None:
    """Return the note of this name; None if there is none, or no answer within ``timeout`` seconds."""
    if (fd := held(name, timeout)) is None:
        return None
    try:
        return note_in(fd)
    finally:
        os.close(fd)


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
        """Return a buffer for these tensors and so many bytes of JSON; raise ResourceError if there is not so much."""
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
