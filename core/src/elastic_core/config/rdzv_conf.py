"""Parses ``--rdzv_conf`` into core's settings and the backend's; refuses unknown keys."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from elastic_core.config import parse as values
from elastic_core.config.run import SHUTDOWN_TIMEOUT, Timing
from elastic_core.distributions import backend_of
from elastic_core.errors import UsageError, did_you_mean
from elastic_core.rendezvous.options import FORM, split_host_port

if TYPE_CHECKING:
    from elastic_core.rendezvous.options import RendezvousOptions

RUN_UID, TOKEN_FILE, ORDER = "run_uid", "token_file", "order"
LOCAL = "local"  # the backend of a job of one node
STATIC = "static"
NUMBERED = (STATIC, "torch-static")  # the backends whose nodes are numbered by hand: Elastic's, and torch's
SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
TIMING_KEYS = tuple(item.name for item in fields(Timing))
ORDER_MAX_CHARACTERS = 200
FENCE_FACTOR = 5.0
"""``fence_after`` is at least this many times ``lost_after``: a node without store contact stops its workers at 80 % of
``fence_after``, and needs two ``lost_after`` before, for the store's return and for its reconnects."""
_TLS = "this backend does not speak TLS"
TORCH_KEYS: Mapping[str, str] = {
    "timeout": "say join_timeout for what it means",
    "close_timeout": "closing a job waits for no node",
    "heartbeat_timeout": "say lost_after for what it means",
    "keep_alive_interval": "say beat_interval for what it means",
    "keep_alive_max_attempt": "say lost_after for what it means",
    "store_type": "the backend is the kind of store",
    "rank": "say --node_rank for what it means",
    "is_host": "no agent hosts this backend's store",
    "read_timeout": "this backend has no such limit",
    "use_libuv": "only a TCPStore is served with or without libuv, and ours always is",
    "etcd_prefix": "this backend is not etcd",
    **dict.fromkeys(("protocol", "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert"), _TLS),
}
"""torch's own keys, and why each has no effect with a backend that does not declare it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConf:
    """The parsed ``--rdzv_conf``."""

    timing: Timing = field(default_factory=Timing)
    run_uid: str | None = None
    token_file: str | None = None  # the file of the job's token (``job_token``)
    order: str = ""  # where this node stands among others when ranks are assigned
    backend: Mapping[str, str] = field(default_factory=dict)  # as typed; the backend checks the values
    without_effect: tuple[str, ...] = ()  # a sentence for each key that only torch's own backends know


def parse_conf(text: str, *, backend: str, options: RendezvousOptions) -> RendezvousConf:
    """Parse ``KEY=VALUE,KEY=VALUE``. torch's keys are accepted, though some have no effect.

    A foreign handler (``options``) gets all keys, known or not, but ``order`` and ``token_file``.

    Raises:
        UsageError: A pair has no ``=``, a key is unknown or given twice, a duration is not a number of seconds, or
            ``fence_after`` is too small for ``lost_after``.
    """
    pairs = _pairs(text)
    if options.handler:
        read = {key: _seconds(key, pairs[key]) for key in ("fence_after",) if key in pairs}
        with suppress(UsageError, KeyError):  # the handler's own key of this name may have other values
            if (value := _seconds("join_timeout", pairs["join_timeout"])) > 0:
                read["join_timeout"] = value
        theirs = {key: value for key, value in pairs.items() if key not in (ORDER, TOKEN_FILE)}
        return RendezvousConf(backend=theirs, timing=Timing(**read), token_file=pairs.get(TOKEN_FILE))
    own = {*TIMING_KEYS, RUN_UID, TOKEN_FILE, ORDER}
    known = own | {*options.conf}
    reasons = {**TORCH_KEYS, **options.ignored}
    ignored = [key for key in pairs if key not in known and key in reasons]
    for number, key in enumerate(pairs, 1):
        if key not in known and key not in ignored:  # no value in the message: a misspelt key may be that of a password
            after = any(_SECRET.search(earlier) for earlier in list(pairs)[: number - 1])
            what = f"there is no key {key!r}.{did_you_mean(key, sorted(known))}"
            raise UsageError(
                f"--rdzv_conf: part {number} has no key that is known." if after else f"--rdzv_conf: {what}",
                hint=f"With the {backend} backend the keys are: {', '.join(sorted(known))}.",
            )
    for key, what in ((RUN_UID, "run's uid"), (TOKEN_FILE, "path"), (ORDER, "node's place")):
        if pairs.get(key) == "":
            raise UsageError(f"--rdzv_conf '{key}=': the {what} is empty.")
    timing = Timing(**{key: _seconds(key, pairs[key]) for key in TIMING_KEYS if key in pairs})
    if timing.fence_after < FENCE_FACTOR * timing.lost_after:
        raise UsageError(
            f"--rdzv_conf fence_after={timing.fence_after:g} is less than {FENCE_FACTOR:g} times "
            f"lost_after={timing.lost_after:g}.",
            hint="A short outage of the store would stop healthy workers. Set fence_after to at least "
            f"{FENCE_FACTOR * timing.lost_after:g}, or lost_after to at most {timing.fence_after / FENCE_FACTOR:g}.",
        )
    return RendezvousConf(
        timing=timing,
        run_uid=pairs.get(RUN_UID),
        token_file=pairs.get(TOKEN_FILE),
        order=pairs.get(ORDER, "")[:ORDER_MAX_CHARACTERS],
        backend={key: value for key, value in pairs.items() if key not in (*own, *ignored)},
        without_effect=tuple(f"--rdzv_conf {key}={pairs[key]} has no effect: {reasons[key]}." for key in ignored),
    )


def settle(backend: str, endpoint: str, nnodes: values.NodeRange) -> tuple[str, str]:
    """Return the backend and the endpoint to use for the given ones.

    The backend that HOST[:PORT] alone means, without an endpoint or on port 0, and ``static`` on port 0, mean a free
    port of this host. No other node can find that port, so a job of one node gets ``local``, which needs none.

    Raises:
        UsageError: The port is 0, and the job has more than one node.
    """
    port, usual = None, backend_of(FORM)
    with suppress(ValueError):
        _, port = split_host_port(endpoint)
    port_is_free = backend in (usual, STATIC) and bool(port) and not str(port).strip("0")
    if nnodes.most == 1 and (port_is_free or (backend == usual and not endpoint)):
        return LOCAL, ""
    if port_is_free:
        raise UsageError(
            f"--nnodes {str(nnodes)!r} cannot meet at {endpoint!r}: port 0 is a free port, another one on each node.",
            hint="Name one port for all nodes, such as 29400, and the host that has it.",
        )
    return backend, endpoint


def check_nodes(
    place: tuple[str, str],
    nnodes: values.NodeRange,
    options: RendezvousOptions,
    *,
    spares: int = 0,
    node_rank: int | None = None,
    standalone: bool = False,
) -> None:
    """Refuse nodes, spares and an endpoint that a backend cannot have.

    ``place`` is the backend and the endpoint; ``node_rank`` the number of a node that is numbered by hand, else None.
    With ``standalone`` no other node can join, so that no endpoint is needed.

    Raises:
        UsageError: The nodes cannot meet there, or not so many of them.
    """
    (backend, endpoint), given = place, f"--nnodes {str(nnodes)!r}"
    meet = "Say where the nodes meet, e.g. --rdzv_endpoint=HOST[:PORT], the host being one of them."
    if node_rank is not None and nnodes.least != nnodes.most:
        raise UsageError(
            f"{given}: nodes that are numbered by hand cannot come and go.",
            hint="Give one number, or leave out --node_rank and use another --rdzv_backend.",
        )
    if node_rank is not None and not 0 <= node_rank < nnodes.most:
        raise UsageError(f"--node_rank {node_rank}: with --nnodes={nnodes} the last one is {nnodes.most - 1}.")
    if options.endpoint_required and not (endpoint or standalone):
        hint = f"Add --rdzv_endpoint={options.endpoint}."
        raise UsageError(f"--rdzv_backend {backend!r} needs an endpoint.", hint=hint)
    if endpoint and not options.endpoint:
        raise UsageError(
            f"--rdzv_endpoint {endpoint!r}: the {backend} backend takes no endpoint.",
            hint="Leave it out. A plugin declares what its backend takes by elastic_rendezvous_options.",
        )
    if nnodes.most > 1 and standalone:
        hint = "Did you mean to leave out --standalone?"
        raise UsageError(f"{given}: with --standalone no other node can join.", hint=hint)
    if nnodes.most > 1 and options.single_node:
        raise UsageError(f"{given}: with the {backend} backend no other node can join.", hint=meet)
    if spares and options.single_node:
        what = f"--spares={spares}: with the {backend} backend no other node can join, so there is no spare."
        raise UsageError(what, hint=meet)
    if spares and node_rank is not None:
        raise UsageError(
            f"--spares={spares}: nodes that are numbered by hand have no spares: a spare has no number.",
            hint="Leave out --node_rank and use another --rdzv_backend.",
        )


def shutdown_timeout(given: float | None, environ: Mapping[str, str]) -> float:
    """Return the seconds between SIGTERM and SIGKILL: ``given``, else torch's variable, else the default.

    Raises:
        UsageError: The variable is not a number of seconds.
    """
    if given is not None:
        return given
    if not (text := environ.get(SHUTDOWN_VARIABLE)):
        return SHUTDOWN_TIMEOUT
    try:
        return values.seconds(text)
    except values.Wrong as wrong:
        raise UsageError(f"{SHUTDOWN_VARIABLE}={text!r} {wrong}.{wrong.suggestion}") from None


def scheduler_uid(environ: Mapping[str, str], job_id: str | None = None) -> str | None:
    """Return the scheduler's id of this run, another one after each requeue; None without a known scheduler.

    The tasks of a job array that have its id for their ``job_id`` are nodes of one run, and are requeued one by one.
    """
    if named := environ.get("ELASTIC_SCHEDULER_UID"):
        return named
    job, array = environ.get("SLURM_JOB_ID"), environ.get("SLURM_ARRAY_JOB_ID")
    if job and array and job_id == array:
        return f"slurm-{array}"
    return f"slurm-{job}.{environ.get('SLURM_RESTART_COUNT') or 0}" if job else None


_SECRET = re.compile("pass|pwd|secret|token", re.IGNORECASE)  # in a text that may hold a password, cut at a comma


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        key, equals, value = (part.strip() for part in pair.partition("="))
        hidden = _SECRET.search(text) is not None
        if not (key and equals):
            what = f"part {number}" if hidden else repr(pair)
            raise UsageError(
                f"--rdzv_conf: {what} is not of the form KEY=VALUE.",
                hint="Separate pairs by commas; a value cannot have one.",
            )
        if key in pairs:
            raise UsageError(f"--rdzv_conf gives {f'the key of part {number}' if hidden else repr(key)} twice.")
        pairs[key] = value
    return pairs


def _seconds(key: str, text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise UsageError(f"--rdzv_conf {f'{key}={text}'!r}: {text!r} is not a number of seconds.")
