"""``@record``: a worker writes the exception that ends it to a file, where its agent looks for the root cause.

The file is torch's (``torch.distributed.elastic.multiprocessing.errors``): scripts may use either decorator. A library
that knows the progress of the training can have it written, too (:func:`attach`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import stat
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NO_MESSAGE = "<NONE>"  # torch's message of a failure that was not recorded
MEMBER = "elastic"  # of an error file: what its writer knows besides torch's ``message``
_MOST = 1 << 20

_P = ParamSpec("_P")
_T = TypeVar("_T")
_attached: list[Callable[[], Mapping[str, object]]] = []


def attach(facts: Callable[[], Mapping[str, object]]) -> None:
    """Have the result of ``facts()`` written with the exception, in its order.

    They stand behind the message, as ``ValueError: no such layer (step 120, epoch 3)``, and each in ``extraInfo``.
    """
    _attached.append(facts)


def record(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a worker's main function: an exception is written to the error file, and raised again.

    For a job that was launched in the function and has failed (``ChildFailedError``), the error of its first failing
    worker is written. Without ``TORCHELASTIC_ERROR_FILE`` in the environment, as without a launcher, nothing is
    written; SystemExit is no error. On a fatal signal, such as SIGSEGV, Python writes all threads' stacks to stderr.
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
    """Return an error in the form of torch's handlers; ``exit_code`` is negative for a signal that ended a worker."""
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time())), **(facts or {})}
    code = {} if exit_code is None else {"errorCode": exit_code}
    return {"message": {"message": message, **code, "extraInfo": extra}}


def with_exit_code(data: Mapping[str, Any], exit_code: int) -> dict[str, Any]:
    """Return a worker's error file with its exit code, which it could not know; unchanged if its form is another."""
    message = data.get("message")
    return {**data, "message": {**message, "errorCode": exit_code}} if isinstance(message, dict) else {**data}


def read_error_file(path: Path) -> dict[str, Any]:
    """Return what an error file has in it; {} if it is no plain file, or no JSON object. A FIFO is not waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            data = json.loads(file.read(_MOST)) if stat.S_ISREG(os.fstat(fd).st_mode) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def message_of(data: Mapping[str, Any]) -> str:
    """Return the message of an error file, as torch's handlers write it or as a text alone; '' for none."""
    message = data.get("message")
    said = message.get("message") if isinstance(message, dict) else message
    return said if isinstance(said, str) else ""


def as_torchs(data: Mapping[str, Any], exit_code: int) -> dict[str, Any]:
    """Return an error file as torch's ``@record`` would have written it; {} if it does not explain an exit code.

    The exception of the main thread explains any, since the process may crash later. A program may survive an exit, or
    the exception of a thread (``errorCode`` 0).
    """
    message, member = data.get("message"), data.get(MEMBER)
    code = message.get("errorCode") if MEMBER in data and isinstance(message, dict) else None
    survived = isinstance(member, dict) and member.get("by") == "exit"
    explains = code in (None, exit_code) or (code == 1 and not survived) or (code == 0 and exit_code > 0)
    if not (explains and message_of(data).strip()):
        return {}
    return {name: value for name, value in data.items() if name != MEMBER}


def write_error_file(path: Path, data: Mapping[str, Any]) -> bool:
    """Write the file atomically; whether that succeeded, since a failure to write must not hide the error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(data))
        scratch.rename(path)
    except (OSError, TypeError, ValueError):  # the last two: another library's failure that is no JSON
        return False
    return True


def _data(exc: BaseException) -> dict[str, Any]:
    with contextlib.suppress(Exception):  # a ChildFailedError, ours or torch's
        _, first = exc.get_first_failure()  # type: ignore[attr-defined]
        if first.error_file_data["message"] != NO_MESSAGE:
            return with_exit_code(first.error_file_data, first.exitcode)
    message, facts = "<its text cannot be made>", dict[str, str]()
    with contextlib.suppress(Exception):  # of another library's ``__str__``; nothing may hide the exception
        message = str(exc)
    for source in _attached:
        with contextlib.suppress(Exception):
            facts.update({name: str(value) for name, value in source().items()})
    where = ", ".join(f"{name} {value}" for name, value in facts.items())
    text = f"{type(exc).__name__}: {message}" + (f" ({where})" if where else "")
    return error_data(text, "".join(traceback.format_exception(exc)), facts=facts)
