"""``@record``: a worker writes down the exception that ends it, where its agent looks for the root cause.

The file is torch's (``torch.distributed.elastic.multiprocessing.errors``): scripts may use either decorator. Whoever
knows how far the training is can have that written down with it (:func:`attach`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NO_MESSAGE = "<NONE>"  # torch's word for the message of a failure that nobody has recorded

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

    Of a job that was launched in here and has failed (``ChildFailedError``), it is what its first failing worker has
    written. Without ``TORCHELASTIC_ERROR_FILE`` in the environment, as outside of a launcher, nothing is written.
    SystemExit is a way to end and no error. A fatal signal, such as SIGSEGV, has Python write the stacks of all threads
    to stderr.
    """

    @functools.wraps(function)
    def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not faulthandler.is_enabled():
            with contextlib.suppress(Exception):  # there may be no stderr
                faulthandler.enable(all_threads=True)
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            if path := os.environ.get(ERROR_FILE):
                write_error_file(Path(path), _data(exc))
            raise

    return recorded


def error_data(
    message: str, callstack: str, exit_code: int | None = None, facts: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what torch's handlers write of an error; ``exit_code`` is negative for a signal that ended a worker."""
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time())), **(facts or {})}
    code = {} if exit_code is None else {"errorCode": exit_code}
    return {"message": {"message": message, **code, "extraInfo": extra}}


def with_exit_code(data: Mapping[str, Any], exit_code: int) -> dict[str, Any]:
    """Return a worker's error file with its exit code, which it could not know; as it is, if it is of another form."""
    message = data.get("message")
    return {**data, "message": {**message, "errorCode": exit_code}} if isinstance(message, dict) else {**data}


def write_error_file(path: Path, data: Mapping[str, Any]) -> bool:
    """Write the file in one piece; whether that was possible, since it must not hide the error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(data))
        scratch.rename(path)
    except (OSError, TypeError, ValueError):  # the last two: another library's failure that is no JSON
        return False
    return True


def _data(exc: BaseException) -> dict[str, Any]:
    with contextlib.suppress(Exception):  # a failed job's, ours or torch's: the error of the worker that failed first
        _, first = exc.get_first_failure()  # type: ignore[attr-defined]
        if first.error_file_data["message"] != NO_MESSAGE:
            return with_exit_code(first.error_file_data, first.exitcode)
    facts = _facts()
    where = ", ".join(f"{name} {value}" for name, value in facts.items())
    text = f"{type(exc).__name__}: {_words(exc)}" + (f" ({where})" if where else "")
    return error_data(text, "".join(traceback.format_exception(exc)), facts=facts)


def _words(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # of another library's ``__str__``; nothing may hide the exception
        return "<its text cannot be made>"


def _facts() -> dict[str, str]:
    facts: dict[str, str] = {}
    for source in _attached:
        with contextlib.suppress(Exception):  # nothing may hide the exception
            facts.update({name: str(value) for name, value in source().items()})
    return facts
