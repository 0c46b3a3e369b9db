"""``@record``: a worker writes down the exception that ends it, where its agent looks for the root cause.

The file is torch's (``torch.distributed.elastic.multiprocessing.errors``): scripts may use either decorator. Whoever
knows how far the training is can have that written down with it (:func:`attach`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_P = ParamSpec("_P")
_T = TypeVar("_T")
_attached: list[Callable[[], Mapping[str, object]]] = []


def attach(facts: Callable[[], Mapping[str, object]]) -> None:
    """Have what ``facts()`` returns written down with the exception: by name, in the order in which it returns them.

    They stand behind the message, as ``ValueError: no such layer (step 120, epoch 3)``, and each in ``extraInfo``.
    """
    _attached.append(facts)


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
    facts = _facts()
    where = ", ".join(f"{name} {value}" for name, value in facts.items())
    callstack = "".join(traceback.format_exception(exc))
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time())), **facts}
    text = f"{type(exc).__name__}: {exc}" + (f" ({where})" if where else "")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
        scratch.rename(path)


def _facts() -> dict[str, str]:
    facts: dict[str, str] = {}
    for source in _attached:
        with contextlib.suppress(Exception):  # nothing may hide the exception
            facts.update({name: str(value) for name, value in source().items()})
    return facts
