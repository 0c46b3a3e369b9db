"""What runs inside a torch worker: the sampler, the training state and its checkpoints, graceful stops.

Names are imported when they are first used: ``import elastic_torch`` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME: dict[str, str] = {
    "ElasticBatchSampler": "sampler",
    "ElasticDistributedSampler": "sampler",
    "loss_weight": "shares",
}
"""Where each public name lives."""

__all__ = ["ElasticBatchSampler", "ElasticDistributedSampler", "__version__", "loss_weight"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(f"{__name__}.{name} needs torch, which is not installed here: pip install torch.") from None


def __dir__() -> list[str]:
    return __all__
