"""The library inside a torch worker: the sampler, the training state and its checkpoints, graceful stops.

Layout: ``data`` has the elastic sampler and its audit, ``state`` the class ``TrainState``, ``memory`` the snapshots in
memory that agents hold, ``disk`` the checkpoints, and ``version`` what orders both. ``process_group`` makes torch's
process group from a worker's environment. ``error_file`` has ``@record``, whose error tells the newest step.
``flight_recorder`` reads at which collective a hang is. ``plugin`` has the hooks that core asks in a worker.

What is there twice, since one of it would lose something:

* Tiers in memory. Of a state that all ranks have (``memory.tier``), each rank goes on from a snapshot of its own, with
  its own random numbers. Of a sharded one (``memory.sharded``) any set of all parts will do, which may be cut anew.
* Copies of a state. Memory has one block that JSON describes, readable by the next process (``memory.buffers``). The
  disk's (``disk.disk``) keeps dicts and DTensors for torch's planners, with values that only pickle can keep.
* Ways for bytes. Parts go from rank to rank beside the training (``state_exchange.Transport``), and a whole state to
  many new ranks by a broadcast, where receivers pass it on (``memory.tier.hand_over``). Files are broadcast in pieces,
  since memory need not have room for one, and past errors of a receiver's disk (``disk.loader``). What each commit
  gathers goes through ``state_exchange.Peers``, which waits in gloo: ``Transport`` looks every 5 ms.
* Agreements. ``disk.collective`` brings exceptions of one rank to all, by pickle, as torch does with its plans. No
  other message is unpickled: ``memory.tier`` chooses, and ``memory.sharded.plan`` plans, by what ``Peers`` gathers.
* Storages (``disk.storage``). A directory has locks and atomic renames, a URL has neither.
* Names of a run. Memory takes the launcher's (``version.Place``). To a checkpoint directory each start under torchrun
  is a run by itself (``disk.fence.Identity``), since two jobs there may have the same id.

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
