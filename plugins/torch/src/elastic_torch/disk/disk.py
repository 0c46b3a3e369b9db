"""The class ``Disk``: saves while training goes on, and loads the newest checkpoint that is intact.

Training waits for a copy of the state and nothing else: a thread writes that (:class:`_Writer`). The memory of earlier
copies is used again, since page faults of new memory cost more than the copy.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import os
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from elastic_core.errors import UsageError
from elastic_torch.disk import catalog, dcp, fence
from elastic_torch.disk.collective import PeerFailedError, collective_of
from elastic_torch.disk.errors import (
    CheckpointError,
    CheckpointLoadError,
    CheckpointSaveError,
    CheckpointUnreadableError,
)
from elastic_torch.disk.fence import identity
from elastic_torch.disk.loader import FoundCheckpoint, Loaded, Loader
from elastic_torch.disk.manifest import Counters
from elastic_torch.disk.retry import Retry
from elastic_torch.disk.saver import Ownership
from elastic_torch.disk.schedule import Schedule
from elastic_torch.disk.storage import SHARED, open_storage
from elastic_torch.state.host_memory import fill, like
from elastic_torch.version import Checkpoint, Position, parse

logger = logging.getLogger("elastic_torch.disk")
DAY = 86_400.0
IGNORE = "ELASTIC_IGNORE_UNREADABLE_CHECKPOINTS"
_LASTING = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM}
"""Errors that say that the directory was named or made wrongly, rather than that it is full or away."""
COPIES = 2  # of the state: one that is being written, and one that waits for it
Interval: TypeAlias = int | timedelta | Literal["auto"] | None


class Disk:
    """Checkpoints in a directory, one for all nodes or one on each, or at a URL.

    Every rank makes one after ``torch.distributed`` is initialized (or none is, in a process alone), and calls the same
    methods in the same order: they are collectives, over process groups of their own (gloo).

    Args:
        directory: A path, or a URL that fsspec knows (``s3://bucket/checkpoints``). Created where it is missing.
        keep: How many checkpoints of this training stay. The last good one is always among them until a newer one is
            verified. Those of other trainings, from which this one has not gone on, are not counted, and never removed.
        interval: When :meth:`due` says yes: after so many steps, after so much time, or ``"auto"``: as often as pays,
            from the measured cost of saving and the rate of failures (Young 1974, Daly 2006). None: it never does.
        mean_time_between_failures: Seconds, of the whole job; what ``"auto"`` assumes until it has seen some.
        process_group: Whose ranks save together; all of them where none is named.
        read_only: Claim nothing, and never save: for evaluation beside a job that trains.
        ignore_unreadable: Where there are checkpoints and none can be loaded, begin anew instead of raising an error.
            They stay, damaged ones in the folder ``damaged``. The same as ELASTIC_IGNORE_UNREADABLE_CHECKPOINTS=1.
        shared: Load also what other users own or can change, who can run code here then. The same as
            ELASTIC_SHARED_CHECKPOINTS=1.
        read_timeout: Seconds for which read errors that may pass, a file server's for example, are tried again.
        environ: Where run and round are read from.

    Raises:
        CheckpointRefusedError: A later round saves here already, or another run that is alive, or another Disk of this
            process that is not closed.
        CheckpointSaveError: The directory cannot be used, on some rank. A full disk, a read error, or whatever else may
            pass, is not raised but logged: what is there can be loaded, and each save tries again.
        UsageError: A value is wrong, or there are other ranks, but no process group to save with them.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 3,
        interval: Interval = "auto",
        mean_time_between_failures: float = DAY,
        process_group: dist.ProcessGroup | None = None,
        read_only: bool = False,
        ignore_unreadable: bool = False,
        shared: bool = False,
        read_timeout: float = 60.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}, but at least 1 checkpoint has to stay.")
        if read_timeout < 0:
            raise UsageError(f"read_timeout is {read_timeout}, but must be 0 seconds or more.")
        if not (read_only or _distributed()) and int(environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "A Disk needs the process group: alone, each rank would save a checkpoint of its own part.",
                hint="Call elastic.init_process_group() before it.",
            )
        self._started = time.monotonic()
        self._last: int | None = None
        self._read_only, self._patience = read_only, read_timeout
        self._ignores = ignore_unreadable or ignores_unreadable(environ)
        ranks = dist.get_process_group_ranks(process_group) if _distributed() else None
        self._front, self._back = collective_of(ranks), collective_of(ranks)
        self._schedule = Schedule(interval, mean_time_between_failures, self._front, time.monotonic)
        self._storage = open_storage(directory, shared=shared or _is_set(environ, SHARED))
        self._me = self._front.lead(lambda: identity(environ))
        self._ownership = Ownership(self._storage, self._front, self._back, self._me, read_only=read_only, keep=keep)
        self._ignored = False
        self._lineage: str | None = None  # of what is saved; None until something is loaded or saved
        try:
            self._ownership.take()
        except PeerFailedError as error:
            lasting = (None in error.codes or not error.codes.isdisjoint(_LASTING)) and not _is_restart(environ)
            if read_only or lasting:
                raise CheckpointSaveError(
                    f"No checkpoints can be kept in {os.fspath(directory)}: {error}.",
                    hint="Name a directory that can be made and written to on every node. To load only: "
                    "Disk(..., read_only=True).",
                ) from error
            self._warn("Nothing can be saved in %s for now: %s. Each save tries again.", self._storage.root, error)
        self._counters = Counters(failures=0, seconds=0.0)
        self._writer = _Writer()

    def _warn(self, message: str, *values: object) -> None:
        if self._front.leads:
            logger.warning(message, *values)

    @property
    def directory(self) -> str:
        """The directory: an absolute path without symbolic links, or the URL."""
        return self._storage.root if "://" in self._storage.root else self._ownership.place

    @property
    def run(self) -> int:
        """The number of the run in the directory; 0 where nothing can be saved."""
        return self._ownership.run

    def due(self, step: int, *, last: bool = False) -> bool:
        """Return True if a checkpoint is due after this step. All ranks ask after every step, and get the same answer.

        Args:
            step: The training step.
            last: Nothing follows that could be saved, at the end of training or where it stops: it is due then unless
                ``interval`` is None. Asked about a step that was not due before.
        """
        if self._read_only:
            return False
        return self._schedule.saves if last else self._schedule.due(step)

    def save(self, state_dict: Mapping[str, Any], step: int) -> Future[Checkpoint]:
        """Save a checkpoint: copies the state, and lets a thread write it.

        Training waits for the copy; and, where two earlier ones are not written yet, for the older of them.

        Args:
            state_dict: Nested dicts of tensors and other values, as for ``torch.distributed.checkpoint``: of a DTensor
                each rank saves its shard; what has the same name on several ranks is saved once, so what belongs to a
                rank alone needs a name of its own.
            step: The training step, which must be greater than at the last save.

        Returns:
            A future of the published checkpoint. It raises :class:`CheckpointSaveError` or
            :class:`CheckpointRefusedError`, the same on all ranks that share the directory; both are logged as well,
            so it need not be looked at.
        """
        if self._read_only:
            raise UsageError("Nothing can be saved with read_only=True.")
        if self._last is not None and step <= self._last:
            raise UsageError(
                f"Step {step} cannot be saved after step {self._last}.",
                hint="Count the steps of the whole training. Of two states each has a Disk and a directory of its own.",
            )
        began = time.monotonic()
        try:
            self._enter_again(step)
        except CheckpointError as error:
            self._warn("%s", error)
            self._last = step
            self._schedule.saved(time.monotonic() - began)
            self._schedule.failed(time.monotonic() - began)
            error.__cause__ = error.__context__ = None
            return self._writer.refuse(error.with_traceback(None))  # frames, the cause's too, would hold the state
        copied = self._writer.copy(state_dict)
        self._last = step
        self._schedule.saved(time.monotonic() - began)
        counters = replace(self._counters, seconds=self._counters.seconds + began - self._started)
        position = Position(self.run, self._me.round, step)
        return self._writer.submit(lambda: self._write(position, copied, counters), copied)

    def _enter_again(self, step: int) -> None:
        if self._ownership.saver is not None:
            return
        try:
            self._ownership.take()
        except PeerFailedError as error:
            raise CheckpointSaveError(
                f"The checkpoint of step {step} was not saved in {self._storage.root}: {error}.",
                hint="Training goes on, and the next checkpoint is tried as usual.",
            ) from error
        self._warn("%s can be used again: checkpoints are saved from here on.", self._storage.root)

    def _write(self, position: Position, state: dict[str, Any], counters: Counters) -> Checkpoint:
        began = time.monotonic()
        saver = self._ownership.saver
        assert saver is not None
        try:
            if self._lineage is None:
                self._lineage = saver.lineage(position)
            checkpoint = saver.save(position, state, self._lineage, counters)
            self._schedule.written(time.monotonic() - began)
            return checkpoint
        except CheckpointError as error:
            self._schedule.failed(time.monotonic() - began)
            if saver.group.leads:
                logger.warning("%s", error)
            raise

    def newest(self, *, verify: bool = True) -> Checkpoint | None:
        """Return the newest checkpoint that :meth:`load` would load, None where there is none. Collective.

        Args:
            verify: Read all of it, and compare checksums; else believe names and sizes, and load may take an older one.

        Raises:
            CheckpointUnreadableError: There are some, and none can be loaded.
        """
        self._writer.settle()
        found = self._find(verify=verify)
        if found.assembly is None:
            return None
        there = found.mine or found.assembly
        return catalog.as_checkpoint(self._storage, there.folder, there.manifest)

    def load(self, into: dict[str, Any] | None = None) -> Loaded | None:
        """Load the newest checkpoint that is intact, wherever it is; None where there is none. Collective.

        Damaged ones are named in a warning, passed over, and moved into the folder ``damaged``. What this node's
        directory lacks, it is sent.

        Args:
            into: A state dict of the shapes that are wanted, filled in place: DTensors are resharded as they need.
                Where it has None for a name, all that was saved under that comes as it was saved, if there is any.
                Without it all that was saved comes back as it was saved, in CPU memory.

        Raises:
            CheckpointUnreadableError: There are some, and none can be loaded; ``ignore_unreadable`` begins anew.
            CheckpointLoadError: The checkpoint is intact but does not fit, or there is no room to receive it.
        """
        self._writer.settle()
        try:
            found = self._find()
        except CheckpointUnreadableError:
            self._lineage = fence.begin_lineage(self._front)  # a script that catches the error begins anew
            raise
        if found.assembly is None:
            return None
        checkpoint, manifest = self._loader.fetch(found)
        state: list[dict[str, Any]] = []

        def read() -> None:
            state.append(dcp.read(self._storage, checkpoint.folder, manifest, into, Retry(self._patience)))

        try:
            self._front.agree(read)
        except PeerFailedError as error:
            if None not in error.codes:
                raise CheckpointUnreadableError(
                    f"The checkpoint {checkpoint.where} could be read a moment ago, and cannot be any more: {error}.",
                    hint="Start again, once it can be read on every node.",
                ) from error
            raise CheckpointLoadError(
                f"The checkpoint {checkpoint.where} is intact but could not be loaded: {error}",
                hint="It may be of another model: names and shapes have to match.",
            ) from error
        self._follow(None if self._go_back(found) else manifest.lineage, note=manifest.run_uid != self._me.uid)
        learnt = manifest.counters
        self._counters = replace(learnt, failures=learnt.failures + 1)  # that we are here is one more
        self._started = time.monotonic()
        self._schedule.learnt(self._counters.failures, self._counters.seconds)
        return Loaded(checkpoint, state[0], found.damage)

    @property
    def _loader(self) -> Loader:
        return Loader(self._storage, self._front, self._ownership.shared_dirs, self._patience)

    def _find(self, *, verify: bool = True) -> FoundCheckpoint:
        """Return the newest checkpoint that can be loaded.

        Raises CheckpointUnreadableError where there are some, and none can be, unless that is to be ignored.
        """
        found = self._loader.find(verify=verify)
        if found.assembly is not None or not found.damage:
            return found
        what = " ".join(str(item) for item in found.damage)
        if not self._ignores:
            raise CheckpointUnreadableError(
                f"There are checkpoints in {self._storage.root}, and none of them can be loaded. {what}",
                hint="All are where they were. If a disk or a file server was away, start again. To begin anew beside "
                f"them: {IGNORE}=1, or Disk(..., ignore_unreadable=True).",
            )
        if not self._ignored:
            self._ignored = True
            self._warn("No checkpoint in %s can be loaded, and that is ignored: %s", self._storage.root, what)
            self._go_back(found)
            self._follow(None)
        return found

    def _go_back(self, found: FoundCheckpoint) -> bool:
        """Set aside what is damaged. Whether checkpoints that are newer than what was found stay where they are."""
        taken = None if found.assembly is None else found.assembly.manifest.position

        def stays() -> bool:
            if not self._ownership.shared_dirs.first:
                return False
            ours = self._ownership.saver is not None
            left = [folder for folder in found.aside if not (ours and catalog.set_aside(self._storage, folder))]
            if len(left) < len(found.aside):
                with self._storage.guard() as locked:
                    if locked:
                        catalog.point(self._storage)
            return any(taken is None or (at := parse(folder)) is None or at > taken for folder in left)

        return any(self._front.agree(stays)) or found.passed

    def _follow(self, line: str | None, *, note: bool = True) -> None:
        """Save from here on under this lineage, or under a new one."""
        self._lineage = fence.begin_lineage(self._front) if line is None else line
        if (note or line is None) and self._ownership.saver is not None and self._ownership.shared_dirs.first:
            fence.note_lineage(self._storage, (self.run, self._me.round), self._lineage)

    def wait(self) -> Checkpoint | None:
        """Wait until everything is written; the last one, or None where nothing was waited for.

        Raises:
            CheckpointError: The last one was not saved.
        """
        return self._writer.wait()

    def close(self) -> None:
        """Wait until everything is written, and let go of the directory. Call it before the process group goes."""
        self._writer.close()
        self._ownership.release()

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _is_restart(environ: Mapping[str, str]) -> bool:
    """Return True if this is a later round, or a restart: memory may have more to lose than a disk has."""
    return int(environ.get("ELASTIC_ROUND") or 0) > 1 or int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0


def ignores_unreadable(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the user wants to begin anew where there is a training state and none can be loaded."""
    return _is_set(environ, IGNORE)


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    """Return True if a variable says yes; raise UsageError if it says neither that nor no."""
    value = environ.get(name, "")
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("", "0", "false", "no", "off"):
        return False
    raise UsageError(f"{name}={value!r}: it is 1 or 0.")


class _Writer:
    """Has copies of the state, and the thread that writes them, one after the other."""

    def __init__(self) -> None:
        self._spare: queue.LifoQueue[dict[str, Any] | None] = queue.LifoQueue()  # the last first: often one is enough
        for _ in range(COPIES):
            self._spare.put(None)
        self._thread = ThreadPoolExecutor(1, "elastic-checkpoint")  # the interpreter waits for it when it ends
        self._pending: list[Future[Checkpoint]] = []

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a state; waits until the memory of an earlier copy is free."""
        spare = self._spare.get()
        try:
            return snapshot(state, spare)
        except BaseException:
            self._spare.put(spare)
            raise

    def submit(self, write: Callable[[], Checkpoint], copied: dict[str, Any]) -> Future[Checkpoint]:
        """Have a copy written on the thread; after that its memory is free."""

        def act() -> Checkpoint:
            try:
                return write()
            finally:
                self._spare.put(copied)

        return self._follow(self._thread.submit(act))

    def refuse(self, error: CheckpointError) -> Future[Checkpoint]:
        """Return the future of a checkpoint that is not written, for this reason."""
        future: Future[Checkpoint] = Future()
        future.set_exception(error)
        return self._follow(future)

    def _follow(self, future: Future[Checkpoint]) -> Future[Checkpoint]:
        self._pending = [other for other in self._pending if not other.done()] + [future]
        return future

    def settle(self) -> None:
        """Wait until nothing is being written, whatever came of it."""
        for future in self._pending:
            with contextlib.suppress(CheckpointError):
                future.result()

    def wait(self) -> Checkpoint | None:
        """Wait until everything is written, as :meth:`Disk.wait` says."""
        try:
            self.settle()
        finally:
            pending, self._pending = self._pending, []
        return pending[-1].result() if pending else None

    def close(self) -> None:
        """Wait until nothing is being written, and end the thread."""
        self.settle()
        self._thread.shutdown()


def snapshot(state: Mapping[str, Any], spare: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a copy of a state dict, its tensors in CPU memory.

    In nested dicts, lists and tuples are tensors (of DTensors the local part) and other values; what has a
    ``state_dict()`` at the top level is asked for it. The tensors of a ``spare`` copy are written over where they
    fit.
    """
    asked = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
    copies = _Copies()
    copied: dict[str, Any] = copies.of(asked, spare)
    fill(copies.targets, copies.sources)
    return copied


class _Copies:
    def __init__(self) -> None:
        self.targets: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []

    def of(self, value: Any, spare: Any) -> Any:
        """Return a copy of a part of the state, in the memory of an earlier one where that fits."""
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value.detach(), spare)
        if isinstance(value, Mapping):
            old = spare if isinstance(spare, Mapping) else {}
            return {key: self.of(item, old.get(key)) for key, item in value.items()}
        if type(value) in (list, tuple):
            old_items = spare if isinstance(spare, (list, tuple)) and len(spare) == len(value) else [None] * len(value)
            return type(value)(self.of(item, old) for item, old in zip(value, old_items, strict=True))
        return copy.deepcopy(value)

    def _of_tensor(self, tensor: torch.Tensor, spare: Any) -> torch.Tensor:
        if isinstance(spare, torch.Tensor) and _form(spare) == _form(tensor):
            target = spare
        elif type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized:
            target = like(tensor)
        else:
            return tensor.to("cpu", copy=True)
        self.targets.append(_local(target))
        self.sources.append(_local(tensor))
        return target


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors must have in common for one to be written over the other."""
    local = _local(tensor)
    spread = (tensor.device_mesh, tensor.placements, tensor.shape) if isinstance(tensor, DTensor) else ()
    return (type(tensor), local.shape, local.dtype, local.stride(), local.layout, *spread)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this rank that a tensor stands for."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
