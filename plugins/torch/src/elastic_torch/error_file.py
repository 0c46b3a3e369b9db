"""``@record``: as torch's decorator, and the error says at which step and epoch the newest ``TrainState`` was.

It is ``elastic_core``'s; ``state.progress`` adds step and epoch. A custom error handler is accepted as torch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from elastic_core.worker import error_file

_P = ParamSpec("_P")
_T = TypeVar("_T")


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
        return error_file.record(function)
    from torch.distributed.elastic.multiprocessing.errors import record as torchs

    return torchs(function, error_handler)
