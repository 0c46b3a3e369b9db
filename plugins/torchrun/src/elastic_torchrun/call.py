"""Workers that are Python functions (``docs/python_api.md``): sends a function to an interpreter, and its result back.

The launcher writes a *call* into a private directory, so nothing unpickled comes from a network. Each worker runs
this module, and leaves the result beside the call. Functions of the main program are found by running it again, as
:mod:`multiprocessing`'s ``spawn`` does, up to the line that launches. Functions of a notebook, which cannot be run
again, and their results travel by value, with cloudpickle.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import pkgutil
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from elastic_core.errors import UsageError
from elastic_core.worker import record

MODULE = "elastic_torchrun.call"
MAIN = "__mp_main__"
"""The main program's name while it is run again; a guard ``if __name__ == "__main__"`` holds there too."""
_CALL = "call.pickle"

_repeating = False


class _LaunchReached(BaseException):
    """The repeated main program has come to the line that launches."""


@dataclass(frozen=True, slots=True)
class MainProgram:
    """The way to run the main program again, which is not possible if it is neither a file nor a module."""

    path: str | None  # a file, or a directory or an archive with a ``__main__.py``
    module: str | None  # its name, with ``python -m``
    argv: tuple[str, ...]
    search: tuple[str, ...]  # ``sys.path``


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a worker."""

    function: Callable[..., object]
    arguments: tuple[object, ...] = ()
    by_value: bool = False  # whether functions and classes of the main program travel by value; write() decides it


def write(call: Call, directory: Path) -> None:
    """Write a call to a file, for :func:`main` to read in another process.

    Raises:
        UsageError: The function or an argument cannot be sent to another process.
    """
    program, name = _main_program(), _name(call.function)
    found_again = program.path is not None or program.module is not None
    by_value = not found_again and importlib.util.find_spec("cloudpickle") is not None
    if not found_again and not by_value and call.function.__module__ == "__main__":
        raise UsageError(
            f"{name} is defined where no other process can find it: the main program is no file.",
            hint="Install cloudpickle, or put it into a module and import it from there.",
        )
    try:
        body = _dumps(replace(call, by_value=by_value), by_value=by_value)
    except Exception as exc:  # whatever a __reduce__ raises
        raise UsageError(
            f"{name} or one of its arguments cannot be sent to another process: {type(exc).__name__}: {exc}.",
            hint="Functions travel by name: use one that is defined at the top level of a module, not a lambda.",
        ) from exc
    (directory / _CALL).write_bytes(pickle.dumps((program, body)))


def results(directory: Path) -> dict[int, Any]:
    """Return what the workers of the newest round returned, by global rank; all of them have exited with 0.

    Raises:
        UsageError: A worker did not come to its function's end, or its result cannot be sent back.
    """
    # Instances of the main program's classes are found here under either name.
    sys.modules.setdefault(MAIN, sys.modules["__main__"])
    found: dict[int, dict[int, Path]] = {}
    for path in directory.glob("result_*_*"):
        _, round_number, of_rank = path.name.split("_")
        found.setdefault(int(round_number), {})[int(of_rank)] = path
    return {rank: _result(rank, path) for rank, path in sorted(found[max(found)].items())} if found else {}


def _result(rank: int, path: Path) -> object:
    try:
        kind, value = pickle.loads(path.read_bytes())
    except Exception as exc:  # whatever a __setstate__ raises
        raise UsageError(
            f"What rank {rank} returned cannot be read here: {type(exc).__name__}: {exc}.",
            hint="Return instances of classes that this program finds, too: those at the top level of a module.",
        ) from exc
    match kind:
        case "unfinished":
            raise UsageError(
                f"Rank {rank} has exited with 0 before its function returned, so there is no result.",
                hint="Leave the function by return or sys.exit(), not by os._exit().",
            )
        case "error":
            raise UsageError(f"Rank {rank} returned what cannot be sent back: {value}.")
    return value


def launching() -> None:
    """End a repeated main program here: each function that launches calls this first.

    Raises:
        UsageError: :mod:`multiprocessing` repeats the main program, which then has to run to its end.
    """
    if _repeating:
        raise _LaunchReached
    module: Any = sys.modules.get("multiprocessing.process")  # not imported: no child
    if module is not None and getattr(module.current_process(), "_inheriting", False):
        raise UsageError(
            "A child process that multiprocessing has started runs the main program again, and that would launch.",
            hint='Put the launch behind `if __name__ == "__main__":`.',
        )


def main(arguments: list[str]) -> NoReturn:
    """Be the worker that makes the call of a directory."""
    directory = Path(arguments[0])
    result = directory / f"result_{os.environ['ELASTIC_ROUND']}_{os.environ['RANK']}"
    _leave(result, "unfinished")
    call = _read(directory)
    _leave(result, "value", _called(call), by_value=call.by_value)
    sys.exit(0)


@record
def _read(directory: Path) -> Call:
    """Return the call that :func:`write` has written, once the main program's definitions are here."""
    program, body = pickle.loads((directory / _CALL).read_bytes())
    _repeat(program)
    call: Call = pickle.loads(body)
    return call


def _called(call: Call) -> object:
    """Return the function's result; None if it ends with ``sys.exit()`` and code 0."""
    try:
        return record(call.function)(*call.arguments)
    except SystemExit as end:
        if end.code:
            raise
        return None


def _leave(path: Path, kind: str, value: object = None, *, by_value: bool = False) -> None:
    try:
        data = _dumps((kind, value), by_value=by_value)
    except Exception as exc:
        data = pickle.dumps(("error", f"{type(value).__name__}: {exc}"))
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    scratch.rename(path)


def _dumps(value: object, *, by_value: bool) -> bytes:
    """Return a pickle that :func:`pickle.loads` reads; by value, the reader needs cloudpickle, too."""
    dumps: Callable[[object], bytes] = importlib.import_module("cloudpickle" if by_value else "pickle").dumps
    return dumps(value)


def _main_program() -> MainProgram:
    main_module = sys.modules["__main__"]
    spec = getattr(main_module, "__spec__", None)
    path = getattr(main_module, "__file__", None)
    if spec is not None and spec.name == "__main__" and path is not None:
        spec, path = None, os.path.dirname(path)  # `python directory`, `python archive.zip`
    return MainProgram(
        path=os.path.abspath(path) if path is not None and os.path.exists(path) else None,  # not '<stdin>'
        module=None if spec is None else spec.name,
        argv=tuple(sys.argv),
        search=tuple(os.path.abspath(entry) for entry in sys.path),
    )


def _repeat(program: MainProgram) -> None:
    global _repeating
    sys.path[:], sys.argv[:] = program.search, program.argv
    module = types.ModuleType(MAIN)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    code = _code(program, module)
    if code is None:
        return
    _repeating = True
    try:
        exec(code, module.__dict__)
    except _LaunchReached:
        pass
    except SystemExit as end:
        raise UsageError(
            f"A worker ran the main program again, for what it defines, and that ended in sys.exit({end.code!r}).",
            hint='Put the launch behind `if __name__ == "__main__":`; a bare `except:` catches what ends it otherwise.',
        ) from None  # it followed from ours, which the program has caught
    finally:
        _repeating = False


def _code(program: MainProgram, module: types.ModuleType) -> types.CodeType | None:
    """Return the code to run in ``module``, and set its origin as for a main program; None without code."""
    if program.module is not None:
        spec = importlib.util.find_spec(program.module)
    elif program.path is None:
        return None
    elif (importer := pkgutil.get_importer(program.path)) is None:  # so runpy tells a script from a directory
        module.__file__ = program.path
        return compile(Path(program.path).read_bytes(), program.path, "exec")
    else:
        spec = importer.find_spec("__main__", None)
    loader: Any = None if spec is None else spec.loader
    if spec is None or loader is None:
        return None
    module.__spec__, module.__loader__, module.__package__, module.__file__ = spec, loader, spec.parent, spec.origin
    code: types.CodeType | None = loader.get_code(spec.name)
    return code


def _name(function: object) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return repr(function) if module is None or name is None else f"{module}.{name}"


if __name__ == "__main__":
    from elastic_torchrun import call as calls

    calls.main(sys.argv[1:])  # in the module that other modules import, not in this copy
