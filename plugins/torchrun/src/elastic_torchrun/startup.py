"""The start of an interpreter; ``elastic_torchrun.pth`` calls :func:`begin` below ``elastic exec``.

An interpreter that is about to run the program ``torchrun`` becomes ours, before it has imported torch. In any other
one, torch's launcher gets our functions when it is imported. Every Python process below ``elastic exec``
imports this module, so it imports little.

Anywhere, the file calls :func:`answer` for ``python -m`` with a launcher of torchelastic's or Bagua's.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

VARIABLE = "ELASTIC_EXEC"  # set by ``elastic exec``, to the id of the process that becomes the command
LAUNCHER = "torch.distributed.run"  # the module behind the program ``torchrun``
API = "torch.distributed.launcher.api"  # the module for programs whose workers are functions
_SCRIPT_BYTES = 4096


def is_torchrun(argv: Sequence[str], orig_argv: Sequence[str]) -> bool:
    """Return True if an interpreter with this ``sys.argv``, at its start, and ``sys.orig_argv`` is to run torchrun."""
    if not argv:
        return False
    if argv[0] == "-m":  # its name is the last word that is not an argument; -mNAME is one word
        return orig_argv[len(orig_argv) - len(argv)].removeprefix("-m") == LAUNCHER
    return os.path.basename(argv[0]) == "torchrun" and _calls_torch(argv[0])


def _calls_torch(script: str) -> bool:
    """Return True if it is the script that torch installs, and not another one of that name."""
    try:
        with open(script, "rb") as file:
            return f"from {LAUNCHER} import".encode() in file.read(_SCRIPT_BYTES)
    except OSError:
        return False


class Finder:
    """Finds the two modules where they are, with a :class:`Loader` of ours."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return the module's spec; None for any other module."""
        if name not in (LAUNCHER, API):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):  # one of an older kind, which Python passes over
                continue
            if (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader)  # type: ignore[assignment]  # it has all that a loader must have
                return spec
        return None


class Loader:
    """Loads the module as its own loader does, and then puts our functions in the place of torch's."""

    def __init__(self, torchs: Any) -> None:
        self._torchs = torchs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchs, name)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then replace its functions."""
        self._torchs.exec_module(module)
        from elastic_torchrun import launcher

        launcher.replace(module)

    def get_code(self, name: str) -> CodeType:
        """Return what :mod:`runpy` runs, for a debugger for example, as the program ``-m torch.distributed.run``."""
        if name != LAUNCHER:
            return self._torchs.get_code(name)  # type: ignore[no-any-return]  # a loader's
        return compile(f"import sys\nfrom {name} import main\nsys.exit(main())", f"<{name}>", "exec")


def install() -> None:
    """Have torch's launcher replaced when it is imported."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def begin() -> None:
    """Become our torchrun, or have torch's launcher replaced. A second call, by way of lib64, does nothing."""
    if is_torchrun(sys.argv, sys.orig_argv):
        with suppress(OSError):  # no memory, or a program that embeds Python: torchrun's own import is replaced then
            os.execv(sys.executable, [sys.executable, "-m", "elastic_torchrun", *sys.argv[1:]])
    install()


class _Absent:
    """The last finder: ends the process, with the line to type, if the package of the launcher is not installed."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Return if another module is asked for.

        Raises:
            SystemExit: The package is asked for, with the code of a wrong command line.
        """
        if name == self._launcher.partition(".")[0]:
            from elastic_core.exit_codes import ExitCode

            line = shlex.join(["elastic", "run", *sys.argv[1:]])
            print(f"elastic: error: {name} is not installed, and is not needed. Type:\n\n{line}", file=sys.stderr)
            raise SystemExit(int(ExitCode.USAGE))


def answer() -> None:
    """Have ``python -m torchelastic.distributed.launch``, or another absent launcher, answered with a line to type."""
    sys.meta_path.append(_Absent(sys.orig_argv[-len(sys.argv)].removeprefix("-m")))
