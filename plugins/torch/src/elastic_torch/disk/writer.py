"""The thread that writes checkpoints from copies of the state, while training goes on."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from elastic_torch.disk.errors import CheckpointError
from elastic_torch.disk.state_copy import snapshot
from elastic_torch.version import Checkpoint

COPIES = 2
"""One that is being written, and one that waits for it."""


class Writer:
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
        """Wait until nothing is being written, and end the thread."""
        self.settle()
        self._thread.shutdown()
