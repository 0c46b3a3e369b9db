"""The hooks of ``elastic_core`` in a worker of a run with ``--plugin=torch-save``; torch is imported in the hook.

``state`` has the class, a ``TrainState`` over ``torch.save``.
"""

from collections.abc import Callable

from elastic_core import hookimpl
from elastic_core.worker import TrainingState


@hookimpl
def elastic_train_state() -> type[TrainingState]:
    """Return what ``elastic_core.TrainState`` is."""
    from elastic_torch_save.state import TrainState

    return TrainState


@hookimpl
def elastic_init_process_group() -> Callable[..., None]:
    """Return what ``elastic_core.init_process_group`` is."""
    from elastic_torch_save.state import init_process_group

    return init_process_group
