"""Settles a run: turns the values of a command line into one :class:`RunConfig`, or into an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from elastic_core.config import rdzv_conf
from elastic_core.config.environment import PLUGINS_VARIABLE
from elastic_core.config.parse import MOST_WORKERS, names
from elastic_core.config.program import find_program
from elastic_core.config.rdzv_conf import LOCAL, NUMBERED, STATIC
from elastic_core.config.run import (
    DEFAULT_ID,
    LINE_PREFIX,
    MAX_RESTARTS,
    MONITOR_INTERVAL,
    Flags,
    PlainSettings,
    RunConfig,
)
from elastic_core.distributions import backend_of, brought
from elastic_core.errors import PluginError, UsageError, did_you_mean, how_to_install
from elastic_core.events import least_level
from elastic_core.rendezvous import job_token
from elastic_core.rendezvous.options import FORM, split_host_port

if TYPE_CHECKING:
    from elastic_core.plugins.entry_points import Catalogue
    from elastic_core.rendezvous.options import RendezvousOptions

CPU = "cpu"  # the word of ``--nproc_per_node`` that needs no plugin
MASTER_PORT = 29500
LOCAL_RANK_ARGUMENT = "--local-rank=${local_rank}"  # for --pass_local_rank; each worker's start fills in its rank


def outline(flags: Flags, environ: Mapping[str, str], installed: Callable[[], Catalogue] | None = None) -> RunConfig:
    """Return the part of the run that each flag decides by itself; the starter needs no more.

    ``installed`` returns the installed plugins; it is called for a word of ``--nproc_per_node`` that a plugin knows.

    Raises:
        UsageError: The program does not exist, a value does not fit the number of workers, or none can be counted.
        PluginError: The plugin that counts the workers fails.
    """
    arguments = flags.arguments if flags.use_env else (LOCAL_RANK_ARGUMENT, *flags.arguments)
    ways = {"module": flags.module, "no_python": flags.no_python, "run_path": flags.run_path}
    default, given = None if flags.own_limit else MAX_RESTARTS, flags.nproc_per_node
    return RunConfig(
        **{
            **{item.name: getattr(flags, item.name) for item in fields(PlainSettings)},
            "program": find_program(flags.script, arguments, **ways),
            "nproc_per_node": count_workers(given, environ, installed) if isinstance(given, str) else given,
            "max_restarts": default if flags.max_restarts is None else flags.max_restarts,
            "shutdown_timeout": rdzv_conf.shutdown_timeout(flags.shutdown_timeout, environ),
        }
    )


def configure(
    known: RunConfig,
    flags: Flags,
    environ: Mapping[str, str],
    options_of: Callable[[str], RendezvousOptions],
    warn: Callable[[str], None] = lambda warning: None,
) -> RunConfig:
    """Return the whole run: ``known``, and the fields that several flags, the environment and the backend decide.

    ``options_of`` returns a backend's options by its name, and raises PluginError for one that is not installed.
    ``warn`` is called with a sentence for each value that has no effect. The scheduler's id of the run and
    ``ELASTIC_PLUGINS`` are read from the agent's ``environ``.

    Raises:
        UsageError: Two values contradict each other, or the backend does not take them.
    """
    backend, endpoint = meeting_place(flags)
    with suppress(PluginError):  # no other backend is used for --standalone than one that starts a store
        if flags.standalone and flags.rdzv_backend and options_of(flags.rdzv_backend).standalone:
            backend = flags.rdzv_backend
    options = options_of(backend)
    node_rank = (flags.node_rank or 0) if backend in NUMBERED else None
    place = (backend, endpoint)
    rdzv_conf.check_nodes(
        place, flags.nnodes, options, spares=flags.spares, node_rank=node_rank, standalone=flags.standalone
    )
    conf = rdzv_conf.parse_conf(flags.rdzv_conf, backend=backend, options=options)
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
        line_prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or LINE_PREFIX,
        monitor_interval=MONITOR_INTERVAL if flags.monitor_interval is None else flags.monitor_interval,
        plugins=plugins_named(flags, environ),
        least_level=least_level("DEBUG" if flags.verbose else environ.get("LOGLEVEL", "")),
    )


def plugins_named(flags: Flags, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the plugins that the run names."""
    return (*names(environ.get(PLUGINS_VARIABLE, "")), *flags.plugin)


def takes_master(flags: Flags, backend: str) -> bool:
    """Return whether ``--master_addr`` and ``--master_port`` name the store of a job of one node, as in torchrun."""
    elsewhere = flags.standalone or flags.rdzv_endpoint or flags.rdzv_backend not in (None, STATIC)
    return backend == LOCAL and not elsewhere


def meeting_place(flags: Flags) -> tuple[str, str]:
    """Return the backend and the endpoint for the flags.

    Raises:
        UsageError: The backend does not follow from the endpoint, or nodes cannot meet there.
    """
    unsaid = flags.rdzv_backend in (None, STATIC) and not flags.rdzv_endpoint and flags.master_port is None
    if flags.standalone or (unsaid and flags.nnodes.most == 1):  # no other node can join
        return LOCAL, ""
    return rdzv_conf.settle(*_named_place(flags), flags.nnodes)


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
    with suppress(ValueError):
        split_host_port(flags.rdzv_endpoint)
        return backend_of(FORM), flags.rdzv_endpoint
    raise UsageError(
        f"--rdzv_endpoint {flags.rdzv_endpoint!r} is not of the form {FORM}, so the backend must be named.",
        hint=f"For a shared directory: --rdzv_backend=file --rdzv_endpoint={flags.rdzv_endpoint}",
    )


def without_effect(flags: Flags, backend: str, *, polled: bool = False) -> Iterator[str]:
    """Yield a sentence for each flag that was given and has no effect; ``docs/migrating.md`` has the reasons.

    ``polled`` says that the backend is a foreign rendezvous handler, which is polled for new nodes.
    """
    by_hand = {"node_rank": flags.node_rank, "master_addr": flags.master_addr, "master_port": flags.master_port or None}
    given = [f"--{name}" for name, value in by_hand.items() if value is not None]
    if takes_master(flags, backend):
        if flags.node_rank:
            yield f"--node_rank has no effect: of one node the rank is 0, not {flags.node_rank}."
    elif given and backend not in NUMBERED:
        each = "has" if len(given) == 1 else "have"
        why = "ranks, address and port are found by the rendezvous; --rdzv_backend=static takes them"
        yield f"{', '.join(given)} {each} no effect: {why}."
    if flags.monitor_interval is not None and not polled:
        yield "--monitor_interval has no effect: nothing is polled, every change arrives as an event."
    if flags.start_method is not None:
        yield "--start_method has no effect: workers are no children of the agent."
    if flags.logs_specs is not None:
        yield (
            f"--logs_specs {flags.logs_specs!r} has no effect: it names a class of torch's, which the agent does not "
            "import. See --redirects, --tee, --local_ranks_filter and --log_dir."
        )


def count_workers(word: str, environ: Mapping[str, str], installed: Callable[[], Catalogue] | None = None) -> int:
    """Return the number of workers that a word of ``--nproc_per_node`` means here; errors are those of ``outline``."""
    if word == CPU:
        return len(os.sched_getaffinity(0))
    from elastic_core.plugins.entry_points import Catalogue, Group, import_plugin  # few runs count devices
    from elastic_core.plugins.manager import Plugins

    catalogue, brings = (installed or Catalogue.read)(), brought(Group.WORKER_COUNTS.kind)
    if word not in (known := catalogue.names(Group.WORKER_COUNTS)):
        if word in brings:
            message = f"--nproc_per_node {word!r} needs {brings[word]}, which is not installed."
            raise UsageError(message, hint=how_to_install(brings[word]))
        known = sorted({CPU, *known, *brings})
        wrong = f"--nproc_per_node {word!r} is neither a whole number nor one of {', '.join(known)}"
        raise UsageError(f"{wrong}.{did_you_mean(word, known)}")
    offer, plugins = catalogue.find(word, Group.WORKER_COUNTS), Plugins()
    plugins.register(word, import_plugin(offer), described=str(offer))
    count = plugins.first_answer("elastic_count_workers", word=word, environ=environ)
    if type(count) is not int or not 1 <= count <= MOST_WORKERS:
        raise PluginError(f"The {offer} counts {count!r} workers; from 1 to {MOST_WORKERS} are taken.")
    return count
