"""``@record``: as torch's decorator, and the error says at which step and epoch the newest ``TrainState`` was.

It is ``elastic_core``'s; :func:`follow` adds step and epoch. A custom error handler is accepted as torch does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from elastic_core.worker import attach, record as record_error

if TYPE_CHECKING:
    from elastic_torch.state.train_state import TrainState

_P = ParamSpec("_P")
_T = TypeVar("_T")


UNSET = "none left: what the loop over them sets needs a value from before it"
_states: list[weakref.ref[TrainState]] = []  # in the order in which they were made


def follow(state: TrainState) -> None:
    """Have error files say how far this state is, while it is the newest that lives."""
    _states.append(weakref.ref(state))


def _newest() -> Mapping[str, object]:
    living = [state for reference in _states if (state := reference()) is not None]
    if not living:
        return {}
    lacking = {"batches": UNSET} if living[-1].lacks_batches else {}
    return {"step": living[-1].step, "epoch": living[-1].epoch, **lacking}


attach(_newest)


@overload
def record(function: Callable[_P, _T], error_handler: Any = None) -> Callable[_P, _T]: ...


@overload
def record(function: None = None, error_handler: Any = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...


def record(function: Callable[_P, _T] | None = None, error_handler: Any = None) -> Any:
    """Decorate a worker's main function: what it raises is written to the error file, and raised on.

    Args:
        function: The function; without one, ``record()`` is the decorator.
        error_handler: torch's ``ErrorHandler``, or an object with its ``initialize()`` and ``record_exception(error)``,
            to write the file in its own way.
    """
    if function is None:
        return lambda function: record(function, error_handler)
    if error_handler is None:
        return record_error(function)
    from torch.distributed.elastic.multiprocessing.errors import record as torchs

    return torchs(function, error_handler)
