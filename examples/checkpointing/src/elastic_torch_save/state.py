"""``TrainState`` over plain ``torch.save``: one file on a disk that all nodes see, written by rank 0."""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from elastic_core.worker import INITIALIZED, report, should_checkpoint


def init_process_group(*args: Any, **options: Any) -> None:
    """Call torch's function of this name, and tell the agent that this worker has met its peers."""
    dist.init_process_group(*args, **options)
    report(INITIALIZED)


class TrainState:
    """Keeps what it is given in ``$TORCH_SAVE_FILE`` after each step (see ``elastic_core.worker.train_state``)."""

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        sampler: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **(extra or {})}
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self._sampler, self._file = sampler, os.environ.get("TORCH_SAVE_FILE", "train.pt")
        self.step = self.epoch = self.batch = 0
        self.stopping = False

    def restore(self) -> bool:
        """Load the file, if there is one."""
        if found := os.path.exists(self._file):
            saved = torch.load(self._file, map_location="cpu")
            for name, part in self._parts.items():
                part.load_state_dict(saved[name])
            self.step, self.epoch, self.batch = saved["progress"]
        return found

    def commit(self) -> None:
        """Count a step; rank 0 writes beside, then renames: the file is whole at any time. Then ask whether to stop."""
        self.step += 1
        if dist.get_rank() == 0:
            saved = {name: part.state_dict() for name, part in self._parts.items()}
            torch.save({**saved, "progress": (self.step, self.epoch, self.batch)}, f"{self._file}.new")
            os.replace(f"{self._file}.new", self._file)
        self.stopping = should_checkpoint(self.step)

    def epochs(self, count: int) -> Iterator[int]:
        """Those that are left."""
        while self.epoch < count and not self.stopping:
            if self._sampler is not None:
                self._sampler.set_epoch(self.epoch)
            yield self.epoch
            if not self.stopping:
                self.epoch, self.batch = self.epoch + 1, 0

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Those that are left of the epoch; the ones that are done are drawn and thrown away."""
        for batch in islice(loader, self.batch, None):
            yield batch
            self.batch += 1
            self.commit()
            if self.stopping:
                return
