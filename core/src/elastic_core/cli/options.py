"""The flags of ``elastic run``, each declared once, as a field of :class:`Flags`.

The declaration gives the flag its help, its environment variable ``PET_<FLAG>`` and its row in ``docs/flags.md``. A
flag whose value is a field of RunConfig as it is names that field in ``fills``. Any other flag has to be read in
:mod:`elastic_core.cli.run`, by ``outline`` if the fork server needs it, else by ``configure``. CONTRIBUTING.md lists
what else a new flag needs. Both spellings of a flag work, ``--rdzv_id`` and ``--rdzv-id``.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from elastic_core.cli.option import Flag, Section
from elastic_core.config import parse
from elastic_core.config.parse import NodeRange
from elastic_core.config.run import MAX_RESTARTS, OnNodeLoss, StreamMap

JOB, RENDEZVOUS, PROGRAM = Section("Job size"), Section("Rendezvous"), Section("Program")
PLACEMENT, FAILURE, OUTPUT = Section("Placement"), Section("Failure"), Section("Output")
HEALTH = Section("Health")
PROGRESS, PLUGINS, TORCHRUN = (
    Section("Progress"),
    Section("Plugins"),
    Section("Taken from torchrun's command lines, without effect here"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The values of one command line, each valid by itself; :mod:`elastic_core.cli.run` checks them against each other.

    The flags are in the order of the help, section by section.
    """

    script: str | None = None
    arguments: tuple[str, ...] = ()
    nnodes: NodeRange = JOB.flag(
        "The number of nodes. With a range the job starts with MIN nodes, and grows and shrinks. With sizes such as "
        "4,6,8 or 2:8:2 it takes the largest size for which enough nodes are there.",
        parse=parse.node_range,
        default="1",
        metavar="N|MIN:MAX[:STEP]|N,N,...",
    )
    spares: int = JOB.flag(
        "The number of nodes beyond the maximum that the job should have. A spare has done its imports, and takes the "
        "place of a lost node. Further nodes wait as well.",
        parse=parse.count_from_zero,
        default="0",
        metavar="N",
        fills="spares",
    )
    nproc_per_node: int | str = JOB.flag(
        "Workers on this node; nodes may differ. A word counts devices: auto takes GPUs, else cores.",
        parse=parse.workers,
        default="1",
        metavar="N|auto|cpu|gpu|xpu",
    )
    role: str = JOB.flag(
        "The role of the workers, which they find in ROLE_NAME.",
        parse=str,
        default="default",
        metavar="NAME",
        fills="role",
    )
    standalone: bool = RENDEZVOUS.switch(
        "A job of one node, which no other can join. --rdzv_endpoint is ignored, and so is a --rdzv_backend "
        "that cannot start a store of its own."
    )
    rdzv_backend: str | None = RENDEZVOUS.flag(
        "Where the nodes meet; `elastic plugins` lists what is installed.",
        parse=parse.not_empty,
        metavar="NAME",
        unset="c10d with an endpoint HOST[:PORT], local without one",
    )
    rdzv_endpoint: str = RENDEZVOUS.flag(
        "The address of the backend, in its own form: HOST[:PORT] for c10d, DIRECTORY for file. With port 0, a free "
        "port, one node runs by itself.",
        parse=str,
        default="",
        metavar="ENDPOINT",
    )
    rdzv_id: str | None = RENDEZVOUS.flag(
        "The job's id, the same on every node.",
        parse=parse.not_empty,
        metavar="ID",
        unset="none, or a new one where no other node can join",
    )
    rdzv_conf: str = RENDEZVOUS.flag(
        "Further settings, such as join_timeout=600 (seconds); a key that does not exist is refused, with a list.",
        parse=str,
        default="",
        metavar="KEY=VALUE,...",
    )
    node_rank: int | None = RENDEZVOUS.flag(
        "This node's rank; only with the static backend, whose nodes are numbered by hand.",
        parse=parse.count_from_zero,
        metavar="N",
        unset="0",
    )
    master_addr: str | None = RENDEZVOUS.flag(
        "The host of node 0 with the static backend, or of a job of one node (MASTER_ADDR).",
        parse=parse.address,
        metavar="HOST",
        unset="127.0.0.1",
    )
    master_port: int | None = RENDEZVOUS.flag(
        "The port of its store (MASTER_PORT); 0 is a free one, for one node only.",
        parse=parse.port,
        metavar="PORT",
        unset="29500 with static, else a free one",
    )
    local_addr: str | None = RENDEZVOUS.flag(
        "The address at which other nodes reach this one.",
        parse=parse.address,
        metavar="ADDRESS",
        unset="found by the route to the endpoint",
    )
    allow_version_mismatch: bool = RENDEZVOUS.switch(
        "Let nodes with different versions of Python or torch in.", fills="allow_version_mismatch"
    )
    module: bool = PROGRAM.switch("PROGRAM is a module, as with `python -m`.", short="-m")
    no_python: bool = PROGRAM.switch("PROGRAM is any executable; it is run without Python.")
    run_path: bool = PROGRAM.switch("Run PROGRAM by runpy.run_path, as torchrun does.")
    use_env: bool = PROGRAM.switch(
        "Pass the local rank in LOCAL_RANK alone, or as PROGRAM's first argument --local-rank=N too, "
        "as `python -m torch.distributed.launch` does.",
        off="pass_local_rank",
        default=True,
    )
    warm_start: bool = PROGRAM.switch(
        "Fork workers from a process that has imported --preload, or start an interpreter for each.",
        off="no_warm_start",
        default=True,
        fills="warm_start",
    )
    preload: tuple[str, ...] | None = PROGRAM.flag(
        "The modules that the process of --warm_start imports, such as torch,transformers. With an empty list every "
        "worker starts fresh.",
        parse=parse.modules,
        metavar="MODULES",
        fills="preload",
        unset="torch, where it is installed; after the start also torch._dynamo, which every optimizer needs, and "
        "libraries that workers have imported",
    )
    virtual_local_rank: bool = PLACEMENT.switch(
        "Every worker sees only its own GPU, as device 0, and has LOCAL_RANK=0.", fills="virtual_local_rank"
    )
    numa_binding: str | None = PLACEMENT.flag(
        "Bind each worker to CPUs near its GPU: node, socket, exclusive or core-complex.",
        parse=parse.numa_binding,
        metavar="MODE",
        fills="numa_binding",
    )
    max_restarts: int | None = FAILURE.flag(
        "How many failures of workers the job survives. The loss of a node is no failure of a worker. With 0 the first "
        "failure ends the job, as under torchrun. A script that cannot be imported, or refuses its arguments, gets one "
        "restart. An installed failure policy may end a job earlier: see --failure_policy.",
        parse=parse.count_from_zero,
        metavar="N",
        unset=f"{MAX_RESTARTS}, or without a limit where --failure_policy has a budget",
    )
    failure_policy: str = FAILURE.flag(
        "Rules for when the job is restarted after a failure, how soon, and on which hosts: "
        "budget=10/1h,backoff=1s..60s. The flag needs elastic-policies, whose page lists all policies.",
        parse=str,
        default="",
        metavar="NAME=VALUE,...",
        fills="failure_policy",
    )
    set_aside_torn_checkpoints: bool = FAILURE.switch(
        "If two rounds in a row fail to load a checkpoint below --checkpoint_path, rename it, so that the next round "
        "loads the one before it. Without this flag the job ends and names it. The flag needs elastic-policies.",
        fills="set_aside_torn_checkpoints",
    )
    notices: str | None = FAILURE.flag(
        "The cloud whose preemption notices this node obeys. The node asks for them every 5 s. With auto it reads "
        "from the machine's firmware which cloud it is in, and asks nothing on other machines. The flag "
        "needs elastic-notices.",
        parse=parse.notices,
        metavar="auto|aws|gcp|azure|none",
        unset="auto, where elastic-notices is installed",
        fills="notices",
    )
    on_node_loss: OnNodeLoss = FAILURE.flag(
        "After the loss of a node, go on without it or with its replacement (replace), or fail the job (fail).",
        parse=parse.on_node_loss,
        default=OnNodeLoss.REPLACE.value,
        metavar="replace|fail",
        fills="on_node_loss",
    )
    shutdown_timeout: float | None = FAILURE.flag(
        "How long workers get to end when the job is told to stop, before SIGKILL.",
        parse=parse.seconds,
        metavar="SECONDS",
        unset="30",
    )
    failure_grace: float = FAILURE.flag(
        "How long workers get to end after a failure, when most of them hang in a collective.",
        parse=parse.seconds,
        default="3",
        metavar="SECONDS",
        fills="failure_grace",
    )
    preemption_grace: float = FAILURE.flag(
        "How much notice this node gets before its end, by SIGTERM or by a signal of --signals_to_handle other than "
        "SIGINT, SIGHUP and SIGQUIT, which people send. In that time all workers of the job that call "
        "should_checkpoint() stop together at one step, and no step is lost.",
        parse=parse.seconds,
        default="0",
        metavar="SECONDS",
        fills="preemption_grace",
    )
    hang_window: float | None = FAILURE.flag(
        "If a worker makes no progress (no new step, no output, no use of a CPU) for so long, all nodes look where "
        "their ranks are, and a job that hangs is reported. 0 switches this off. A report ends nothing.",
        parse=parse.seconds,
        metavar="SECONDS",
        fills="hang_window",
        unset="300, or ten times the longest step if that is longer",
    )
    hang_timeout: float | None = FAILURE.flag(
        "In place of --hang_window: a job that hangs also ends its round, which spends a restart.",
        parse=parse.positive_seconds,
        metavar="SECONDS",
        fills="hang_timeout",
    )
    signals_to_handle: tuple[signal.Signals, ...] | None = FAILURE.flag(
        "The signals on which this node leaves. Its workers get the same signal; if none of them handles a SIGURG, "
        "SIGUSR1 or SIGUSR2, they get SIGTERM. Workers that still run get SIGTERM 5 s before the end of "
        "--shutdown_timeout (in its last fifth, if that is shorter), and SIGKILL at its end. On SIGQUIT, unless it is "
        "named here, the agent writes its state to stderr and goes on.",
        parse=parse.signals,
        metavar="NAMES",
        fills="signals",
        unset="SIGTERM,SIGINT,SIGHUP, as far as they are not ignored",
    )
    health_check: tuple[str, ...] = HEALTH.repeated(
        "Also run these checks before this node enters the job: gpu,matmul,allreduce, or a command whose exit code 0 "
        "means healthy. May be repeated. The word none switches off the default checks.",
        parse=parse.health_checks,
        metavar="NAMES|COMMAND",
        fills="health_checks",
        unset="disk,memory,shm, with elastic-health",
    )
    health_timeout: float = HEALTH.flag(
        "How long each check may take. After that the check fails, and all its processes are killed.",
        parse=parse.positive_seconds,
        default="60",
        metavar="SECONDS",
        fills="health_timeout",
    )
    health_retry: float | None = HEALTH.flag(
        "Run failed checks again after this pause, until they pass or the job has ended (with a foreign rendezvous "
        "handler: for join_timeout).",
        parse=parse.positive_seconds,
        metavar="SECONDS",
        fills="health_retry",
        unset="the agent ends with exit code 72",
    )
    log_dir: str | None = OUTPUT.flag(
        "Keep workers' output there, by round and rank; nothing is ever deleted.",
        parse=parse.not_empty,
        metavar="DIRECTORY",
    )
    redirects: StreamMap = OUTPUT.flag(
        "Write to files instead of the console: 1 stdout, 2 stderr, 3 both, or by local rank, 0:3,12:1.",
        parse=parse.stream_map,
        default="0",
        metavar="STREAMS",
        short="-r",
        fills="redirects",
    )
    tee: StreamMap = OUTPUT.flag(
        "Write to both, in the same form; lines on the console begin with [rank3]:.",
        parse=parse.stream_map,
        default="0",
        metavar="STREAMS",
        short="-t",
        fills="tee",
    )
    local_ranks_filter: frozenset[int] | None = OUTPUT.flag(
        "Show only these local ranks on the console, as 0,2; the others' output goes to files.",
        parse=parse.ranks,
        metavar="RANKS",
        fills="local_ranks_filter",
    )
    duplicate_stdout_filters: tuple[str, ...] = OUTPUT.flag(
        "Also write lines of stdout that contain one of these to filtered_stdout.log; ,, is a comma.",
        parse=parse.needles,
        default="",
        metavar="TEXTS",
        fills="stdout_filters",
    )
    duplicate_stderr_filters: tuple[str, ...] = OUTPUT.flag(
        "Also write lines of stderr that contain one of these to filtered_stderr.log.",
        parse=parse.needles,
        default="",
        metavar="TEXTS",
        fills="stderr_filters",
    )
    event_log_handler: str = OUTPUT.flag(
        "Write each event as a JSON line to stderr, or do not.",
        parse=parse.event_log_handler,
        default="null",
        metavar="null|console",
    )
    verbose: bool = OUTPUT.switch("Print what the agent does in detail.", short="-v")
    progress_pattern: str | None = PROGRESS.flag(
        "A regular expression with groups of the names step, loss, samples and epoch, such as "
        r"'step (?P<step>\d+) loss (?P<loss>\S+)'. Lines of a worker's output that it matches show the worker's "
        "progress. All output of workers then goes through the agent.",
        parse=parse.not_empty,
        metavar="REGEX",
        fills="progress_pattern",
        unset="what Trainer, Lightning, torchtitan, Megatron-LM, DeepSpeed and tqdm print is recognized",
    )
    checkpoint_pattern: str | None = PROGRESS.flag(
        "A regular expression for lines which say that a checkpoint was saved; it may have the groups step and path.",
        parse=parse.not_empty,
        metavar="REGEX",
        fills="checkpoint_pattern",
        unset="what torchtitan and Megatron-LM print",
    )
    checkpoint_path: str | None = PROGRESS.flag(
        "A directory, or a glob, in which the script saves checkpoints. The newest file that no longer changes is "
        "the last checkpoint.",
        parse=parse.not_empty,
        metavar="PATH",
        fills="checkpoint_path",
    )
    nan_stop: int = PROGRESS.flag(
        "A worker fails after so many losses in a row that are nan or infinite; 0 for never.",
        parse=parse.count_from_zero,
        default="0",
        metavar="N",
        fills="nan_stop",
    )
    plugin: tuple[str, ...] = PLUGINS.repeated(
        "Load an installed plugin, besides those of ELASTIC_PLUGINS; may be repeated.",
        parse=parse.names,
        metavar="NAME",
    )
    no_plugin: tuple[str, ...] = PLUGINS.repeated(
        "Leave off a plugin that would be loaded; may be repeated.",
        parse=parse.names,
        metavar="NAME",
        fills="no_plugins",
    )
    monitor_interval: float | None = TORCHRUN.flag(
        "How often the agent asks a foreign rendezvous handler for newcomers; it polls nothing else.",
        parse=parse.seconds,
        metavar="SECONDS",
        unset="0.1",
    )
    start_method: str | None = TORCHRUN.flag(
        "A start method of multiprocessing; see --warm_start for how workers are started.",
        parse=parse.start_method,
        metavar="METHOD",
    )
    logs_specs: str | None = TORCHRUN.flag(
        "A class of torch, which the agent does not import; see --redirects and --tee.", parse=str, metavar="NAME"
    )

    def run_fields(self) -> dict[str, Any]:
        """Return the fields of RunConfig that a single flag fills (``fills``), with their values."""
        return {flag.fills: getattr(self, flag.name) for flag in FLAGS if flag.fills}


FLAGS: Sequence[Flag] = tuple(item.metadata["flag"](item.name) for item in fields(Flags) if item.metadata)
"""The options of the command, in the order of the help."""
