"""``elastic exec``: become a command, below which torchrun is Elastic's."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

import click

from elastic_core.errors import UsageError
from elastic_torchrun.startup import VARIABLE


@click.command(
    "exec",
    help="Run COMMAND; wherever it or what it starts asks for torchrun, it gets `elastic run`.\n\n"
    "That is the program torchrun, `python -m torch.distributed.run` and `.launch`, and whoever calls "
    "torch.distributed.run.run() or main(), as `accelerate launch` and `fabric run` do. Each time one line says so. "
    "What Elastic does not take is passed on to torch's own, and one line says why.\n\n"
    "It works in each Python environment where elastic-torchrun is installed. Workers, and what they start, "
    "find torch's own torchrun.",
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
    """
    if not command:
        raise UsageError("Missing command.", hint="For example: elastic exec accelerate launch train.py")
    # The environment of this interpreter comes last: its commands are found even where it is not activated.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    if (found := shutil.which(command[0], path=path)) is None:
        raise UsageError(f"There is no command {command[0]!r}.", hint=f"It is looked for in {path}.")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(found, command, {**os.environ, "PATH": path, VARIABLE: str(os.getpid())})
    except OSError as exc:
        raise UsageError(f"{found!r} cannot be run: {exc.strerror}.") from None
