"""What runs inside a torch worker: the sampler, the training state and its checkpoints, graceful stops.

Names are imported when they are first used: ``import elastic_torch`` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_torch.agreement import Tier as Tier
    from elastic_torch.process_group import init_process_group as init_process_group
    from elastic_torch.recording import record as record
    from elastic_torch.stamp import Stamp as Stamp
    from elastic_torch.state import Restored as Restored, TrainState as TrainState
    from elastic_torch.tiers import DiskTier as DiskTier

__version__ = "0.1.0"

_HOME: dict[str, str] = {
    "DiskTier": "tiers",
    "Restored": "state",
    "Stamp": "stamp",
    "Tier": "agreement",
    "TrainState": "state",
    "init_process_group": "process_group",
    "record": "recording",
}
"""Where each public name lives."""

__all__ = [
    "DiskTier",
    "Restored",
    "Stamp",
    "Tier",
    "TrainState",
    "__version__",
    "init_process_group",
    "record",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
