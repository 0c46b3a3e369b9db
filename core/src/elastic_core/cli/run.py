"""``elastic run``: turns flags into one :class:`RunConfig`, or into an error before anything is started."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli import interrupt, scheduler
from elastic_core.cli.run_command import CATALOGUE, RunCommand
from elastic_core.cli.settle import Flags, configure, outline, plugins_named
from elastic_core.errors import ElasticError, UsageError
from elastic_core.exit_codes import ExitCode
from elastic_core.host.identity import host_name

if TYPE_CHECKING:
    from elastic_core.warden.client import Warden

OBSERVERS_GET = 5.0  # seconds that observers get at the end to finish with their events


def run(warden: Warden | None, **flags: Any) -> int:
    """Run the job and return its exit code; None for the warden starts one."""
    from elastic_core.agent import start  # not for --help
    from elastic_core.host.allocator import use_one_arena
    from elastic_core.plugins.entry_points import Catalogue

    use_one_arena()
    if warden is None:
        with start.begun() as warden:
            return run(warden, **flags)
    given = Flags(**flags)
    early = None
    with contextlib.suppress(UsageError):  # the scheduler's defaults may mend it, and else it is raised below
        start.begin_starter(early := outline(given, os.environ), warden)
    _prefix_logging()
    context = click.get_current_context(silent=True)
    read = None if context is None else context.meta.get(CATALOGUE)
    catalogue = read or Catalogue.read()  # once: it takes 11 ms, in which the starter begins
    given = scheduler.with_defaults(given, os.environ, warn, catalogue)
    if (known := outline(given, os.environ)) != early:
        start.begin_starter(known, warden)
    from elastic_core.plugins.manager import load, load_backend

    named = plugins_named(given, os.environ)
    config = configure(
        known, given, os.environ, lambda name: load_backend(name, catalogue, named).rendezvous_options(), warn
    )
    loaded = load(config, catalogue)
    if config.signals_to_handle is not None:
        interrupt.discard_again(but=config.signals_to_handle)  # the agent does not leave on the others
    code: int = ExitCode.JOB_FAILED
    try:
        try:
            ending = start.run(config, loaded, warden)
        finally:
            interrupt.discard_again()
        code = ending.exit_code
        if code:
            from elastic_core.agent.launcher_error_file import write_ending  # seldom needed

            write_ending(ending)
        return code
    except ElasticError as exc:
        code = exc.exit_code
        raise
    finally:
        if unfinished := loaded.close(OBSERVERS_GET):
            from elastic_core.worker.channel import wait_until_ready

            if not wait_until_ready(2, select.POLLOUT, 0):
                os._exit(code)  # the interpreter's end would wait for the reader of stderr, which has stopped
        for name in unfinished:
            click.echo(f"elastic: the observer {name!r} did not finish within {OBSERVERS_GET:g} s.", err=True)


def _prefix_logging() -> None:
    """Have what a driver logs begin like the agent's own lines, where nothing has configured :mod:`logging`."""
    import logging  # after the starter has begun

    if logging.lastResort is not None:
        form = f"[elastic] %(asctime)s {host_name().partition('.')[0]}: %(name)s: %(message)s"
        logging.lastResort.setFormatter(logging.Formatter(form, "%H:%M:%S"))


command = RunCommand(click.pass_obj(run))


def warn(warning: str) -> None:
    """Print a warning for the user, one line on stderr."""
    click.echo(f"elastic: warning: {warning}", err=True)
