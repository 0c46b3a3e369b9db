"""All flags of ``elastic run``: what the help shows, and how each text is read."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.cli.option import Flag
from elastic_core.config import parse
from elastic_core.config.run import MAX_RESTARTS, OnNodeLoss

JOB, RENDEZVOUS, PROGRAM, PLACEMENT = "Job size", "Rendezvous", "Program", "Placement"
FAILURE, OUTPUT, PLUGINS = "Failure", "Output", "Plugins"
TORCHRUN = "Taken from torchrun's command lines, without effect here"

FLAGS: Sequence[Flag] = (
    Flag(
        "--nnodes",
        section=JOB,
        parse=parse.node_range,
        default="1",
        show_default=True,
        metavar="N|MIN:MAX",
        help="How many nodes; with a range the job starts with MIN, and grows and shrinks.",
    ),
    Flag(
        "--nproc_per_node",
        section=JOB,
        parse=parse.workers,
        default="1",
        show_default=True,
        metavar="N|auto|cpu|gpu|xpu",
        help="Workers on this node; nodes may differ. A word counts devices: auto takes GPUs, else cores.",
    ),
    Flag(
        "--role",
        section=JOB,
        default="default",
        show_default=True,
        metavar="NAME",
        help="The workers' role, as ROLE_NAME tells them.",
    ),
    Flag(
        "--standalone",
        section=RENDEZVOUS,
        is_flag=True,
        help="One node that nobody joins. --rdzv_endpoint is ignored, and so is a --rdzv_backend "
        "that cannot start a store of its own.",
    ),
    Flag(
        "--rdzv_backend",
        section=RENDEZVOUS,
        parse=parse.not_empty,
        metavar="NAME",
        help="Where the nodes meet; `elastic plugins` lists what is installed.  "
        "[default: c10d with an endpoint HOST[:PORT], local without]",
    ),
    Flag(
        "--rdzv_endpoint",
        section=RENDEZVOUS,
        default="",
        metavar="ENDPOINT",
        help="Its address, in the backend's form: HOST[:PORT] for c10d, DIRECTORY for file. On port 0, a free one, "
        "one node runs by itself.",
    ),
    Flag(
        "--rdzv_id",
        section=RENDEZVOUS,
        parse=parse.not_empty,
        metavar="ID",
        help="The job's id, the same on every node.  [default: none, or a new one where no other node can join]",
    ),
    Flag(
        "--rdzv_conf",
        section=RENDEZVOUS,
        default="",
        metavar="KEY=VALUE,...",
        help="Further settings, such as join_timeout=600 (seconds); a key that does not exist is refused, with a list.",
    ),
    Flag(
        "--node_rank",
        section=RENDEZVOUS,
        parse=parse.count_from_zero,
        metavar="N",
        help="This node's rank; only with the static backend, whose nodes are numbered by hand.  [default: 0]",
    ),
    Flag(
        "--master_addr",
        section=RENDEZVOUS,
        parse=parse.address,
        metavar="HOST",
        help="Where node 0 of the static backend is, or a node by itself (MASTER_ADDR).  [default: 127.0.0.1]",
    ),
    Flag(
        "--master_port",
        section=RENDEZVOUS,
        parse=parse.port,
        metavar="PORT",
        help="The port of its store (MASTER_PORT); 0 is a free one, for one node only.  "
        "[default: 29500 with static, else a free one]",
    ),
    Flag(
        "--local_addr",
        section=RENDEZVOUS,
        parse=parse.address,
        metavar="ADDRESS",
        help="The address at which other nodes reach this one.  [default: found by the route to the endpoint]",
    ),
    Flag(
        "--allow_version_mismatch",
        section=RENDEZVOUS,
        is_flag=True,
        help="Let nodes with different versions of Python or torch in.",
    ),
    Flag("--module", "-m", section=PROGRAM, is_flag=True, help="PROGRAM is a module, as with `python -m`."),
    Flag("--no_python", section=PROGRAM, is_flag=True, help="PROGRAM is any executable; it is run without Python."),
    Flag("--run_path", section=PROGRAM, is_flag=True, help="Run PROGRAM by runpy.run_path, as torchrun does."),
    Flag(
        "--use_env/--pass_local_rank",
        section=PROGRAM,
        default=True,
        show_default=True,
        help="Tell workers their local rank by LOCAL_RANK alone, or by --local-rank=N as PROGRAM's first argument too, "
        "as `python -m torch.distributed.launch` does.",
    ),
    Flag(
        "--warm_start/--no_warm_start",
        section=PROGRAM,
        default=True,
        show_default=True,
        help="Fork workers from a process that has imported --preload, or start an interpreter for each.",
    ),
    Flag(
        "--preload",
        section=PROGRAM,
        parse=parse.modules,
        metavar="MODULES",
        help="What that process imports, as torch,transformers; nothing is a fresh start.  [default: torch, where "
        "it is installed; once it has nothing to do, also torch._dynamo, which every optimizer needs, and libraries "
        "that workers have imported]",
    ),
    Flag(
        "--virtual_local_rank",
        section=PLACEMENT,
        is_flag=True,
        help="Every worker sees only its own GPU, as device 0, and has LOCAL_RANK=0.",
    ),
    Flag(
        "--numa_binding",
        section=PLACEMENT,
        parse=parse.numa_binding,
        metavar="MODE",
        help="Bind each worker to CPUs near its GPU: node, socket, exclusive or core-complex.",
    ),
    Flag(
        "--max_restarts",
        section=FAILURE,
        parse=parse.count_from_zero,
        default=str(MAX_RESTARTS),
        show_default=True,
        metavar="N",
        help="How many failures of workers the job survives; the loss of a node is none. With 0 the first one ends the "
        "job, as under torchrun.",
    ),
    Flag(
        "--on_node_loss",
        section=FAILURE,
        parse=parse.on_node_loss,
        default=OnNodeLoss.REPLACE.value,
        show_default=True,
        metavar="replace|fail",
        help="Go on without a lost node, or with its replacement; or fail the job.",
    ),
    Flag(
        "--shutdown_timeout",
        section=FAILURE,
        parse=parse.seconds,
        metavar="SECONDS",
        help="How long workers get to end when the job is told to stop, before SIGKILL.  [default: 30]",
    ),
    Flag(
        "--failure_grace",
        section=FAILURE,
        parse=parse.seconds,
        default="3",
        show_default=True,
        metavar="SECONDS",
        help="The same after a failure, when most of them hang in a collective.",
    ),
    Flag(
        "--preemption_grace",
        section=FAILURE,
        parse=parse.seconds,
        default="0",
        show_default=True,
        metavar="SECONDS",
        help="How long before this node must be gone SIGTERM comes; workers that call should_checkpoint() then stop "
        "together, in all of the job, and no step is lost.",
    ),
    Flag(
        "--signals_to_handle",
        section=FAILURE,
        parse=parse.signals,
        metavar="NAMES",
        help="On which signals this node leaves. Its workers get the same signal, SIGTERM in the last fifth of "
        "--shutdown_timeout, at most 5 s before its end, and SIGKILL then. On SIGQUIT, unless it is "
        "named here, the agent writes its state to stderr and goes on.  [default: SIGTERM,SIGINT,SIGHUP, as far as "
        "they are not ignored]",
    ),
    Flag(
        "--log_dir",
        section=OUTPUT,
        parse=parse.not_empty,
        metavar="DIRECTORY",
        help="Keep workers' output there, by round and rank; nothing is ever deleted.",
    ),
    Flag(
        "--redirects",
        "-r",
        section=OUTPUT,
        parse=parse.stream_map,
        default="0",
        show_default=True,
        metavar="STREAMS",
        help="Write to files instead of the console: 1 stdout, 2 stderr, 3 both, or by local rank, 0:3,12:1.",
    ),
    Flag(
        "--tee",
        "-t",
        section=OUTPUT,
        parse=parse.stream_map,
        default="0",
        show_default=True,
        metavar="STREAMS",
        help="Write to both, in the same form; lines on the console begin with [rank3]:.",
    ),
    Flag(
        "--local_ranks_filter",
        section=OUTPUT,
        parse=parse.ranks,
        metavar="RANKS",
        help="Show only these local ranks on the console, as 0,2; the others' output goes to files.",
    ),
    Flag(
        "--duplicate_stdout_filters",
        section=OUTPUT,
        parse=parse.needles,
        default="",
        metavar="TEXTS",
        help="Also write lines of stdout that contain one of these to filtered_stdout.log; ,, is a comma.",
    ),
    Flag(
        "--duplicate_stderr_filters",
        section=OUTPUT,
        parse=parse.needles,
        default="",
        metavar="TEXTS",
        help="The same for stderr.",
    ),
    Flag(
        "--event_log_handler",
        section=OUTPUT,
        parse=parse.event_log_handler,
        default="null",
        show_default=True,
        metavar="null|console",
        help="Write each event as a JSON line to stderr, or do not.",
    ),
    Flag("--verbose", "-v", section=OUTPUT, is_flag=True, help="Tell what the agent does in detail."),
    Flag(
        "--plugin",
        section=PLUGINS,
        parse=parse.names,
        multiple=True,
        metavar="NAME",
        help="Load an installed plugin, besides those of ELASTIC_PLUGINS; may be repeated.",
    ),
    Flag(
        "--no_plugin",
        section=PLUGINS,
        parse=parse.names,
        multiple=True,
        metavar="NAME",
        help="Leave off a plugin that would be loaded; may be repeated.",
    ),
    Flag(
        "--monitor_interval",
        section=TORCHRUN,
        parse=parse.seconds,
        metavar="SECONDS",
        help="Nothing is polled; only a foreign rendezvous handler is asked for newcomers this often.  [default: 0.1]",
    ),
    Flag(
        "--start_method",
        section=TORCHRUN,
        parse=parse.start_method,
        metavar="METHOD",
        help="Of multiprocessing; see --warm_start for how a script's workers are started.",
    ),
    Flag(
        "--logs_specs",
        section=TORCHRUN,
        metavar="NAME",
        help="A class of torch's that the agent would import torch for; see --redirects and --tee.",
    ),
)
"""In the order of the help; those of a section stand together."""
