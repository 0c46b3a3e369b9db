"""Torch's launcher below ``elastic exec`` for a program that calls it: Elastic's agent runs the job.

It runs in the calling process, on its main thread, with the environment that the caller has set. What Elastic does not
take is passed on to torch's own function, with a line that says why.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elastic_core.cli import RunCommand, configure, outline, plugins_named, warn
from elastic_core.config import Flags, RunConfig
from elastic_core.errors import ElasticError, PluginError, UsageError
from elastic_torchrun.startup import API, LAUNCHER, VARIABLE

if TYPE_CHECKING:
    from elastic_core.rendezvous import RendezvousOptions

T = TypeVar("T")
Job = Callable[[], T]
REFUSALS = (UsageError, PluginError, click.UsageError)
"""The errors for a command line that Elastic does not take."""
_BY_HAND = ("rdzv_backend", "node_rank", "master_addr", "master_port")
"""The flags that number the nodes of a static job. Such a job needs them, also where they have torch's defaults."""
_DIFFERENT = ("max_restarts", "signals_to_handle")
"""Flags whose default is not torch's: torch's own is passed on if it was written on a command line."""
_INTERPRETER = re.compile(r"python[\d.]*")
_SUBCOMMAND = re.compile(r"[a-z][\w-]*")


def configuration(arguments: Sequence[str], warn: Callable[[str], None] = lambda warning: None) -> RunConfig:
    """Return what ``elastic run`` with these arguments runs; nothing is started.

    Raises:
        UsageError, PluginError, click.UsageError: Elastic does not take these arguments.
    """
    from elastic_core.plugins import Catalogue, Plugins, load, load_backend

    command = RunCommand(lambda: 0)
    command.add_help_option = False  # who asks torchrun for help gets torchrun's
    flags = Flags(**command.make_context("elastic run", [*arguments]).params)
    if flags.logs_specs is not None:
        raise UsageError(f"--logs_specs {flags.logs_specs!r} names a class of torch's, which Elastic does not use.")
    catalogue, named = Catalogue.read(), plugins_named(flags, os.environ)
    known = outline(flags, os.environ, lambda: catalogue)
    backends = dict[str, Plugins]()

    def options_of(name: str) -> RendezvousOptions:
        backends[name] = load_backend(name, catalogue, named)
        return backends[name].rendezvous_options()

    config = configure(known, flags, os.environ, options_of, warn)
    backends[config.rdzv_backend].configure(config)  # it may refuse the run, and then it stays torch's own
    if config.settings:
        load(config, catalogue)  # and so may the plugins whose flags these are
    return config


def flags_of(args: Namespace, parser: ArgumentParser, written: Collection[str] = ()) -> list[str]:
    """Return the command line of ``elastic run`` that means the same as parameters of ``torch.distributed.run.run``.

    Some parameters may be missing, be numbers instead of texts, or None. What has its default by torchrun's
    ``parser`` is left out, unless it was ``written`` on a command line.
    """
    explicit = {*(_BY_HAND if _is_static(args) else ()), *(name for name in _DIFFERENT if name in written)}
    flags: list[str] = []
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if not action.option_strings or value is None or (value == action.default and action.dest not in explicit):
            continue
        flag = max(action.option_strings, key=len)
        if action.nargs != 0:
            flags.append(f"{flag}={_text(value)}")
        elif value:
            flags.append(flag)
    if not getattr(args, "use_env", True):  # torch.distributed.launch, unless told otherwise
        flags.append("--pass_local_rank")
    return [*flags, str(args.training_script), *map(str, getattr(args, "training_script_args", None) or ())]


def written_in(line: Sequence[str], parser: ArgumentParser) -> set[str]:
    """Return the parameters that a command line gives, whatever their values; ``parser`` loses its defaults."""
    for action in parser._actions:
        action.default = SUPPRESS
    return set(vars(parser.parse_args(line)))


def _is_static(args: Namespace) -> bool:
    return (
        getattr(args, "rdzv_backend", "static") == "static"
        and not getattr(args, "standalone", False)
        and str(getattr(args, "nnodes", "1")) not in ("1", "1:1")
    )


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):  # of texts to look for; a comma within one is doubled
        return ",".join(str(item).replace(",", ",,") for item in value)
    return str(value)


def run(args: Namespace) -> None:
    """Run the job of torchrun's parameters, as ``torch.distributed.run.run`` does, with Elastic's agent.

    Raises:
        UsageError, PluginError, click.UsageError: Elastic does not take them.
        ChildFailedError, KeyboardInterrupt, SignalException, ElasticError: As for ``elastic_launch``.
    """
    from torch.distributed.run import get_args_parser

    _run(flags_of(args, get_args_parser()))


def main(args: Sequence[str] | None = None) -> None:
    """Run the job of a command line of torchrun's, ``sys.argv[1:]`` by default; raise as :func:`run`."""
    from elastic_core.worker import record

    record(_run)(sys.argv[1:] if args is None else args)


def _run(arguments: Sequence[str]) -> None:
    from elastic_torchrun import launch

    launch.run_program(configuration(arguments, warn))


def replace(module: Any) -> None:
    """Put our functions in the place of those of one of torch's modules, ``LAUNCHER`` or ``API``."""
    if module.__name__ == LAUNCHER:
        _replace_run(module)
    else:
        _replace_launch_agent(module)


def _replace_run(module: Any) -> None:
    torchs = module.run

    def serve(args: Namespace, line: Sequence[str] | None = None) -> None:
        def prepare() -> Job[None]:
            from elastic_core.worker import record  # not for the program torchrun
            from elastic_torchrun import launch

            written = written_in(line, module.get_args_parser()) if line else ()
            config = configuration(flags_of(args, module.get_args_parser(), written), warn)
            job = functools.partial(launch.run_program, config)
            return job if line is None else record(job)

        own = functools.partial(torchs, args)
        # Of the two only main() writes the error file that the caller's environment names.
        _serve(LAUNCHER, prepare, own if line is None else module.record(own))

    @functools.wraps(torchs)
    def run(args: Namespace) -> None:
        serve(args)

    @functools.wraps(module.main)
    def main(args: Sequence[str] | None = None) -> None:
        serve(module.parse_args(args), sys.argv[1:] if args is None else args)

    module.run, module.main = run, main


def _replace_launch_agent(module: Any) -> None:
    torchs = module.launch_agent

    @functools.wraps(torchs)
    def launch_agent(config: Any, entrypoint: Any, args: Sequence[Any], *others: Any, **named: Any) -> Any:
        def prepare() -> Job[Any]:
            from elastic_core.plugins import load
            from elastic_torchrun import launch, launch_config

            run = launch_config.configure(launch_config.config_of(config, entrypoint, args))
            if run.settings:
                trial = load(run)  # which may refuse the run
                trial.problems.clear()  # they are reported when it is launched
                trial.close()
            return functools.partial(launch.launch, run, entrypoint, tuple(args))

        own = functools.partial(torchs, config, entrypoint, args, *others, **named)
        # torch's run() calls it for what was passed on.
        return _serve(API, prepare, own) if VARIABLE in os.environ else own()

    module.launch_agent = launch_agent


def _serve(name: str, prepare: Callable[[], Job[T]], torchs: Job[T]) -> T:
    """Do what Elastic makes of a call, or what torch does where Elastic does not take it; say which.

    Raises:
        JobFailed: The job has failed, or this node could not stay in it.
        NodeRefused: This node could not take part in it.
        KeyboardInterrupt, SignalException: This process was told to stop; the workers are stopped.
    """
    what, by = replaced(name)
    with hidden():
        refusal = job = None
        try:
            if threading.current_thread() is not threading.main_thread():
                raise UsageError("A job is started on the main thread only, where signals arrive.")
            job = prepare()
        except REFUSALS as exc:
            refusal = reason(exc)
        if job is None:  # after the except block: else tracebacks of torch's own errors begin with ours
            say(f"{what} stays torch's own{by}: {refusal}")
            return torchs()
        say(f"{what} → elastic run{by}")
        from elastic_torchrun import launch

        try:
            return job()
        except launch.ChildFailedError as exc:
            from elastic_torchrun.failure import JobFailed

            raise JobFailed(exc) from None
        except ElasticError as exc:
            from elastic_torchrun.failure import NodeRefused

            say(f"error: {reason(exc)}")  # a SystemExit that is not caught is not printed
            raise NodeRefused(str(exc), exc.exit_code) from exc


@contextmanager
def hidden() -> Iterator[None]:
    """Take the variable out of the environment meanwhile: a worker's own children find torch's torchrun."""
    value = os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[VARIABLE] = value


def say(message: str) -> None:
    """Tell the user in one line, on stderr."""
    print(f"elastic: {message}", file=sys.stderr, flush=True)


def reason(refusal: Exception) -> str:
    """Return, in one line, the reason that Elastic does not take a command line."""
    if isinstance(refusal, ElasticError):
        return " ".join([refusal.message, *(refusal.hint or "").split("\n")]).rstrip()
    return refusal.format_message() if isinstance(refusal, click.ClickException) else str(refusal)


def replaced(name: str = LAUNCHER) -> tuple[str, str]:
    """Return what of torch's this process has asked for, and on whose behalf, for a line to the user."""
    if sys.orig_argv[1:3] != ["-m", __package__]:
        return name, f", called by {program(sys.orig_argv)}"
    # The process that has become the command itself has no caller that needs a name.
    return "torchrun", "" if os.environ.get(VARIABLE) == str(os.getpid()) else f", started by {_parent()}"


def program(line: Sequence[str]) -> str:
    """Return a command line in one or two words: ``accelerate launch`` for ``python /env/bin/accelerate launch``."""
    words = [word for word in line if word]
    if words and _INTERPRETER.fullmatch(os.path.basename(words[0])):
        while words[1:] and words[1].startswith("-"):
            option = words.pop(1)
            if option == "-c":
                return f"{os.path.basename(words[0])} -c"
            del words[1 : 2 if option in ("-W", "-X") else 1]  # and its value
        words = words[1:] or words
    if not words:
        return "another program"
    name, *arguments = words
    return " ".join([os.path.basename(name), *(word for word in arguments[:1] if _SUBCOMMAND.fullmatch(word))])


def _parent() -> str:
    line = b""
    with suppress(OSError):
        line = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    return program([os.fsdecode(word) for word in line.split(b"\0")])
