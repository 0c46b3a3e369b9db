"""The library inside a torch worker: the sampler, the training state and its checkpoints, graceful stops.

Layout: ``data`` has the elastic sampler and its audit, ``state`` the class ``TrainState``, ``memory`` the snapshots in
memory that agents hold, ``disk`` the checkpoints, and ``version`` what orders both. ``process_group`` makes torch's
process group from a worker's environment. ``error_file`` has ``@record``, whose error tells the newest step.
``flight_recorder`` reads at which collective a hang is. ``plugin`` has the hooks that core asks in a worker.

Names are imported when they are first used: ``import elastic_torch`` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.worker import should_checkpoint as should_checkpoint
    from elastic_torch.data.partition import loss_weight as loss_weight
    from elastic_torch.data.sampler import (
        ElasticBatchSampler as ElasticBatchSampler,
        ElasticDistributedSampler as ElasticDistributedSampler,
    )
    from elastic_torch.data.seeded_dataset import SeededDataset as SeededDataset
    from elastic_torch.data.step_counts import EpochNotReadError as EpochNotReadError
    from elastic_torch.disk import (
        Checkpoint as Checkpoint,
        CheckpointError as CheckpointError,
        CheckpointLoadError as CheckpointLoadError,
        CheckpointRefusedError as CheckpointRefusedError,
        CheckpointSaveError as CheckpointSaveError,
        Disk as Disk,
    )
    from elastic_torch.error_file import record as record
    from elastic_torch.memory.tier import Tier as Tier
    from elastic_torch.process_group import init_process_group as init_process_group
    from elastic_torch.state.checkpoints import DiskTier as DiskTier
    from elastic_torch.state.train_state import Restored as Restored, TrainState as TrainState
    from elastic_torch.version import Stamp as Stamp

__version__ = "0.1.0"

_NAMES = {
    "elastic_core.worker": "should_checkpoint",
    "elastic_torch.data.partition": "loss_weight",
    "elastic_torch.data.sampler": "ElasticBatchSampler ElasticDistributedSampler",
    "elastic_torch.data.seeded_dataset": "SeededDataset",
    "elastic_torch.data.step_counts": "EpochNotReadError",
    "elastic_torch.disk": "Checkpoint CheckpointError CheckpointLoadError CheckpointRefusedError CheckpointSaveError "
    "Disk",
    "elastic_torch.error_file": "record",
    "elastic_torch.process_group": "init_process_group",
    "elastic_torch.state.checkpoints": "DiskTier",
    "elastic_torch.memory.tier": "Tier",
    "elastic_torch.state.train_state": "Restored TrainState",
    "elastic_torch.version": "Stamp",
}
"""The public names of each module."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(["__version__", *_HOME])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(f"{__name__}.{name} needs torch, which is not installed here: pip install torch.") from None


def __dir__() -> list[str]:
    return __all__
