"""The disk tier: checkpoints that outlive the job, in the format of ``torch.distributed.checkpoint``.

- :mod:`disk` has the class ``Disk``, the copies of the state and the thread that writes them; :mod:`schedule` says when
  a checkpoint is due.
- :mod:`saver` and :mod:`loader` are what all ranks do together, over a :mod:`collective`. The :mod:`fence` says which
  run may save, and which checkpoints belong to one training.
- :mod:`dcp` has torch's format, :mod:`manifest` the list of files with checksums.
- :mod:`catalog` finds, checks and removes checkpoints. :mod:`storage` has durable places, directories and URLs;
  :mod:`retry` repeats reads after transient errors. :mod:`errors` says what can go wrong.
"""

from __future__ import annotations

from elastic_torch.disk.disk import Disk as Disk
from elastic_torch.disk.errors import (
    CheckpointError as CheckpointError,
    CheckpointLoadError as CheckpointLoadError,
    CheckpointRefusedError as CheckpointRefusedError,
    CheckpointSaveError as CheckpointSaveError,
    CheckpointUnreadableError as CheckpointUnreadableError,
)
from elastic_torch.disk.loader import Loaded as Loaded
from elastic_torch.version import Checkpoint as Checkpoint, Position as Position
