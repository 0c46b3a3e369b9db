"""The command ``elastic``: imports only the subcommand that is called, and prints all errors; no other module does.

An error is one sentence, its hint after a blank line, and an exit code.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TextIO

import click

from elastic_core.cli.interrupt import raise_again
from elastic_core.errors import ElasticError, PluginError, UsageError, did_you_mean
from elastic_core.exit_codes import ExitCode, signalled
from elastic_core.host.terminal import printable_lines
from elastic_core.version import __version__

RUN = "run"  # core's own command
HELP = ["-h", "--help"]
MAX_WIDTH = 120  # columns of help; a narrower terminal has its own width
EXHAUSTED = {
    errno.EMFILE: "file descriptor",
    errno.ENFILE: "file descriptor",
    errno.EAGAIN: "process",
    errno.ENOMEM: "memory",
    errno.ENOSPC: "room on a disk",
    errno.EDQUOT: "room on a disk",
}
COMPLETE = "_ELASTIC_COMPLETE"
DEFECT = "This is a defect of Elastic, not of your program. Please report it with the lines above."
LIMITS = "Check the limits of processes, open files and memory (ulimit -a, the container's), and disks (df, quota)."


class Elastic(click.Group):
    """The group of all commands: ``run``, and those in the entry-point group ``elastic.commands``."""

    def __init__(self) -> None:
        super().__init__(
            "elastic",
            help="Launch and supervise distributed training that survives crashes, lost nodes and preemption.",
            context_settings={"help_option_names": HELP, "max_content_width": MAX_WIDTH},
        )
        click.version_option(__version__, message="%(prog)s %(version)s")(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return core's command, then those of plugins."""
        from elastic_core.plugins.entry_points import Catalogue, Group

        return [RUN, *(name for name in Catalogue.read().names(Group.COMMANDS) if name != RUN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return a stand-in for a command, also for one that does not exist: help and completion need only its line.

        :meth:`resolve_command` imports the command.
        """
        from elastic_core.distributions import described

        texts = {**described("commands"), RUN: "Start a program on this node as part of a job."}
        return click.Command(cmd_name, short_help=texts.get(cmd_name, "From a plugin."))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command, in which SIGINT raises KeyboardInterrupt; for ``run``, start the warden before."""
        name, *rest = args
        if ctx.resilient_parsing:  # a shell completes the line
            with suppress(ElasticError):
                return name, _import_command(name), rest
            return None, None, args
        if name == RUN and not {*HELP} & {*rest}:
            from elastic_core.agent.start import begun

            ctx.obj = ctx.with_resource(begun())
        command = _import_command(name)
        raise_again()
        return name, command, rest


def _import_command(name: str) -> click.Command:
    """Return a command.

    Raises:
        UsageError: No command has that name.
        PluginError: The command is not installed, cannot be imported, or is no click command.
    """
    if name == RUN:
        from elastic_core.cli import run

        return run.command
    from elastic_core.distributions import brought
    from elastic_core.plugins.entry_points import Catalogue, Group, import_plugin

    catalogue = Catalogue.read()
    installed = catalogue.names(Group.COMMANDS)
    if name not in installed and name not in (others := brought(Group.COMMANDS.kind)):
        known = [RUN, *installed, *others, *HELP]
        is_program = name.endswith(".py") or os.path.exists(name)
        meant = f" Did you mean: elastic run {name}?" if is_program else did_you_mean(name, known)
        raise UsageError(f"There is no command {name!r}.{meant}", hint="See elastic --help.")
    offer = catalogue.find(name, Group.COMMANDS)
    command = import_plugin(offer)
    if not isinstance(command, click.Command):
        raise PluginError(f"The {offer} is no click command.")
    return command


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command and return the exit code; print what went wrong.

    click's ``main`` is not used: it treats any broken pipe as a closed stdout, and would hide defects of the agent.
    """
    launches = has_code = arguments[:1] == [RUN]
    try:
        if instruction := os.environ.get(COMPLETE):  # of a shell
            from click.shell_completion import shell_complete  # a launch does without it

            return shell_complete(command, {}, "elastic", COMPLETE, instruction)
        with command.make_context("elastic", list(arguments)) as context:
            return int(command.invoke(context) or ExitCode.SUCCESS)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        return signalled(signal.SIGINT)
    except Exception as exc:
        if isinstance(exc, BrokenPipeError):
            from elastic_core.worker.channel import wait_until_ready  # a launch does without it so early

            if wait_until_ready(sys.stdout.fileno(), 0, 0):  # closed, as by ``head``
                _silence(sys.stdout)
                return signalled(signal.SIGPIPE)
        has_code = True
        return _failed(*_explained(exc), launches)
    finally:  # a stream that cannot be written, such as a closed terminal, does not change the exit code
        for stream in [sys.stderr, sys.stdout] if has_code else [sys.stderr]:
            try:
                if stream is not None:  # None: it was closed when this process began
                    stream.flush()
            except OSError:
                _silence(stream)


def _explained(exc: Exception) -> tuple[str, str | None, int]:
    """Return the message, the hint and the exit code for an error; print the traceback of a defect of Elastic."""
    if isinstance(exc, ElasticError):
        return exc.message, exc.hint, exc.exit_code
    if isinstance(exc, click.ClickException):
        return *_in_our_words(exc), ExitCode.USAGE
    missing = EXHAUSTED.get(exc.errno or 0) if isinstance(exc, OSError) else None
    if isinstance(exc, RuntimeError) and "can't start new thread" in str(exc):
        missing = "thread"
    if missing is not None:
        return f"This machine has no {missing} left: {exc}.", LIMITS, ExitCode.WITHDRAWN
    traceback.print_exception(exc)
    return f"{type(exc).__name__}: {exc}", DEFECT, ExitCode.INTERNAL


def _in_our_words(exc: click.ClickException) -> tuple[str, str]:
    """Return the message and the hint for an error of click."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    hint = f"See {context.command_path if context else 'elastic'} --help."
    if isinstance(exc, click.NoSuchOption) and context:
        known = [spelling for param in context.command.get_params(context) for spelling in param.opts]
        if isinstance(context.command, click.Group):
            from elastic_core.cli.option import candidates
            from elastic_core.config.run import FLAGS
            from elastic_core.distributions import brought

            if candidates(exc.option_name.lstrip("-"), {*(flag.name for flag in FLAGS), *brought("flags")}):
                return f"{exc.option_name} is a flag of `elastic run`.", "See elastic run -h."
        return f"There is no option {exc.option_name!r}.{did_you_mean(exc.option_name, known)}", hint
    return exc.format_message(), hint


def _failed(message: str, hint: str | None, code: int, launches: bool) -> int:
    """Print the error; for a launch, also write the error file; return the exit code."""
    if launches:
        from elastic_core.worker.library import failure_writer  # other commands write none

        if writer := failure_writer():
            writer.write_error(" ".join(filter(None, [message, hint])), code)
    paragraphs = [f"elastic: error: {message}", *([hint] if hint else [])]
    lines = printable_lines("\n\n".join(paragraphs))
    if sys.stderr is not None and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        fill = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
        lines = [line if line.startswith("  ") else fill(line) for line in lines]  # commands to copy stay whole
    print("\n".join(lines), file=sys.stderr)
    return code


def _silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that the interpreter's last flush succeeds; else it would exit with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
