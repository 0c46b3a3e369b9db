"""Prints errors, each with its hint after a blank line, and turns them into exit codes; no other module does."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from functools import partial
from typing import TextIO

import click
from click.core import ParameterSource

from elastic_core.errors import ElasticError, did_you_mean
from elastic_core.exit_codes import ExitCode, signalled
from elastic_core.host.terminal import printable

EXHAUSTED = {
    errno.EMFILE: "file descriptor",
    errno.ENFILE: "file descriptor",
    errno.EAGAIN: "process",
    errno.ENOMEM: "memory",
}
COMPLETE = "_ELASTIC_COMPLETE"
LIMITS = "Check the limits of processes, open files and memory (ulimit -a, and the container's)."


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command and return the exit code; print what went wrong.

    click's ``main`` is not used: it treats any broken pipe as a closed stdout, and would hide defects of the agent.
    """
    launches = arguments[:1] == ["run"]
    try:
        return _run(command, arguments, launches)
    finally:  # an unwritable stream does not change the exit code
        for stream in [sys.stderr, sys.stdout] if launches else [sys.stderr]:
            if stream is not None:  # None: it was closed when this process began
                _drop_unwritable(stream)


def _run(command: click.Command, arguments: Sequence[str], launches: bool) -> int:
    try:
        if instruction := os.environ.get(COMPLETE):  # of a shell
            from click.shell_completion import shell_complete  # a launch does without it

            return shell_complete(command, {}, "elastic", COMPLETE, instruction)
        with command.make_context("elastic", list(arguments)) as context:
            return int(command.invoke(context) or ExitCode.SUCCESS)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        return _failed(*_in_our_words(exc), ExitCode.USAGE, launches)
    except ElasticError as exc:
        return _failed(exc.message, exc.hint, exc.exit_code, launches)
    except (KeyboardInterrupt, click.Abort):
        return signalled(signal.SIGINT)
    except Exception as exc:
        if isinstance(exc, BrokenPipeError):
            from elastic_core.worker.channel import wait_until_ready  # a launch does without it so early

            if wait_until_ready(sys.stdout.fileno(), 0, 0):  # closed, as by ``head``
                _silence(sys.stdout)
                return signalled(signal.SIGPIPE)
        if (missing := _exhausted(exc)) is not None:
            return _failed(f"This machine has no {missing} left: {exc}.", LIMITS, ExitCode.WITHDRAWN, launches)
        traceback.print_exc()
        hint = "This is a defect of Elastic, not of your program. Please report it with the lines above."
        return _failed(f"{type(exc).__name__}: {exc}", hint, ExitCode.INTERNAL, launches)


def _exhausted(exc: Exception) -> str | None:
    """Return the resource that this machine has run out of, if the error says so."""
    if isinstance(exc, RuntimeError) and "can't start new thread" in str(exc):
        return "thread"
    return EXHAUSTED.get(exc.errno or 0) if isinstance(exc, OSError) else None


def _in_our_words(exc: click.ClickException) -> tuple[str, str]:
    """Return the message and the hint for an error of click."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    hint = f"See {context.command_path if context else 'elastic'} --help."
    if isinstance(exc, click.NoSuchOption) and context:
        known = [spelling for param in context.command.get_params(context) for spelling in param.opts]
        if isinstance(context.command, click.Group):
            from elastic_core.cli.option import candidates
            from elastic_core.cli.settle import FLAGS
            from elastic_core.distributions import brought

            if candidates(exc.option_name.lstrip("-"), {*(flag.name for flag in FLAGS), *brought("flags")}):
                return f"{exc.option_name} is a flag of `elastic run`.", "See elastic run -h."
        return f"There is no option {exc.option_name!r}.{did_you_mean(exc.option_name, known)}", hint
    if isinstance(exc, click.BadParameter) and context and exc.param and exc.param.name:
        from_environment = context.get_parameter_source(exc.param.name) is ParameterSource.ENVIRONMENT
        variable = str(exc.param.envvar)
        hint = f"The value comes from {variable}." if from_environment else hint
        if from_environment and isinstance(exc.param, click.Option) and exc.param.is_flag:
            return f"--{exc.param.name} {os.environ[variable]!r} is neither 1 (yes) nor 0 (no).", hint
    return exc.format_message(), hint


def _failed(message: str, hint: str | None, code: int, launches: bool) -> int:
    """Print the error; for a launch, also write the error file; return the exit code."""
    if launches:
        from elastic_core.agent.launcher_error_file import write_error  # other commands write none

        write_error(" ".join(filter(None, [message, hint])), code)
    paragraphs = [f"elastic: error: {message}", *([hint] if hint else [])]
    lines = [printable(line) for line in "\n\n".join(paragraphs).split("\n")]
    if sys.stderr is not None and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        fill = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
        lines = [line if line.startswith("  ") else fill(line) for line in lines]  # commands to copy stay whole
    print("\n".join(lines), file=sys.stderr)
    return code


def _drop_unwritable(stream: TextIO) -> None:
    """Discard buffered output that cannot be written, for example to a closed terminal; Python would exit with 120."""
    try:
        stream.flush()
    except OSError:
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that the interpreter's last flush succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
