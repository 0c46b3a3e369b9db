"""The flags of core, and the configuration of a run, which is passed down unchanged.

``PlainSettings`` has the flags whose values the run has as they are; out of ``Flags``, ``cli.settle`` makes a run.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.config import parse
from elastic_core.config.flag import Flag, Section, flags_in
from elastic_core.config.parse import NodeRange, OnNodeLoss, StreamMap
from elastic_core.config.program import Program
from elastic_core.errors import UsageError
from elastic_core.events import Level
from elastic_core.rendezvous.options import check_node_limit

if TYPE_CHECKING:
    from elastic_core.rendezvous.job_token import JobToken

T = TypeVar("T")

DEFAULT_ID = "none"  # the job id of a run without ``--rdzv_id``, as in torchrun
MAX_RESTARTS = 3  # failures of workers that a job survives by default
SHUTDOWN_TIMEOUT = 30.0
MONITOR_INTERVAL = 0.1
EXIT_BARRIER = 300.0
LINE_PREFIX = "[rank${rank}]:"

JOB, RENDEZVOUS, PROGRAM = Section("Job size"), Section("Rendezvous"), Section("Program")
FAILURE, OUTPUT, PROGRESS, PLUGINS = Section("Failure"), Section("Output"), Section("Progress"), Section("Plugins")
TORCHRUN = Section("Taken from torchrun's command lines, without effect here")
SECTIONS = (JOB, RENDEZVOUS, PROGRAM, FAILURE, OUTPUT, PROGRESS, PLUGINS, TORCHRUN)
"""The headings of the help, in its order."""


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
    """The time for which a round with unreachable members blocks the next; they stop their workers at 80 % of it."""
    plan_timeout: float = 300.0  # how long workers get to reach the agreed step of should_checkpoint()
    resize_wait: float = field(default=60.0, metadata={"skippable": True})
    """The time that a new node waits for others before workers that save nothing when they are stopped make room for
    it, if their checkpoints are not known; 0 for no wait."""

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
class PlainSettings:
    """The settings that a command line has as the run has them; each field declares its flag, in the help's order."""

    spares: int = JOB.flag(
        "The number of nodes beyond the maximum that the job should have. A spare has done its imports, and takes the "
        "place of a lost node. Further nodes wait as well.",
        ("N", parse.count_from_zero, "0"),
    )
    nproc_per_node: int | str = JOB.flag(
        "Workers on this node; nodes may differ. A word counts devices: auto takes GPUs, else cores. All but cpu need "
        "a plugin.",
        ("N|auto|cpu|gpu|xpu", parse.workers, "1"),
    )
    role: str = JOB.flag("The role of the workers, which they find in ROLE_NAME.", ("NAME", parse.role, "default"))
    allow_version_mismatch: bool = RENDEZVOUS.switch("Let nodes with different versions of Python or torch in.")
    max_restarts: int | None = FAILURE.flag(
        "How many failures of workers the job survives. The loss of a node is no failure of a worker. With 0 the first "
        "failure ends the job, as under torchrun. A script that cannot be imported, or refuses its arguments, gets one "
        "restart. An installed failure policy may end a job earlier: see --failure_policy.",
        ("N", parse.count_from_zero),
        unset=f"{MAX_RESTARTS}, or without a limit where --failure_policy has a budget",
    )
    on_node_loss: OnNodeLoss = FAILURE.flag(
        "After the loss of a node, go on without it or with its replacement (replace), or fail the job (fail).",
        ("replace|fail", parse.on_node_loss, OnNodeLoss.REPLACE.value),
    )
    shutdown_timeout: float | None = FAILURE.flag(
        "How long workers get to end when the job is told to stop, before SIGKILL.",
        ("SECONDS", parse.seconds),
        unset="30",
    )
    failure_grace: float = FAILURE.flag(
        "How long workers get to end after a failure, when most of them hang in a collective.",
        ("SECONDS", parse.seconds, "3"),
    )
    preemption_grace: float = FAILURE.flag(
        "How much notice this node gets before its end, by SIGTERM or by a signal of --signals_to_handle other than "
        "SIGINT, SIGHUP and SIGQUIT, which people send. In that time all workers of the job that call "
        "should_checkpoint() stop together at one step, and no step is lost.",
        ("SECONDS", parse.seconds, "0"),
    )
    signals_to_handle: tuple[signal.Signals, ...] | None = FAILURE.flag(
        "The signals on which this node leaves. Its workers get the same signal; if none of them handles a SIGURG, "
        "SIGUSR1 or SIGUSR2, they get SIGTERM. Workers that still run get SIGTERM 5 s before the end of "
        "--shutdown_timeout (in its last fifth, if that is shorter), and SIGKILL at its end. Where a plugin does so, "
        "the agent writes its state to stderr on SIGQUIT and goes on, unless that is named here.",
        ("NAMES", parse.signals),
        unset="SIGTERM,SIGINT,SIGHUP, as far as they are not ignored",
    )
    log_dir: Path | None = OUTPUT.flag(
        "Keep workers' output there, by round and rank; nothing is ever deleted.", ("DIRECTORY", parse.directory)
    )
    redirects: StreamMap = OUTPUT.flag(
        "Write to files instead of the console: 1 stdout, 2 stderr, 3 both, or by local rank, 0:3,12:1.",
        ("STREAMS", parse.stream_map, "0"),
        short="-r",
    )
    tee: StreamMap = OUTPUT.flag(
        "Write to both, in the same form; lines on the console begin with [rank3]:.",
        ("STREAMS", parse.stream_map, "0"),
        short="-t",
    )
    local_ranks_filter: frozenset[int] | None = OUTPUT.flag(
        "Show only these local ranks on the console, as 0,2; the others' output goes to files.", ("RANKS", parse.ranks)
    )
    verbose: bool = OUTPUT.switch("Print what the agent does in detail.", short="-v")
    checkpoint_path: str | None = PROGRESS.flag(
        "A directory, or a glob, in which the script saves checkpoints. The newest file that no longer changes is "
        "the last checkpoint.",
        ("PATH", parse.not_empty),
    )
    no_plugin: tuple[str, ...] = PLUGINS.flag(
        "Leave off a plugin that would be loaded; may be repeated.", ("NAME", parse.names, ""), repeated=True
    )
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The values of plugins' flags (``elastic_flags``), by name, as far as they are not the defaults."""

    def of(self, flag: Flag[T]) -> T:
        """Return the value of a plugin's flag."""
        value: T = self.settings.get(flag.name, flag.value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(PlainSettings):
    """The values of one command line, each valid by itself; ``cli.settle`` checks them against each other."""

    script: str | None = None
    arguments: tuple[str, ...] = ()
    own_limit: bool = False  # whether a plugin's flag limits the restarts, so that --max_restarts has no default
    nnodes: NodeRange = JOB.flag(
        "The number of nodes. With a range the job starts with MIN nodes, and grows and shrinks. With sizes such as "
        "4,6,8 or 2:8:2 it takes the largest size for which enough nodes are there.",
        ("N|MIN:MAX[:STEP]|N,N,...", parse.node_range, "1"),
    )
    standalone: bool = RENDEZVOUS.switch(
        "A job of one node, which no other can join. --rdzv_endpoint is ignored, and so is a --rdzv_backend "
        "that starts no store."
    )
    rdzv_backend: str | None = RENDEZVOUS.flag(
        "The rendezvous backend; `elastic plugins` lists the installed ones.",
        ("NAME", parse.not_empty),
        unset="the one that takes the form of the endpoint, local without an endpoint",
    )
    rdzv_endpoint: str = RENDEZVOUS.flag(
        "The address of the backend, in its own form: HOST[:PORT] for c10d, DIRECTORY for file. With port 0, a free "
        "port, one node runs by itself.",
        ("ENDPOINT", str, ""),
    )
    rdzv_id: str | None = RENDEZVOUS.flag(
        "The job's id, the same on every node.",
        ("ID", parse.not_empty),
        unset="none, or a new one where no other node can join",
    )
    rdzv_conf: str = RENDEZVOUS.flag(
        "Further settings, such as join_timeout=600 (seconds); a key that does not exist is refused, with a list.",
        ("KEY=VALUE,...", str, ""),
    )
    node_rank: int | None = RENDEZVOUS.flag(
        "This node's rank; only with the static backend, whose nodes are numbered by hand.",
        ("N", parse.count_from_zero),
        unset="0",
    )
    master_addr: str | None = RENDEZVOUS.flag(
        "The host of node 0 with the static backend, or of a job of one node (MASTER_ADDR).",
        ("HOST", parse.address),
        unset="127.0.0.1",
    )
    master_port: int | None = RENDEZVOUS.flag(
        "The port of its store (MASTER_PORT); 0 is a free one, for one node only.",
        ("PORT", parse.port),
        unset="29500 with static, else a free one",
    )
    local_addr: str | None = RENDEZVOUS.flag(
        "The address at which other nodes reach this one.",
        ("ADDRESS", parse.address),
        unset="found by the route to the endpoint",
    )
    module: bool = PROGRAM.switch("PROGRAM is a module, as with `python -m`.", short="-m")
    no_python: bool = PROGRAM.switch("PROGRAM is any executable; it is run without Python.")
    run_path: bool = PROGRAM.switch("Run PROGRAM by runpy.run_path, as torchrun does.")
    use_env: bool = PROGRAM.switch(
        "Pass the local rank in LOCAL_RANK alone, or as PROGRAM's first argument --local-rank=N too, "
        "as `python -m torch.distributed.launch` does.",
        default="1",
        off="pass_local_rank",
    )
    plugin: tuple[str, ...] = PLUGINS.flag(
        "Load a plugin, besides those of ELASTIC_PLUGINS; may be repeated.", ("NAME", parse.names, ""), repeated=True
    )
    monitor_interval: float | None = TORCHRUN.flag(
        "How often the agent asks a foreign rendezvous handler for newcomers; it polls nothing else.",
        ("SECONDS", parse.seconds),
        unset="0.1",
    )
    start_method: str | None = TORCHRUN.flag(
        "A start method of multiprocessing; workers are no children of the agent.",
        ("METHOD", parse.start_method),
    )
    logs_specs: str | None = TORCHRUN.flag(
        "A class of torch, which the agent does not import; see --redirects and --tee.", ("NAME", str)
    )


FLAGS = tuple(sorted(flags_in(Flags) + flags_in(PlainSettings), key=lambda flag: SECTIONS.index(flag.section)))
"""Core's flags, in the order of the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(PlainSettings):
    """The configuration of one run, from the command line or from Python. Durations are in seconds.

    Raises:
        UsageError: A value is invalid, or two values contradict each other.
    """

    program: Program
    min_nodes: int = 1
    max_nodes: int = 1
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes of a round (rule L15), in order; () for every number from ``min_nodes`` on."""
    nproc_per_node: int = 1
    node_rank: int | None = None  # the number of this node, given by hand (static backend); None to have it assigned
    order: str = ""  # where this node stands among others when ranks are assigned, as ``sort_by_rank`` reads it
    master_port: int | None = None  # of the workers' store in a job of one node; None for a free one each round
    max_restarts: int | None = MAX_RESTARTS  # None for no limit: failure policies decide alone
    rdzv_backend: str = "local"
    rdzv_endpoint: str = field(default="", repr=False)  # not shown: it may hold a password, as may ``rdzv_conf``
    rdzv_id: str = DEFAULT_ID
    rdzv_conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # the keys of the backend, without core's
    job_token: JobToken | None = field(default=None, repr=False)  # the secret of all nodes; None for a job without one
    timing: Timing = field(default_factory=Timing)
    run_uid: str | None = None  # the scheduler's id of this run (rule S6), from ``run_uid=…`` or its environment
    local_addr: str | None = None
    shutdown_timeout: float = SHUTDOWN_TIMEOUT  # between the first signal and SIGKILL, for workers of a healthy round
    line_prefix: str = LINE_PREFIX  # of a teed line; ``${rank}``, ``${local_rank}``, ``${role_name}`` are replaced
    monitor_interval: float = MONITOR_INTERVAL  # seconds between two polls of a foreign rendezvous handler
    exit_barrier: float = EXIT_BARRIER  # how long a finished node waits for others, with a foreign rendezvous handler
    plugins: tuple[str, ...] = ()
    least_level: Level = Level.INFO  # the least level of the events on the console

    def __post_init__(self) -> None:
        for declared in flags_in(PlainSettings):
            value = getattr(self, declared.name)
            if value != declared.value and declared.accept(value) != value:
                raise UsageError(f"{declared.name}={value!r} is a text, not the value that it stands for.")
        for name in ("nproc_per_node", "min_nodes", "max_nodes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"{name} {value!r} is not a whole number of at least 1.")
        if self.min_nodes > self.max_nodes:
            raise UsageError(f"The minimum of {self.min_nodes} nodes is greater than the maximum, {self.max_nodes}.")
        check_node_limit(self.max_nodes + self.spares)
        if self.master_port is not None and (type(self.master_port) is not int or not 0 <= self.master_port <= 65535):
            raise UsageError(f"master_port {self.master_port!r} is not a port, a whole number up to 65535.")
        for name in ("rdzv_id", "rdzv_backend"):
            if not getattr(self, name).strip():
                raise UsageError(f"{name} is empty.", hint="Give it a name.")
        named = {"redirects": self.redirects.by_rank, "tee": self.tee.by_rank}
        for name, ranks in {**named, "local_ranks_filter": self.local_ranks_filter or ()}.items():
            if (last := max(ranks, default=0)) >= self.nproc_per_node:
                raise UsageError(
                    f"--{name} names local rank {last}, but with --nproc_per_node={self.nproc_per_node} the last one "
                    f"is {self.nproc_per_node - 1}."
                )
