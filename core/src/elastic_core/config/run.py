"""The configuration of a run: one frozen record, made by the CLI or the Python API and passed down unchanged."""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.config.program import Program
from elastic_core.errors import UsageError
from elastic_core.events import Level
from elastic_core.rendezvous.options import check_node_limit

if TYPE_CHECKING:
    from elastic_core.rendezvous.job_token import JobToken

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # on which a node leaves by default, unless ignored
DEFAULT_ID = "none"  # the job id of a run without ``--rdzv_id``, as in torchrun
MAX_RESTARTS = 3  # failures of workers that a job survives by default
UNLIMITED_RESTARTS = 1_000_000  # the limit where a budget of ``--failure_policy`` stands in its place
MAX_FAILURE_POLICY = 500  # characters of ``--failure_policy``, at most: an OPEN carries it (``protocol/limits.py``)
SHUTDOWN_TIMEOUT = 30.0
MONITOR_INTERVAL = 0.1
HEALTH_TIMEOUT = 60.0  # seconds
EXIT_BARRIER = 300.0
LINE_PREFIX = "[rank${rank}]:"
MAX_ROLE = 64  # characters, at most: a ROUND names the roles of all nodes (``protocol/limits.py``)
DEVICES = ("auto", "cpu", "gpu", "xpu")  # the kinds of device that ``--nproc_per_node`` can count
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")  # the modes of ``--numa_binding``


def has_budget(failure_policy: str) -> bool:
    """Whether the text of ``--failure_policy`` names a budget of restarts."""
    parts = ["".join(part.split()) for part in failure_policy.split(",")]
    return any(part.startswith("budget=") and part != "budget=off" for part in parts)


def describe_limit(max_restarts: int) -> str:
    """Return ``" of 3"``; '' where a budget of ``--failure_policy`` stands in the limit's place."""
    return "" if max_restarts >= UNLIMITED_RESTARTS else f" of {max_restarts}"


class OnNodeLoss(str, enum.Enum):
    """The consequence of a lost node (``--on_node_loss``)."""

    REPLACE = "replace"
    FAIL = "fail"


class Stream(enum.IntFlag):
    """Standard streams of a worker, as in ``--redirects`` and ``--tee``: 0 none, 1 stdout, 2 stderr, 3 both."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class StreamMap:
    """The streams of each local rank; ranks that ``by_rank`` does not name have ``default``."""

    default: Stream = Stream.NONE
    by_rank: Mapping[int, Stream] = field(default_factory=dict)

    def __getitem__(self, local_rank: int) -> Stream:
        return self.by_rank.get(local_rank, self.default)

    @property
    def any(self) -> bool:
        """Whether it names any stream of any rank."""
        return bool(self.default or any(self.by_rank.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Every duration of the protocol, in seconds; ``--rdzv_conf`` keys of the same names set them.

    The node that opens the run writes its values into the ledger, and all nodes use those, so that no two nodes judge
    by different durations.

    Raises:
        UsageError: A duration is not positive, or ``lost_after`` is not at least twice ``beat_interval``.
    """

    join_timeout: float = 600.0  # how long the job waits for the minimum of nodes, at first and after a loss
    last_call_timeout: float = 1.0  # how long the first round waits for one more node than the minimum
    beat_interval: float = 2.0
    lost_after: float = 6.0  # a node whose heartbeat and row do not change for this long is lost (rule L1)
    fence_after: float = 600.0
    """How long a round with unreachable members blocks the next one; such members stop their workers at 80 % of it."""
    plan_timeout: float = 300.0  # how long workers get to reach the agreed step of should_checkpoint()
    resize_wait: float = field(default=60.0, metadata={"skippable": True})
    """How long a new node waits for others before workers that save nothing when they are stopped make room for it, if
    their checkpoints are not known; 0 for no wait."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0 and not (item.name in ("last_call_timeout", "resize_wait") and value == 0):
                raise UsageError(f"--rdzv_conf {item.name}={value:g} is not a positive number of seconds.")
        if self.lost_after < 2 * self.beat_interval:
            raise UsageError(
                f"--rdzv_conf lost_after={self.lost_after:g} is less than two heartbeats of {self.beat_interval:g} s.",
                hint="One late heartbeat would cost a healthy node. "
                f"Set lost_after to at least {3 * self.beat_interval:g}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configuration of one run, from the command line or from Python. Durations are in seconds.

    Raises:
        UsageError: A value is invalid, or two values contradict each other.
    """

    program: Program
    min_nodes: int = 1
    max_nodes: int = 1
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes of a round (rule L15), in order; () for every number from ``min_nodes`` on."""
    spares: int = 0  # nodes beyond ``max_nodes`` that are expected to wait for a place (rule L16)
    nproc_per_node: int = 1
    role: str = "default"
    node_rank: int | None = None  # the number of this node, given by hand (static backend); None to have it assigned
    order: str = ""  # where this node stands among others when ranks are assigned, as ``sort_by_rank`` reads it
    master_port: int | None = (
        None  # the port of the workers' store in a job of one node; None for a free one each round
    )
    max_restarts: int = MAX_RESTARTS
    failure_policy: str = ""
    set_aside_torn_checkpoints: bool = False
    """The failure policies, as typed; the plugin ``policies`` reads it. All nodes of a run must have the same."""
    notices: str | None = None
    """Whose notices of a preemption this node obeys; None for ``auto``. The plugin ``notices`` reads it."""
    on_node_loss: OnNodeLoss = OnNodeLoss.REPLACE
    rdzv_backend: str = "local"
    rdzv_endpoint: str = field(default="", repr=False)  # not shown: it may hold a password, as may ``rdzv_conf``
    rdzv_id: str = DEFAULT_ID
    rdzv_conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # the keys of the backend, without core's
    job_token: JobToken | None = field(default=None, repr=False)  # the secret of all nodes; None for a job without one
    timing: Timing = field(default_factory=Timing)
    run_uid: str | None = None  # the scheduler's id of this run (rule S6), from ``run_uid=…`` or its environment
    allow_version_mismatch: bool = False
    local_addr: str | None = None
    signals: tuple[signal.Signals, ...] | None = None  # on which the node leaves; None for ``SIGNALS`` unless ignored
    shutdown_timeout: float = SHUTDOWN_TIMEOUT  # between the first signal and SIGKILL, for workers of a healthy round
    failure_grace: float = 3.0  # between the first signal and SIGKILL, for workers of a broken round
    preemption_grace: float = 0.0  # time after SIGTERM in which all workers stop together; 0 for no such stop
    hang_window: float | None = None
    """How long a worker makes no progress before it is found out whether the job hangs; 0 for never, None for 300 s, or
    ten times the longest step if that is longer."""
    hang_timeout: float | None = None  # the same, after which a job that hangs also loses the round; None for never
    health_checks: tuple[str, ...] = ()  # the checks of ``--health_check``, besides those that are on by themselves
    health_timeout: float = HEALTH_TIMEOUT  # seconds that each check may take
    health_retry: float | None = None  # the pause after which failed checks are run again; None for an end of the agent
    log_dir: Path | None = None
    redirects: StreamMap = field(default_factory=StreamMap)
    tee: StreamMap = field(default_factory=StreamMap)
    local_ranks_filter: frozenset[int] | None = None  # the local ranks that the console shows; None for all
    stdout_filters: tuple[str, ...] = ()  # lines with one of these are also written to ``filtered_stdout.log``
    stderr_filters: tuple[str, ...] = ()
    line_prefix: str = LINE_PREFIX  # of a teed line; ``${rank}``, ``${local_rank}``, ``${role_name}`` are replaced
    progress_pattern: str | None = None
    """A regular expression whose groups step, loss, samples and epoch are read from output; None for the built-in."""
    checkpoint_pattern: str | None = None  # a regular expression for lines which say that a checkpoint was saved
    checkpoint_path: str | None = None  # a directory or a glob, whose newest file is the last checkpoint
    nan_stop: int = 0  # after how many nan or infinite losses in a row a worker fails; 0 for never
    event_log: bool = False  # whether each event is written to stderr as a JSON line
    warm_start: bool = True  # whether workers are forked from a fork server, a process that has imported ``preload``
    preload: tuple[str, ...] | None = None  # the modules that it imports; None for torch, if installed
    virtual_local_rank: bool = False  # whether each worker sees only its own GPU, as device 0, and has LOCAL_RANK=0
    numa_binding: str | None = None  # one of ``NUMA_BINDINGS``; None for no binding
    monitor_interval: float = MONITOR_INTERVAL  # seconds between two polls of a foreign rendezvous handler
    exit_barrier: float = EXIT_BARRIER  # how long a finished node waits for others, with a foreign rendezvous handler
    plugins: tuple[str, ...] = ()
    no_plugins: tuple[str, ...] = ()
    least_level: Level = Level.INFO  # the least level of the events on the console

    def __post_init__(self) -> None:
        for name, least in (
            ("nproc_per_node", 1),
            ("min_nodes", 1),
            ("max_nodes", 1),
            ("spares", 0),
            ("max_restarts", 0),
            ("nan_stop", 0),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageError(f"{name} {value!r} is not a whole number of at least {least}.")
        if self.min_nodes > self.max_nodes:
            raise UsageError(f"The minimum of {self.min_nodes} nodes is greater than the maximum, {self.max_nodes}.")
        check_node_limit(self.max_nodes + self.spares)
        if self.sizes and [*self.sizes] != sorted({self.min_nodes, *self.sizes, self.max_nodes}):
            raise UsageError(
                f"The sizes {self.sizes} are not in order from {self.min_nodes} to {self.max_nodes} nodes, each once."
            )
        if (length := len(self.failure_policy)) > MAX_FAILURE_POLICY:
            raise UsageError(f"--failure_policy has {length} characters; {MAX_FAILURE_POLICY} are allowed.")
        if (length := len(self.role)) > MAX_ROLE:
            raise UsageError(f"--role {self.role[:MAX_ROLE]!r}… has {length} characters; {MAX_ROLE} are allowed.")
        for name in ("shutdown_timeout", "failure_grace", "preemption_grace", "monitor_interval", "exit_barrier"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise UsageError(f"{name} {value!r} is not a number of seconds.")
        positive = (("hang_timeout", 1e-9), ("health_timeout", 1e-9), ("health_retry", 1e-9))
        for name, least_seconds in (("hang_window", 0), *positive):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and least_seconds <= float(value) < math.inf):
                raise UsageError(f"{name} {value!r} is not a number of seconds.")
        if self.master_port is not None and (type(self.master_port) is not int or not 0 <= self.master_port <= 65535):
            raise UsageError(f"master_port {self.master_port!r} is not a port, a whole number up to 65535.")
        for name in ("rdzv_id", "rdzv_backend"):
            if not getattr(self, name).strip():
                raise UsageError(f"{name} is empty.", hint="Give it a name.")
        self._check_ranks("redirects", self.redirects.by_rank)
        self._check_ranks("tee", self.tee.by_rank)
        self._check_ranks("local_ranks_filter", self.local_ranks_filter or ())

    def _check_ranks(self, name: str, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if rank >= self.nproc_per_node:
                raise UsageError(
                    f"--{name} names local rank {rank}, but with --nproc_per_node={self.nproc_per_node} the last one "
                    f"is {self.nproc_per_node - 1}."
                )
