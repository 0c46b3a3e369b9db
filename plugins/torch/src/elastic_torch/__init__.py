"""What runs inside a torch worker: the sampler, the training state and its checkpoints, graceful stops.

Names are imported when they are first used: ``import elastic_torch`` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_torch.notices import should_checkpoint as should_checkpoint

__version__ = "0.1.0"

_HOME: dict[str, str] = {
    "should_checkpoint": "notices",
}
"""Where each public name lives."""

__all__ = [
    "__version__",
    "should_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
