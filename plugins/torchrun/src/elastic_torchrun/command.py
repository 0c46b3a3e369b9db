"""``elastic exec``: become a command, below which torchrun is Elastic's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import site
import sys
import sysconfig
from collections.abc import Iterable

import click

from elastic_core.cli import warn
from elastic_core.errors import PluginError, UsageError, how_to_install
from elastic_torchrun.startup import VARIABLE

PTH = "elastic_torchrun.pth"
_SHEBANG = re.compile(rb"#!\s*(/\S*/)python[\d.]*\s")


@click.command(
    "exec",
    help="Run COMMAND. Where COMMAND or a program that it starts asks for torchrun, it gets `elastic run`.\n\n"
    "`elastic run` replaces the program torchrun, `python -m torch.distributed.run` and `.launch`, and the functions "
    "torch.distributed.run.run(), main() and elastic_launch(), which `accelerate launch` and `fabric run` call. "
    "One line says so each time. torch's own launcher gets what Elastic does not take, and one line says why.\n\n"
    "This works in each Python environment in which elastic-torchrun is installed. Workers, and programs that they "
    "start, find torch's own torchrun.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "max_content_width": 100,
    },
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
def command(command: tuple[str, ...]) -> None:
    """Become the command.

    Raises:
        UsageError: There is none, or it cannot be found or run.
        PluginError: The distribution is not installed in a way in which it works.
    """
    if not command:
        raise UsageError("Missing command.", hint="For example: elastic exec accelerate launch train.py")
    # The environment of this interpreter comes last: its commands are found even where it is not activated.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    if (found := shutil.which(command[0], path=path)) is None:
        if os.path.isfile(command[0]):
            hint = f"If it is a Python script: elastic exec python {command[0]} …"
            raise UsageError(f"{command[0]!r} is a file, and no command that can be run.", hint=hint)
        raise UsageError(f"There is no command {command[0]!r}.", hint=f"It is looked for in {path}.")
    if not is_installed([*site.getsitepackages(), site.getusersitepackages()]):
        raise PluginError(
            f"elastic-torchrun is not installed completely: {PTH} is in no folder of {sys.executable} that reads it.",
            hint="Install it with pip, into the environment itself: not with --target, and not by PYTHONPATH.",
        )
    torchrun = shutil.which("torchrun", path=path)
    if torchrun is not None and is_foreign(torchrun, os.path.dirname(sys.executable)):
        hint = how_to_install("elastic-torchrun")
        warn(f"{torchrun} belongs to another Python environment, and stays torch's own. In that one: {hint}")
    sys.stdout.flush()
    sys.stderr.flush()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python itself; the command has them as a shell gives them
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(found, command, {**os.environ, "PATH": path, VARIABLE: str(os.getpid())})
    except OSError as exc:
        hint = "If it is a script: its first line must name an interpreter that is there, such as #!/bin/sh."
        raise UsageError(f"{found!r} cannot be run: {exc.strerror}.", hint=hint) from None


def is_installed(folders: Iterable[str]) -> bool:
    """Return True if interpreters of an environment with these site folders read our ``.pth`` file at the start."""
    return any(os.path.exists(os.path.join(folder, PTH)) for folder in folders)


def is_foreign(script: str, folder: str) -> bool:
    """Return True if a Python script is surely run by another environment's interpreter than those in ``folder``."""
    try:
        with open(script, "rb") as file:
            shebang = _SHEBANG.match(file.readline())
    except OSError:
        return False
    return shebang is not None and os.path.realpath(os.fsdecode(shebang[1])) != os.path.realpath(folder)
