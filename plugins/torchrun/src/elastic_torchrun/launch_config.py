"""Turns the arguments of torch's Python API into a :class:`~elastic_core.config.run.RunConfig`."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from elastic_core.cli import warn
from elastic_core.config import (
    DEFAULT_ID,
    FLAGS,
    LINE_PREFIX,
    LOCAL,
    MAX_RESTARTS,
    MONITOR_INTERVAL,
    NUMBERED,
    Flag,
    PlainSettings,
    Program,
    ProgramKind,
    RunConfig,
    check_nodes,
    flags_in,
    parse,
    parse_conf,
    scheduler_uid,
    settle,
    shutdown_timeout,
)
from elastic_core.config.parse import Stream, StreamMap
from elastic_core.errors import UsageError
from elastic_core.events import least_level
from elastic_core.plugins import Catalogue, declared_flags, load_backend, not_declared
from elastic_core.rendezvous import read_token
from elastic_torchrun import call, event_log
from elastic_torchrun.foreign import registry

Streams = int | Mapping[int, int]  # flags of :class:`Stream` or torch's ``Std``, for all local ranks or by local rank

_DEFAULT_LOGS = "DefaultLogsSpecs"
_TORCHS_TIMEOUT = 900
"""The timeout that torch's LaunchConfig writes into ``rdzv_configs`` where none was given, in seconds."""
_TORCHS_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_TYPES: Sequence[tuple[tuple[type, ...], str, str]] = (
    ((str,), "a text", "run_id rdzv_endpoint rdzv_backend log_line_prefix_template local_addr event_log_handler"),
    ((Mapping,), "a mapping", "rdzv_configs metrics_cfg"),
    ((Real,), "a number of seconds", "rdzv_timeout monitor_interval"),
    ((str, os.PathLike), "a path", "log_dir"),
    ((Sequence,), "a list of numbers", "node_sizes"),
)
"""The types of the fields that are no flags, in words, and the fields."""
_FILTERS = ("duplicate_stdout_filters", "duplicate_stderr_filters")
_MAY_BE_NONE = ("run_id", "start_method", "event_log_handler", "metrics_cfg")  # None stands for another default
_FLAGS: Mapping[str, Flag[Any]] = {flag.name: flag for flag in flags_in(PlainSettings)}
_NUMA, _VIRTUAL = "numa_binding", "virtual_local_rank"  # flags that a plugin declares, and arguments of torch's
_OTHERWISE = ("event_log_handler", "log_dir", "redirects", "tee", "local_ranks_filter", _NUMA)
"""The flags whose values :class:`LaunchConfig` has in another form, or elsewhere."""
_MONITOR = next(flag for flag in FLAGS if flag.name == "monitor_interval")
_NO_EFFECT = {
    "start_method": "no worker is forked from this process",
    "metrics_cfg": "it sets up torch's own metrics. The plugins of elastic-metrics give ours",
    "event_log_handler": "it is a logging handler inside torch. 'console' writes each event as a JSON line",
    "health_check_server": "an agent serves no health checks of that kind",
    "uninterruptible_state_timeout": "a worker that cannot be killed is said, and its node leaves the job",
    "master_addr": "where several nodes meet, each round finds the address of its rank 0",
    "master_port": "where several nodes meet, each round has a free port, and meets no keys of an earlier one",
}
"""The arguments of torch's that are taken, without effect, and the reasons; some only with some values."""
_T = TypeVar("_T")


@dataclass
class _Arguments:
    """The fields of ``torch.distributed.launcher.api.LaunchConfig``, in its order, and others that are no flags."""

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    logs_specs: Any = None  # torch's DefaultLogsSpecs; ``log_dir``, ``redirects`` and ``tee`` take precedence
    run_id: str = ""  # the job's id; a random one when it is '' and no other node can join
    role: str = "default"
    rdzv_endpoint: str = field(default="", repr=False)
    rdzv_backend: str = "local"
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict, repr=False)  # ``--rdzv_conf``, and static's ``rank``
    rdzv_timeout: float = -1  # torch's old name for the ``join_timeout`` of ``rdzv_configs``; -1 where it is not given
    max_restarts: int = MAX_RESTARTS
    monitor_interval: float = MONITOR_INTERVAL
    start_method: str = "spawn"  # ``fork`` and ``forkserver`` have no effect: no worker is forked from this process
    log_line_prefix_template: str | None = None
    metrics_cfg: Mapping[str, str] = field(default_factory=dict)  # no effect: it sets up torch's own metrics
    local_addr: str | None = None
    event_log_handler: str = "null"  # ``console`` or ``null``; torch's logging handlers have no effect
    numa_options: Any = None  # torch's NumaOptions, or one of ``--numa_binding``'s names
    signals_to_handle: str | None = None  # separated by commas; None for SIGTERM, SIGINT, SIGHUP unless ignored
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None  # ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``, else 30, once it is made
    log_dir: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    redirects: Streams | None = field(default=None, kw_only=True)
    tee: Streams | None = field(default=None, kw_only=True)
    plugins: tuple[str, ...] = field(default=(), kw_only=True)
    node_sizes: Sequence[int] | None = field(default=None, kw_only=True)
    """The only numbers of nodes of a round, e.g. (4, 6, 8); None for every number. The least and the greatest replace
    ``min_nodes`` and ``max_nodes`` where these are not given."""
    flags: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        given = self.shutdown_timeout
        if isinstance(given, Real) and given < 0:
            raise UsageError(f"shutdown_timeout={given!r} is negative.", hint="Give a number of seconds.")
        self.shutdown_timeout = shutdown_timeout(given, os.environ)


class LaunchConfig(_Arguments):
    """The settings of a run, for a caller in Python. Durations are in seconds.

    The arguments are those of ``torch.distributed.launcher.api.LaunchConfig``, in its order, and then ours, which are
    given by name: ``log_dir``, ``redirects``, ``tee``, ``plugins``, ``node_sizes``, and each other flag of ``elastic
    run`` that describes the run, also those of plugins, as ``failure_policy`` or ``hang_timeout``. A text stands for
    the value that it has on the command line. Without a ``rdzv_backend`` the job has one node and needs no store that
    listens. ``max_restarts`` has no limit where it is the default and a plugin's flag limits the restarts.
    """

    __signature__ = inspect.signature(_Arguments).replace(
        parameters=[
            *(each for each in inspect.signature(_Arguments).parameters.values() if each.name != "flags"),
            inspect.Parameter("flags", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def __init__(self, *arguments: Any, **given: Any) -> None:
        flags = {name: given.pop(name) for name in [*given] if name not in _Arguments.__dataclass_fields__}
        super().__init__(*arguments, **given)
        self.flags = {**self.flags, **flags}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _Arguments.__dataclass_fields__:
            super().__setattr__(name, value)
        else:
            self.flags = {**self.flags, name: value}

    def __getattr__(self, name: str) -> Any:
        flags: Mapping[str, Any] = self.__dict__.get("flags", {})
        if name in flags:
            return flags[name]
        if name in _FLAGS:
            return _FLAGS[name].value
        raise AttributeError(f"{name} is neither an argument of LaunchConfig nor a flag that was given.")


def configure(config: LaunchConfig) -> RunConfig:
    """Return the configuration of the run; warn on stderr of each value that has no effect.

    Raises:
        UsageError: A value is invalid.
    """
    check_types(config)
    nnodes = node_range_of(config)
    backend, endpoint = config.rdzv_backend, config.rdzv_endpoint
    numbered = False
    if registry.find(backend) is None:  # a handler that was registered may have any backend's name
        numbered = backend in NUMBERED
        backend, endpoint = settle(backend, endpoint, nnodes)
    catalogue = Catalogue.read()
    settings, unlimited = settings_of(config, catalogue)
    options = load_backend(backend, catalogue, config.plugins).rendezvous_options()
    given = {key: value for key, value in config.rdzv_configs.items() if value is not None}
    if numbered and nnodes.most > 1 and "rank" not in given:
        raise UsageError(
            f"rdzv_configs has no 'rank': with {config.rdzv_backend!r} each of the {nnodes.most} nodes needs a number.",
            hint="Give rdzv_configs={'rank': N}, counted from 0.",
        )
    rank = read("rdzv_configs rank", str(given.pop("rank", 0)), parse.count_from_zero) if numbered else None
    node_rank = rank if backend in NUMBERED else None
    if config.rdzv_timeout != -1:
        given.setdefault("timeout" if options.handler else "join_timeout", config.rdzv_timeout)
    text = ",".join(f"{key}={value}" for key, value in given.items())
    conf = parse_conf(text, backend=backend, options=options)
    check_nodes((backend, endpoint), nnodes, options, spares=config.flags.get("spares", 0), node_rank=node_rank)
    for warning in conf.without_effect:
        warn(warning)
    _warn_of_no_effect(config)
    limit = _FLAGS["max_restarts"].accept(config.max_restarts)
    return RunConfig(
        **{
            **settings,
            "program": Program(ProgramKind.MODULE, "", name=""),
            "min_nodes": nnodes.least,
            "max_nodes": nnodes.most,
            "sizes": nnodes.sizes,
            "node_rank": node_rank,
            "max_restarts": None if unlimited and limit == MAX_RESTARTS else limit,
            "rdzv_backend": backend,
            "rdzv_endpoint": endpoint,
            "rdzv_id": config.run_id or (os.urandom(4).hex() if backend == LOCAL else DEFAULT_ID),
            "rdzv_conf": conf.backend,
            "job_token": read_token(os.environ, conf.token_file),
            "timing": conf.timing,
            "run_uid": conf.run_uid or scheduler_uid(os.environ),
            "local_addr": read("local_addr", config.local_addr or None, parse.address),
            **_logs_of(config),
            "line_prefix": config.log_line_prefix_template or LINE_PREFIX,
            "monitor_interval": _MONITOR.accept(config.monitor_interval),
            "plugins": config.plugins,
            "least_level": least_level("DEBUG" if settings.get("verbose") else os.environ.get("LOGLEVEL", "")),
        }
    )


def config_of(config: Any, entrypoint: Any, args: Sequence[Any]) -> LaunchConfig:
    """Elastic's LaunchConfig for torch's; what is torch's default and means nothing to Elastic is left out.

    Raises:
        UsageError: Elastic does not take it.
    """
    if callable(check_entrypoint(entrypoint)):
        if config.start_method != "spawn":
            raise UsageError(f"start_method={config.start_method!r}: Elastic forks no workers from the caller.")
        with tempfile.TemporaryDirectory(prefix="elastic_call_") as directory:
            call.write(call.Call(entrypoint, tuple(args)), Path(directory))
    if (logs := type(config.logs_specs).__name__) != _DEFAULT_LOGS:
        raise UsageError(f"logs_specs is of the class {logs}, which Elastic does not use.")
    given = {item.name: getattr(config, item.name) for item in fields(LaunchConfig) if hasattr(config, item.name)}
    given["rdzv_timeout"] = -1  # torch has written it into rdzv_configs
    given["rdzv_configs"] = {
        key: value for key, value in given["rdzv_configs"].items() if (key, value) != ("timeout", _TORCHS_TIMEOUT)
    }
    if given.get("signals_to_handle") == _TORCHS_SIGNALS:
        del given["signals_to_handle"]
    return LaunchConfig(**given)


def settings_of(config: LaunchConfig, catalogue: Catalogue) -> tuple[dict[str, Any], bool]:
    """Return the values of the flags, as fields of RunConfig, and whether a plugin's flag limits the restarts.

    Raises:
        UsageError: A flag does not exist, is not installed, or has a wrong value.
    """
    if reserved := sorted(config.flags.keys() & {*_OTHERWISE, *_Arguments.__dataclass_fields__}):
        raise UsageError(
            f"{reserved[0]} is no flag of a LaunchConfig.", hint="Its arguments have it under another name."
        )
    own = {name: getattr(config, name) for name in _FLAGS if name in _Arguments.__dataclass_fields__}
    values = {name: value for name, value in {**own, **config.flags}.items() if name not in _OTHERWISE}
    values.update({name: tuple(texts) for name in _FILTERS if (texts := getattr(config, name))})
    if config.virtual_local_rank not in (False, 0):
        values[_VIRTUAL] = config.virtual_local_rank
    if config.event_log_handler == "console":
        values[event_log.FLAG.name] = config.event_log_handler
    mode = _numa_mode(config.numa_options)
    others = (values.keys() - _FLAGS.keys()) | (set() if mode is None else {_NUMA})
    declared = declared_flags(catalogue) if others else {}
    for name in sorted(others - declared.keys()):
        raise not_declared(name)
    found = {name: {**_FLAGS, **declared}[name].accept(value) for name, value in values.items()}
    if mode is not None:
        found[_NUMA] = read("numa_options", mode, declared[_NUMA].parse)
    given = {name: found.pop(name) for name in declared if name in found}
    found["settings"] = {name: value for name, value in given.items() if value != declared[name].value}
    return found, any(declared[name].limits_restarts(value) for name, value in given.items())


def node_range_of(config: LaunchConfig) -> parse.NodeRange:
    """Return the numbers of nodes that the configuration allows.

    Raises:
        UsageError: ``node_sizes`` are no sizes, or others than ``min_nodes`` and ``max_nodes``.
    """
    given = (config.min_nodes, config.max_nodes)
    if config.node_sizes is None:
        return parse.NodeRange(*given)
    name = f"node_sizes={config.node_sizes!r}"
    if not config.node_sizes or any(type(size) is not int for size in config.node_sizes):
        raise UsageError(f"{name} is not a list of numbers of nodes.", hint="For example node_sizes=(4, 6, 8).")
    try:
        found = parse.node_sizes(config.node_sizes)
    except parse.Wrong as wrong:
        raise UsageError(f"{name} {wrong}.{wrong.suggestion}") from None
    if given not in ((1, 1), (found.least, found.most)):
        raise UsageError(
            f"{name} is from {found.least} to {found.most} nodes, but min_nodes={given[0]} and max_nodes={given[1]}.",
            hint="Leave out min_nodes and max_nodes.",
        )
    return found


def check_types(config: LaunchConfig) -> None:
    """Refuse a configuration of another type, a value of a wrong type, and contradicting numbers of nodes.

    Raises:
        UsageError: The message names the field.
    """
    if not isinstance(config, LaunchConfig):
        kind = type(config)
        raise UsageError(
            f"The configuration is of the type {kind.__module__}.{kind.__qualname__}, not a LaunchConfig of Elastic's.",
            hint="Make one of elastic_torchrun.launch.LaunchConfig, which takes torch's arguments.",
        )
    shown = {item.name: item.repr for item in fields(config)}
    optional = {*_MAY_BE_NONE, *(item.name for item in fields(config) if item.default is None)}
    for kinds, what, names in _TYPES:
        for name in names.split():
            value = getattr(config, name)
            if not isinstance(value, kinds) and not (value is None and name in optional):
                given = f"={value!r}" if shown[name] else ""  # others may hold a password
                raise UsageError(f"{name}{given} is of the type {type(value).__name__}, not {what}.")
    for name in (*_FILTERS, "plugins"):
        texts = () if name in optional and getattr(config, name) is None else getattr(config, name)
        is_list = isinstance(texts, Sequence) and not isinstance(texts, str)  # which would be a list of its letters
        if not is_list or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{name}={texts!r} is not a list of texts.", hint=f"For one text: {name}=['...'].")
    read("start_method", config.start_method, parse.start_method)
    least, most = config.min_nodes, config.max_nodes
    if type(least) is type(most) is int and least > most:
        raise UsageError(f"min_nodes={least} is greater than max_nodes={most}.")


def check_entrypoint(entrypoint: Callable[..., Any] | str | None) -> Callable[..., Any] | str:
    """Return the entrypoint; raise a UsageError if it is neither a function nor a command."""
    if callable(entrypoint) or (isinstance(entrypoint, str) and entrypoint):
        return entrypoint
    raise UsageError(f"The entrypoint {entrypoint!r} is neither a function nor a command.")


def _warn_of_no_effect(config: LaunchConfig) -> None:
    if config.start_method not in ("spawn", None):
        warn_no_effect("start_method", config.start_method)
    if config.metrics_cfg:
        warn_no_effect("metrics_cfg")
    if config.event_log_handler not in (*event_log.HANDLERS, None):
        warn_no_effect("event_log_handler", config.event_log_handler)
    if config.logs_specs is not None and (kind := type(config.logs_specs).__name__) != _DEFAULT_LOGS:
        warn(f"reify() of the logs_specs {kind} is not called; log_dir, redirects, tee and local_ranks_filter hold.")


def _logs_of(config: LaunchConfig) -> dict[str, Any]:
    """Return the fields of RunConfig for the workers' output: the arguments', else those of torch's LogsSpecs."""
    specs, log_dir, redirects, tee = config.logs_specs, config.log_dir, config.redirects, config.tee
    shown: Any = None
    if specs is not None:
        if not hasattr(specs, "root_log_dir"):
            raise UsageError(
                f"logs_specs={specs!r} is no LogsSpecs of torch's.", hint="Give log_dir, redirects and tee instead."
            )
        log_dir = (None if specs.root_log_dir == os.devnull else specs.root_log_dir) if log_dir is None else log_dir
        redirects = getattr(specs, "_redirects", None) if redirects is None else redirects
        tee = getattr(specs, "_tee", None) if tee is None else tee
        shown = getattr(specs, "_local_ranks_filter", None)
    return {
        "log_dir": None if log_dir is None else Path(log_dir),
        "redirects": stream_map(redirects or 0),
        "tee": stream_map(tee or 0),
        "local_ranks_filter": frozenset(shown) if shown else None,
    }


def stream_map(streams: Streams) -> StreamMap:
    """Return the streams of each local rank; raise a UsageError for an invalid flag or rank."""
    given: Mapping[Any, Any] = streams if isinstance(streams, Mapping) else {0: streams}
    with suppress(ValueError, TypeError):
        flags = {int(rank): int(flag) for rank, flag in given.items()}
        if all(rank >= 0 and 0 <= flag <= Stream.ALL for rank, flag in flags.items()):
            by_rank = {rank: Stream(flag) for rank, flag in flags.items()}
            return StreamMap(by_rank=by_rank) if given is streams else StreamMap(default=by_rank[0])
    raise UsageError(
        f"{streams!r} is neither a flag for streams nor a mapping of local ranks to flags.",
        hint="Give Std.NONE, Std.OUT, Std.ERR or Std.ALL.",
    )


def _numa_mode(options: Any) -> str | None:
    """Return the text of ``--numa_binding`` for torch's NumaOptions or a mode's name; None for None."""
    mode = getattr(options, "affinity_mode", options)
    return None if mode is None else str(getattr(mode, "value", mode))


def warn_no_effect(name: str, value: object = None) -> None:
    """Warn of an argument without effect, with its value if that is given."""
    warn(f"{name}{'' if value is None else f'={value!r}'} has no effect: {_NO_EFFECT[name]}.")


def read(name: str, text: str | None, meaning: Callable[[str], _T]) -> _T | None:
    """Return the parsed value of a text, as on the command line; UsageError if it is invalid; None for None."""
    if not isinstance(text, str | None):
        raise UsageError(f"{name}={text!r} is of the type {type(text).__name__}, not a text.")
    try:
        return None if text is None else meaning(text)
    except parse.Wrong as wrong:
        raise UsageError(f"{name}={text!r} {wrong}.{wrong.suggestion}") from None
