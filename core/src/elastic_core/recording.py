"""``@record``: a worker writes down the exception that ends it, where its agent looks for the root cause.

The file is torch's (``torch.distributed.elastic.multiprocessing.errors``): scripts may use either decorator.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_P = ParamSpec("_P")
_T = TypeVar("_T")


def record(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a worker's main function: what it raises is written to the error file, and raised on.

    Without ``TORCHELASTIC_ERROR_FILE`` in the environment, as outside of a launcher, nothing is written. SystemExit is
    a way to end and no error.
    """

    @functools.wraps(function)
    def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            if path := os.environ.get(ERROR_FILE):
                _write(Path(path), exc)
            raise

    return recorded


def _write(path: Path, exc: BaseException) -> None:
    """Write the file in one piece; that it cannot be written must not hide the exception."""
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": {"message": f"{type(exc).__name__}: {exc}", "extraInfo": extra}}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(message))
        scratch.rename(path)
