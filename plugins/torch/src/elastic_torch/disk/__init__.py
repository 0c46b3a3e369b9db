"""The disk tier: checkpoints that outlive the job, in the format of ``torch.distributed.checkpoint``.

How the rooms lie: :mod:`position` orders checkpoints, :mod:`fence` says whose turn it is to save, :mod:`storage` and
:mod:`url` write what stays written, :mod:`manifest` lists the files of a checkpoint with their checksums,
:mod:`catalog` finds, checks and removes checkpoints, :mod:`lineage` says which of them are one training's,
:mod:`retry` reads over errors that pass, :mod:`state_copy` copies what training goes on changing,
:mod:`dcp` speaks torch's format, :mod:`saver` and :mod:`loader` are what the ranks do together, over :mod:`collective`,
:mod:`shared_dirs` says which of them see the same directory, :mod:`interval` how often it is worth it, and :mod:`disk`
is the door.
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
from elastic_torch.disk.interval import daly_interval, young_interval
from elastic_torch.disk.loader import Loaded
from elastic_torch.disk.position import Checkpoint, Position

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
    "daly_interval",
    "young_interval",
]
