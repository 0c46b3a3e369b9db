"""What ``elastic`` offers to a training script and needs torch for: ``elastic_torch``'s, reached when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_core import _OF_TORCH
from elastic_core.errors import UsageError

if TYPE_CHECKING:
    TrainState: Any
    init_process_group: Any


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("elastic_torch"), name)
    except ModuleNotFoundError as exc:
        if exc.name not in ("elastic_torch", "torch"):
            raise
        what = "elastic-torch" if exc.name == "elastic_torch" else "torch"
        raise UsageError(
            f"elastic.{name} needs {what}, which is not installed here.",
            hint="Install it with: pip install elastic-torch",
        ) from None
