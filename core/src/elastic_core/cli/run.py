"""``elastic run``: turns flags into one :class:`RunConfig`, or into an error before anything is started."""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from elastic_core.cli import interrupt, program, scheduler
from elastic_core.cli.options import Flags
from elastic_core.cli.run_command import RunCommand
from elastic_core.config import rdzv_conf
from elastic_core.config.environment import flag_variable
from elastic_core.config.parse import names
from elastic_core.config.rdzv_conf import LOCAL, NUMBERED, STATIC
from elastic_core.config.run import (
    DEFAULT_ID,
    LINE_PREFIX,
    MAX_RESTARTS,
    MONITOR_INTERVAL,
    UNLIMITED_RESTARTS,
    RunConfig,
    has_budget,
)
from elastic_core.errors import ElasticError, PluginError, UsageError
from elastic_core.events import Level, least_level
from elastic_core.exit_codes import ExitCode
from elastic_core.host.identity import host_name
from elastic_core.rendezvous import job_token

if TYPE_CHECKING:
    from elastic_core.plugins.entry_points import Catalogue
    from elastic_core.plugins.manager import Plugins
    from elastic_core.rendezvous.options import RendezvousOptions
    from elastic_core.warden.client import Warden

MASTER_PORT = 29500
PLUGINS_VARIABLE = "ELASTIC_PLUGINS"
LOCAL_RANK_ARGUMENT = "--local-rank=${local_rank}"  # for --pass_local_rank; each worker's start fills in its rank
OBSERVERS_GET = 5.0  # seconds that observers get at the end to finish with their events
HOST_AND_PORT = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.%\w]+\])(:\d+)?", re.ASCII)


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
    with hints_with_sources():
        early = None
        with contextlib.suppress(UsageError):  # the scheduler's defaults may mend it, and else it is raised below
            start.send_fork_server(early := outline(given, os.environ), warden)
        _prefix_logging()
        catalogue = Catalogue.read()  # once: it takes 11 ms, in which the fork server starts
        given = scheduler.with_defaults(given, os.environ, warn, catalogue)
        if (known := outline(given, os.environ)) != early:
            start.send_fork_server(known, warden)
        config, loaded = _complete(known, given, catalogue)
    if config.signals is not None:
        interrupt.discard_again(but=config.signals)  # the agent does not leave on the others
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
        unfinished = loaded.close(OBSERVERS_GET)
        if unfinished and not _is_writable(2):  # its reader has stopped, and the interpreter's end would wait for it
            os._exit(code)
        for name in unfinished:
            click.echo(f"elastic: the observer {name!r} did not finish within {OBSERVERS_GET:g} s.", err=True)


def _prefix_logging() -> None:
    """Have what a driver logs begin like the agent's own lines, where nothing has configured :mod:`logging`."""
    import logging  # after the fork server has begun

    if logging.lastResort is not None:
        form = f"[elastic] %(asctime)s {host_name().partition('.')[0]}: %(name)s: %(message)s"
        logging.lastResort.setFormatter(logging.Formatter(form, "%H:%M:%S"))


def _is_writable(descriptor: int) -> bool:
    """Whether a write to the descriptor would not block."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


command = RunCommand(click.pass_obj(run))


def _complete(known: RunConfig, given: Flags, catalogue: Catalogue) -> tuple[RunConfig, Plugins]:
    """Return the whole run and its plugins."""
    from elastic_core.plugins import manager

    named = plugins_named(given, os.environ)
    config = configure(
        known, given, os.environ, lambda name: manager.load_backend(name, catalogue, named).rendezvous_options(), warn
    )
    return config, manager.load(config, catalogue)


@contextmanager
def hints_with_sources() -> Iterator[None]:
    """Add to the hint of an error the variables that set the flags or values which its message quotes."""
    try:
        yield
    except (UsageError, PluginError) as exc:
        if (context := click.get_current_context(silent=True)) is not None:
            exc.hint = _hint_with_sources(exc, context)
        raise


def _hint_with_sources(error: ElasticError, context: click.Context) -> str | None:
    flags, quoted = set(re.findall(r"--(\w+)", error.message)), set(re.findall(r"'([^']*)'", error.message))
    for flag, value in context.params.items():
        texts = value if isinstance(value, tuple) else (value,)
        if quoted & {text for text in texts if isinstance(text, str)}:
            flags.add(flag)
    variables = [
        flag_variable(flag)
        for flag in sorted(flags)
        if context.get_parameter_source(flag) is ParameterSource.ENVIRONMENT
    ]
    if quoted & set(names(os.environ.get(PLUGINS_VARIABLE, ""))):
        variables.append(PLUGINS_VARIABLE)
    variables += [source for flag, source in scheduler.origins(context).items() if flag in flags]
    sources = [f"The value comes from {variable}." for variable in variables]
    return "\n".join([*([error.hint] if error.hint else []), *sources]) or None


def warn(warning: str) -> None:
    """Print a warning for the user, one line on stderr."""
    click.echo(f"elastic: warning: {warning}", err=True)


def outline(flags: Flags, environ: Mapping[str, str]) -> RunConfig:
    """Return the part of the run that each flag decides by itself; the fork server needs no more.

    Raises:
        UsageError: The program does not exist, or a value does not fit the number of workers.
    """
    arguments = flags.arguments if flags.use_env else (LOCAL_RANK_ARGUMENT, *flags.arguments)
    ways = {"module": flags.module, "no_python": flags.no_python, "run_path": flags.run_path}
    return RunConfig(
        program=program.find(flags.script, arguments, **ways),
        nproc_per_node=_count_workers(flags.nproc_per_node, environ),
        max_restarts=_max_restarts(flags),
        **flags.run_fields(),
    )


def _max_restarts(flags: Flags) -> int:
    """Return the limit of restarts: a budget of ``--failure_policy`` stands in the place of the default."""
    if flags.max_restarts is not None:
        return flags.max_restarts
    return UNLIMITED_RESTARTS if has_budget(flags.failure_policy) else MAX_RESTARTS


def configure(
    known: RunConfig,
    flags: Flags,
    environ: Mapping[str, str],
    options_of: Callable[[str], RendezvousOptions],
    warn: Callable[[str], None] = lambda warning: None,
) -> RunConfig:
    """Return the whole run: ``known``, and the fields that several flags, the environment and the backend decide.

    Args:
        environ: The agent's environment: the scheduler's id of the run and ``ELASTIC_PLUGINS`` are read from it.
        options_of: Returns a backend's options by its name; raises PluginError for one that is not installed.
        warn: Called with a sentence for each value that has no effect.

    Raises:
        UsageError: Two values contradict each other, or the backend does not take them.
    """
    if flags.virtual_local_rank:
        from elastic_core.host.devices.machine import Machine  # few runs need it
        from elastic_core.host.devices.visible import only_device

        for local_rank in range(known.nproc_per_node):
            only_device(local_rank, environ, Machine())  # or an error
    backend, endpoint = meeting_place(flags)
    if flags.standalone and _starts_a_store(flags.rdzv_backend, options_of):
        backend = flags.rdzv_backend or LOCAL
    options = options_of(backend)
    node_rank = (flags.node_rank or 0) if backend in NUMBERED else None
    rdzv_conf.check_node_rank(node_rank, flags.nnodes)
    rdzv_conf.check_reach(backend, endpoint, flags.nnodes, options, standalone=flags.standalone)
    rdzv_conf.check_spares(backend, flags.nnodes, flags.spares, options, node_rank)
    conf = rdzv_conf.parse(flags.rdzv_conf, backend=backend, options=options)
    for warning in (*without_effect(flags, backend, polled=options.handler), *conf.without_effect):
        warn(warning)
    return replace(
        known,
        min_nodes=flags.nnodes.least,
        max_nodes=flags.nnodes.most,
        sizes=flags.nnodes.sizes,
        node_rank=node_rank,
        master_port=(flags.master_port or None) if takes_master(flags, backend) else None,
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_id=flags.rdzv_id or (os.urandom(4).hex() if flags.standalone or backend == LOCAL else DEFAULT_ID),
        rdzv_conf=conf.backend,
        order=conf.order,
        job_token=job_token.read_token(environ, conf.token_file),
        timing=conf.timing,
        run_uid=conf.run_uid or rdzv_conf.scheduler_uid(environ, flags.rdzv_id),
        local_addr=(flags.master_addr if takes_master(flags, backend) else None) or flags.local_addr,
        shutdown_timeout=rdzv_conf.shutdown_timeout(flags.shutdown_timeout, environ),
        log_dir=Path(flags.log_dir) if flags.log_dir else None,
        line_prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or LINE_PREFIX,
        event_log=flags.event_log_handler == "console",
        monitor_interval=MONITOR_INTERVAL if flags.monitor_interval is None else flags.monitor_interval,
        plugins=plugins_named(flags, environ),
        least_level=Level.DEBUG if flags.verbose else least_level(environ.get("LOGLEVEL", "")) or Level.INFO,
    )


def plugins_named(flags: Flags, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the plugins that the run names."""
    return (*names(environ.get(PLUGINS_VARIABLE, "")), *flags.plugin)


def takes_master(flags: Flags, backend: str) -> bool:
    """Whether ``--master_addr`` and ``--master_port`` name the workers' store of a job of one node, as in torchrun."""
    return (
        backend == LOCAL and not flags.standalone and flags.rdzv_backend in (None, STATIC) and not flags.rdzv_endpoint
    )


def meeting_place(flags: Flags) -> tuple[str, str]:
    """Return the backend and the endpoint for the flags.

    Raises:
        UsageError: The backend does not follow from the endpoint, or nodes cannot meet there.
    """
    return (LOCAL, "") if stands_alone(flags) else rdzv_conf.settle(*_named_place(flags), flags.nnodes)


def stands_alone(flags: Flags) -> bool:
    """Whether no other node can join the job; torchrun gives such a job a free port and a new id."""
    unsaid = flags.rdzv_backend in (None, STATIC) and not flags.rdzv_endpoint and flags.master_port is None
    return flags.standalone or (unsaid and flags.nnodes.most == 1)


def _named_place(flags: Flags) -> tuple[str, str]:
    # An endpoint with a number beside it is static's; torchrun ignores --master_addr and --master_port beside one.
    place = (None, None) if flags.rdzv_endpoint else (flags.master_addr, flags.master_port)
    by_hand = flags.nnodes.most > 1 and (flags.node_rank, *place) != (None, None, None)
    if flags.rdzv_backend in NUMBERED or (flags.rdzv_backend is None and by_hand):
        port = MASTER_PORT if flags.master_port is None else flags.master_port
        host = flags.master_addr or "127.0.0.1"
        bracketed = f"[{host}]" if ":" in host else host  # an IPv6 address
        return flags.rdzv_backend or STATIC, flags.rdzv_endpoint or f"{bracketed}:{port}"
    if flags.rdzv_backend is not None:
        return flags.rdzv_backend, flags.rdzv_endpoint
    if not flags.rdzv_endpoint:
        return LOCAL, ""
    if HOST_AND_PORT.fullmatch(flags.rdzv_endpoint):
        return "c10d", flags.rdzv_endpoint  # what torchrun's users mean by an endpoint
    raise UsageError(
        f"--rdzv_endpoint {flags.rdzv_endpoint!r} is not of the form HOST[:PORT], so the backend must be named.",
        hint=f"For a shared directory: --rdzv_backend=file --rdzv_endpoint={flags.rdzv_endpoint}",
    )


def _starts_a_store(backend: str | None, options_of: Callable[[str], RendezvousOptions]) -> bool:
    """Whether a backend starts a store for ``--standalone``; any other backend is not used then."""
    try:
        return backend is not None and options_of(backend).standalone
    except PluginError:
        return False


def without_effect(flags: Flags, backend: str, *, polled: bool = False) -> list[str]:
    """Return a sentence for each flag that was given and has no effect; ``docs/migrating.md`` has the reasons.

    ``polled`` says that the backend is a foreign rendezvous handler, which is polled for new nodes.
    """
    said = []
    by_hand = {"node_rank": flags.node_rank, "master_addr": flags.master_addr, "master_port": flags.master_port or None}
    given = [f"--{name}" for name, value in by_hand.items() if value is not None]
    if takes_master(flags, backend):
        if flags.node_rank:
            said.append(f"--node_rank has no effect: of one node the rank is 0, not {flags.node_rank}.")
    elif given and backend not in NUMBERED:
        each = "has" if len(given) == 1 else "have"
        why = "ranks, address and port are found by the rendezvous; --rdzv_backend=static takes them"
        said.append(f"{', '.join(given)} {each} no effect: {why}.")
    if flags.monitor_interval is not None and not polled:
        said.append("--monitor_interval has no effect: nothing is polled, every change arrives as an event.")
    if flags.start_method is not None:
        said.append("--start_method has no effect: see --warm_start for how workers are started.")
    if flags.logs_specs is not None:
        said.append(
            f"--logs_specs {flags.logs_specs!r} has no effect: it names a class of torch's, which the agent does not "
            "import. See --redirects, --tee, --local_ranks_filter and --log_dir."
        )
    return said


def _count_workers(given: int | str, environ: Mapping[str, str]) -> int:
    if isinstance(given, int):
        return given
    from elastic_core.host.devices.machine import Machine  # looks at devices; not for --help
    from elastic_core.host.devices.visible import local_world_size

    return local_world_size(given, environ, Machine())
