"""Workers that are Python functions: how a function gets into a fresh interpreter, and its result out of it.

The launcher writes a *call* (function, arguments, and how to find the main program) into a directory of its own;
each worker runs ``python -m elastic_core.agent.calls DIRECTORY ROUND RANK``, finds the function, calls it, and leaves
the result beside it. As with :mod:`multiprocessing`'s ``spawn``, functions travel by name, and a function of the main
program is found by running that program again, under the name ``__mp_main__``. Unlike there, no guard is needed: where
the program would launch again, its repetition ends, since whatever stands above that line is there by then.

Nothing that is unpickled here has come over a network: the directory is the user's own, with nobody else's access.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from elastic_core.errors import UsageError

MAIN = "__mp_main__"
"""What the main program is called while it is run again; a guard ``if __name__ == "__main__"`` holds there too."""
_CALL = "call.pickle"

_repeating = False


class _LaunchReached(BaseException):
    """The repeated main program has come to the line that launches."""


@dataclass(frozen=True, slots=True)
class MainProgram:
    """How to run the main program again."""

    path: str | None
    module: str | None
    argv: tuple[str, ...]
    search: tuple[str, ...]
    """``sys.path``."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a worker calls."""

    function: Callable[..., object]
    arguments: tuple[object, ...] = ()
    by_local_rank: Mapping[int, tuple[object, ...]] = field(default_factory=dict)
    """Arguments of their own for some local ranks."""


def write(call: Call, directory: Path) -> None:
    """Write a call down, for :func:`main` to read in another process.

    Raises:
        UsageError: The function or an argument cannot be sent to another process.
    """
    program, name = _main_program(), _name(call.function)
    if program.path is None and program.module is None and call.function.__module__ == "__main__":
        raise UsageError(
            f"{name} is defined where no other process can find it: in an interactive session.",
            hint="Put it into a module and import it from there.",
        )
    try:
        body = pickle.dumps(call)
    except Exception as exc:  # whatever a __reduce__ raises
        raise UsageError(
            f"{name} or one of its arguments cannot be sent to another process: {type(exc).__name__}: {exc}.",
            hint="Functions travel by name: use one that is defined at the top level of a module, not a lambda.",
        ) from exc
    (directory / _CALL).write_bytes(pickle.dumps((program, body)))


def command(
    directory: Path, *, round_number: int, rank: int, python: Sequence[str] = (sys.executable, "-u")
) -> list[str]:
    """How to start the worker that calls it; its result is that of ``rank`` in this round."""
    return [*python, "-m", __name__, str(directory), str(round_number), str(rank)]


def results(directory: Path) -> dict[int, Any]:
    """What the workers of the newest round returned, by global rank.

    Raises:
        UsageError: A worker returned what could not be sent back.
    """
    found: dict[int, dict[int, Path]] = {}
    for path in directory.glob("result_*_*"):
        _, round_number, of_rank = path.name.split("_")
        found.setdefault(int(round_number), {})[int(of_rank)] = path
    values = {}
    for rank, path in sorted(found[max(found)].items()) if found else ():
        kind, value = pickle.loads(path.read_bytes())
        if kind == "error":
            raise UsageError(f"Rank {rank} returned what cannot be sent back: {value}.")
        values[rank] = value
    return values


def launching() -> None:
    """Called first by everything that launches: in a repeated main program, this is as far as it goes."""
    if _repeating:
        raise _LaunchReached


def main(arguments: list[str]) -> NoReturn:
    """Be one worker: ``DIRECTORY ROUND RANK``."""
    directory, round_number, rank = Path(arguments[0]), *arguments[1:]
    program, body = pickle.loads((directory / _CALL).read_bytes())
    _repeat(program)
    call: Call = pickle.loads(body)
    local_rank = int(os.environ["LOCAL_RANK"])
    from elastic_core.recording import record

    value = record(call.function)(*call.by_local_rank.get(local_rank, call.arguments))
    _leave(directory / f"result_{round_number}_{rank}", value)
    sys.exit(0)


def _leave(path: Path, value: object) -> None:
    try:
        data = pickle.dumps(("value", value))
    except Exception as exc:
        data = pickle.dumps(("error", f"{type(value).__name__}: {exc}"))
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    scratch.rename(path)


def _main_program() -> MainProgram:
    main_module = sys.modules["__main__"]
    spec = getattr(main_module, "__spec__", None)
    path = getattr(main_module, "__file__", None)
    return MainProgram(
        path=None if path is None else os.path.abspath(path),
        module=None if spec is None else spec.name,
        argv=tuple(sys.argv),
        search=tuple(os.path.abspath(entry) for entry in sys.path),
    )


def _repeat(program: MainProgram) -> None:
    """Make this interpreter's main program the launcher's, as far as functions and classes go."""
    global _repeating
    sys.path[:], sys.argv[:] = program.search, program.argv
    module = types.ModuleType(MAIN)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    if program.module is not None:
        spec = importlib.util.find_spec(program.module)
        loader: Any = None if spec is None else spec.loader
        code = None if loader is None else loader.get_code(program.module)
        module.__package__ = program.module.rpartition(".")[0]
        module.__file__ = None if spec is None else spec.origin
    elif program.path is not None and os.path.isfile(program.path):
        code = compile(Path(program.path).read_bytes(), program.path, "exec")
        module.__file__ = program.path
    else:
        return
    if code is None:
        return
    _repeating = True
    try:
        with contextlib.suppress(_LaunchReached):
            exec(code, module.__dict__)
    finally:
        _repeating = False


def _name(function: object) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return repr(function) if module is None or name is None else f"{module}.{name}"


if __name__ == "__main__":
    from elastic_core.agent import calls

    calls.main(sys.argv[1:])  # the imported module, which everybody else sees, and not this copy of it
