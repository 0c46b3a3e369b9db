"""The hooks of core in a worker (family 4 of ``elastic_core.hookspecs``); torch is imported then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core import hookimpl

if TYPE_CHECKING:
    from elastic_core.worker import TrainingState

elastic_hookspec_major = 2


@hookimpl
def elastic_train_state() -> type[TrainingState]:
    """Return ``elastic_torch.TrainState``."""
    from elastic_torch.state.train_state import TrainState

    return TrainState


@hookimpl
def elastic_init_process_group() -> Callable[..., None]:
    """Return ``elastic_torch.init_process_group``."""
    from elastic_torch.process_group import init_process_group

    return init_process_group
