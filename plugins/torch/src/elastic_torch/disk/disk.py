"""The door to the disk tier: save while training goes on, and load the newest checkpoint that is intact."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, TypeAlias

import torch.distributed as dist

from elastic_core.errors import UsageError
from elastic_torch.disk import catalog, claims, dcp
from elastic_torch.disk.crew import PeerFailedError, crew_of
from elastic_torch.disk.errors import CheckpointError, CheckpointLoadError, CheckpointRefusedError, CheckpointSaveError
from elastic_torch.disk.islands import discover
from elastic_torch.disk.loading import Damage, Loader
from elastic_torch.disk.manifest import Books, DamagedError
from elastic_torch.disk.pace import Pace
from elastic_torch.disk.position import Checkpoint, Identity, Position, identity
from elastic_torch.disk.saving import Saver
from elastic_torch.disk.snapshot import snapshot
from elastic_torch.disk.storage import Storage, open_storage

logger = logging.getLogger("elastic_torch.disk")
DAY = 86_400.0
SNAPSHOTS = 2
"""One that is being written, and one that waits for it."""
Interval: TypeAlias = int | timedelta | Literal["auto"] | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What :meth:`Disk.load` has loaded.

    Attributes:
        checkpoint: Which checkpoint.
        state: The state dict: what was given, filled; or all that was saved.
        damage: What was found damaged, in newer checkpoints and in copies of this one, on any node.
    """

    checkpoint: Checkpoint
    state: dict[str, Any]
    damage: tuple[Damage, ...]


class Disk:
    """Checkpoints in a directory, one for all nodes or one on each, or at a URL.

    Every rank makes one after ``torch.distributed`` is initialized (or none is, in a process alone), and calls the same
    methods in the same order: they are collectives, over process groups of their own (gloo).

    Args:
        directory: A path, or a URL that fsspec knows (``s3://bucket/checkpoints``). Created where it is missing.
        keep: How many checkpoints stay. The last good one is always among them until a newer one is verified.
        interval: When :meth:`due` says yes: after so many steps, after so much time, or ``"auto"``: as often as pays,
            from the measured cost of saving and the rate of failures (Young 1974, Daly 2006). None: it never does.
        mean_time_between_failures: Seconds, of the whole job; what ``"auto"`` assumes until it has seen some.
        process_group: Whose ranks save together; all of them where none is named.
        read_only: Claim nothing, and never save: for evaluation beside a job that trains.
        environ: Where run and round are read from.

    Raises:
        CheckpointRefusedError: A later round saves here already, or another run that is alive, or another Disk of this
            process that is not closed.
        CheckpointSaveError: The directory cannot be used, on some rank.
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
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if keep < 1:
            raise UsageError(f"keep is {keep}, but at least 1 checkpoint has to stay.")
        if not (read_only or _distributed()) and int(environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "A Disk needs the process group: alone, each rank would save a checkpoint of its own part.",
                hint="Call elastic.init_process_group() before it.",
            )
        self._started = time.monotonic()
        self._last: int | None = None
        ranks = dist.get_process_group_ranks(process_group) if _distributed() else None
        self._front = crew_of(ranks)
        self._pace = Pace(interval, mean_time_between_failures, self._front, time.monotonic)
        self._storage = self._opened(directory)
        self._place = os.path.realpath(self._storage.root)
        try:
            chart = discover(self._front, self._storage, read_only=read_only)
        except PeerFailedError as error:
            raise _unusable(directory, error) from error
        self._loader = Loader(storage=self._storage, everyone=self._front, chart=chart)
        back = crew_of(ranks)
        island = back if len(chart.islands) == 1 else crew_of([self._front.ranks[i] for i in chart.islands[chart.mine]])
        me = self._front.lead(lambda: identity(environ))
        self._saver = Saver(storage=self._storage, everyone=back, island=island, me=me, keep=keep)
        self._owner = contextlib.ExitStack()
        try:
            self._run = 0 if read_only else self._claim(me)
        except PeerFailedError as error:
            raise _unusable(directory, error) from error
        self._books = Books(failures=0, seconds=0.0)
        self._spare: queue.LifoQueue[dict[str, Any] | None] = queue.LifoQueue()  # the last first: often one is enough
        for _ in range(SNAPSHOTS):
            self._spare.put(None)
        self._writer = ThreadPoolExecutor(1, "elastic-checkpoint")  # the interpreter waits for it when it ends
        self._pending: list[Future[Checkpoint]] = []
        self.blocked = 0.0
        """Seconds for which the last :meth:`save` kept training waiting."""

    def _opened(self, directory: str | os.PathLike[str]) -> Storage:
        """The directory, once every rank has opened it.

        Raises:
            CheckpointSaveError: One of them cannot.
        """
        opened: list[Storage] = []
        failed: list[OSError] = []
        try:
            opened.append(open_storage(directory))
        except OSError as error:
            failed.append(error)

        def tell() -> None:
            for error in failed:
                raise error

        try:
            self._front.agree(tell)
        except PeerFailedError as error:
            raise _unusable(directory, error) from error
        return opened[0]

    def _claim(self, me: Identity) -> int:
        """Take our turn; the number of our run."""
        first = self._saver.island.leads
        self._front.agree(self._check_alone)
        known = [
            c for part in self._front.agree(lambda: claims.read_claims(self._storage) if first else []) for c in part
        ]
        run = claims.number(known, me, self._storage.root)
        newest = max(known, key=lambda claim: claim.turn, default=None)

        def take() -> None:
            if newest is not None and newest.run < run:
                claims.refuse_beside_the_living(self._storage, newest)
            claims.claim(self._storage, run, me)
            self._owner.enter_context(self._storage.hold(f"{claims.FOLDER}/run-{run:04}.lock"))
            claims.check_turn(self._storage, Position(run, me.round, 0))

        self._front.agree(lambda: take() if first else None)
        _savers[self._place] = self
        return run

    def _check_alone(self) -> None:
        if _savers.get(self._place) is not None:
            gc.collect()  # it may have been given up
        if _savers.get(self._place) is not None:
            raise CheckpointRefusedError(
                f"Another Disk of this process saves in {self._storage.root} already.",
                hint="Call its close() before you make the next one, or give each a directory of its own.",
            )

    @property
    def run(self) -> int:
        """This run's number in the directory; 0 where nothing can be saved."""
        return self._run

    def due(self, step: int, *, last: bool = False) -> bool:
        """Whether a checkpoint should be saved after this step. All ranks ask after every step, and hear the same.

        Args:
            step: The training step.
            last: Nothing follows that could be saved, at the end of training or where it stops: it is due then unless
                ``interval`` is None. Asked about a step that was not due before.
        """
        if self._run == 0:
            return False
        return self._pace.saves if last else self._pace.due(step)

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
            so nobody has to look.
        """
        if self._run == 0:
            raise UsageError("Nothing can be saved with read_only=True.")
        if self._last is not None and step <= self._last:
            raise UsageError(
                f"Step {step} cannot be saved after step {self._last}.",
                hint="Count the steps of the whole training. Of two states each has a Disk and a directory of its own.",
            )
        began = time.monotonic()
        spare = self._spare.get()
        try:
            copied = snapshot(state_dict, spare)
        except BaseException:
            self._spare.put(spare)
            raise
        self._last = step
        self.blocked = time.monotonic() - began
        self._pace.saved(self.blocked)
        books = replace(self._books, seconds=self._books.seconds + began - self._started)
        position = Position(self._run, self._saver.me.round, step)
        future = self._writer.submit(self._write, position, copied, books)
        self._pending = [other for other in self._pending if not other.done()] + [future]
        return future

    def _write(self, position: Position, state: dict[str, Any], books: Books) -> Checkpoint:
        began = time.monotonic()
        try:
            checkpoint = self._saver.save(position, state, books)
            self._pace.written(time.monotonic() - began)
            return checkpoint
        except CheckpointError as error:
            self._pace.failed(time.monotonic() - began)
            if self._saver.island.leads:
                logger.warning("%s", error)
            raise
        finally:
            self._spare.put(state)

    def newest(self, *, verify: bool = True) -> Checkpoint | None:
        """The newest checkpoint that :meth:`load` would load, None where there is none. Collective.

        Args:
            verify: Read all of it, and compare checksums; else believe names and sizes, and load may take an older one.
        """
        self._settle()
        found = self._loader.find(verify=verify)
        if found.assembly is None:
            return None
        there = (
            (found.assembly.folder, found.assembly.manifest)
            if found.mine is None
            else (found.mine.folder, found.mine.manifest)
        )
        return catalog.as_checkpoint(self._storage, *there)

    def load(self, into: dict[str, Any] | None = None) -> Loaded | None:
        """Load the newest checkpoint that is intact, wherever it is; None where there is none. Collective.

        Damaged ones are named in a warning and passed over. What this node's directory lacks, it is sent.

        Args:
            into: A state dict of the shapes that are wanted, filled in place: DTensors are resharded as they need.
                Where it has None for a name, all that was saved under that comes as it was saved, if there is any.
                Without it all that was saved comes back as it was saved, in CPU memory.

        Raises:
            CheckpointLoadError: The checkpoint is intact but does not fit, or there is no room to receive it.
        """
        self._settle()
        found = self._loader.find()
        if found.assembly is None:
            return None
        checkpoint = self._loader.fetch(found)
        state: list[dict[str, Any]] = []
        try:
            self._front.agree(lambda: state.append(dcp.read(self._storage, checkpoint.folder, into)))
        except PeerFailedError as error:
            raise CheckpointLoadError(
                f"The checkpoint {checkpoint.where} is intact but could not be loaded: {error}",
                hint="It may be of another model: names and shapes have to match.",
            ) from error
        self._carry_on(checkpoint)
        return Loaded(checkpoint, state[0], found.damage)

    def _carry_on(self, checkpoint: Checkpoint) -> None:
        """Take over what was learnt about failures; that we are here is one more."""
        with contextlib.suppress(DamagedError):
            books = catalog.read_manifest(self._storage, checkpoint.folder).books
            self._books = replace(books, failures=books.failures + 1)
        self._started = time.monotonic()
        self._pace.learnt(self._books.failures, self._books.seconds)

    def _settle(self) -> None:
        """Wait until nothing is being written, whatever came of it."""
        for future in self._pending:
            with contextlib.suppress(CheckpointError):
                future.result()

    def wait(self) -> Checkpoint | None:
        """Wait until everything is written; the last one, or None where nothing was waited for.

        Raises:
            CheckpointError: The last one was not saved.
        """
        pending, self._pending = self._pending, []
        for future in pending[:-1]:
            with contextlib.suppress(CheckpointError):
                future.result()
        return pending[-1].result() if pending else None

    def close(self) -> None:
        """Wait until everything is written, and let go of the directory. Call it before the process group goes."""
        self._settle()
        self._writer.shutdown()
        self._owner.close()
        if _savers.get(self._place) is self:
            del _savers[self._place]

    def __enter__(self) -> Disk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_savers: weakref.WeakValueDictionary[str, Disk] = weakref.WeakValueDictionary()
"""Who saves in this process, by the directory: to the system a lock is a process's, and does not tell them apart."""


def _unusable(directory: str | os.PathLike[str], error: PeerFailedError) -> CheckpointSaveError:
    return CheckpointSaveError(
        f"No checkpoints can be kept in {os.fspath(directory)}: {error}.",
        hint="Name a directory that can be made and written to on every node. To load only: Disk(..., read_only=True).",
    )


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
