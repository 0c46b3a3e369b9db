"""The disk tier: checkpoints that outlive the job, in the format of ``torch.distributed.checkpoint``.

- :mod:`disk` has the class ``Disk``; :mod:`ownership` takes the directory, by the :mod:`fence`; :mod:`writer` copies
  the state, and has the thread that writes; :mod:`schedule` says when a checkpoint is due.
- :mod:`saver` and :mod:`loader` are what all ranks do together, over a :mod:`collective`; :mod:`shared_dirs` finds out
  which of them see the same directory, :mod:`assembly` where each file is.
- :mod:`dcp` has torch's format, :mod:`manifest` the list of files with checksums.
- :mod:`catalog` finds, checks and removes checkpoints; :mod:`lineage` says which of them belong to one training.
- :mod:`storage` and :mod:`url` are durable places; :mod:`retry` repeats reads after transient errors. :mod:`errors`
  says what can go wrong.
"""

from __future__ import annotations

from elastic_torch.disk.disk import Disk
from elastic_torch.disk.errors import (
    CheckpointError,
    CheckpointLoadError,
    CheckpointRefusedError,
    CheckpointSaveError,
    CheckpointUnreadableError,
)
from elastic_torch.disk.loader import Loaded
from elastic_torch.version import Checkpoint, Position

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointLoadError",
    "CheckpointRefusedError",
    "CheckpointSaveError",
    "CheckpointUnreadableError",
    "Disk",
    "Loaded",
    "Position",
]
