"""Every hook that a plugin can implement, with its contract.

Five families: rendezvous, failure, metrics, checkpoint, worker start. A plugin is any object (module, class
instance) with functions of these names marked by :data:`hookimpl`; ``docs/writing_a_plugin.md`` goes from nothing to
one that is found by entry point. Core's own defaults (``elastic_core.plugins.builtin``) are registered through these
same hooks and nowhere else.

All hooks run in the agent's process, but for the two of family 4 that are asked in workers. Unless a contract says
otherwise, a hook that raises fails the run, naming the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.assignment import Assignment
    from elastic_core.config.program import Program
    from elastic_core.config.run import RunConfig
    from elastic_core.events import Event
    from elastic_core.incidents import History, Incident, Verdict
    from elastic_core.protocol.roster import NodeInfo
    from elastic_core.rendezvous.backend import RendezvousBackend
    from elastic_core.rendezvous.handler import RendezvousHandler, RendezvousParameters
    from elastic_core.rendezvous.options import RendezvousOptions
    from elastic_core.worker.train_state import TrainingState

PROJECT = "elastic"

HOOKSPEC_VERSION = (1, 4)
"""(major, minor). A plugin may name its major in an attribute ``elastic_hookspec_major``: another one than ours is
refused, none is accepted."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# 1. Rendezvous -------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def elastic_rendezvous_options() -> RendezvousOptions | None:
    """Declare the endpoint's form and the ``--rdzv_conf`` options of a backend.

    Called once, by the CLI, on the main thread, before anything is started: unknown options and malformed endpoints
    are refused from what it returns. Only the plugin of the backend that the run names is asked. A backend without
    this hook takes no endpoint and no options of its own.
    """


@hookspec(firstresult=True)
def elastic_make_rendezvous(params: RendezvousParameters) -> RendezvousBackend | RendezvousHandler | None:
    """Make the backend's first connection to the store of job ``params.run_id``.

    A ``RendezvousHandler``, ours or torch's, may be returned instead. It keeps no ledger, so the agent then works as
    torchrun's does; its methods are called from another thread, one at a time.

    Called on the main thread, before the agent has threads or workers (forking is safe here): once, and again while the
    store is not up, as said below. It may block while it connects, for the backend's own timeout at most. The agent
    closes what it returns; an embedded store ends with that.

    Raises:
        RendezvousConnectionError: Nobody listens at the endpoint, or it does not let us in. The agent says so and asks
            again for 60 s, or for ``join_timeout`` if that is shorter; then this ends the run with exit code 69. It
            ends the run at once if it is ``lasting``, and where the store is embedded or a handler is made: these
            wait by themselves.
        UsageError: The endpoint or an option is wrong. Ends the run with exit code 2.
        PluginError: What is no ElasticError becomes one, which names the plugin. Ends the run with exit code 2.
    """


# 2. Failure ----------------------------------------------------------------------------------------------------------


@hookspec
def elastic_judge_failure(incident: Incident, history: History) -> Verdict | None:
    """Say what to do about a failure of workers; None abstains.

    Called on the leader, in a thread of its own, off every loop, once per incident that could spend a restart (a lost
    or leaving node is the protocol's business, not a policy's). All policies are asked, and the strictest verdict
    wins. The answer is awaited for 10 s; a policy that raises, takes longer, or gives a verdict whose fields are of
    other types is reported and abstains. It must not keep state: the next incident may be judged on another node.
    ``history`` comes from the ledger and is all there is to remember.
    """


@hookspec
def elastic_node_gone(node: NodeInfo) -> bool | None:
    """Say whether a node is gone for good, with all its processes; None where that is not known.

    Asked when a round may not begin because nodes of the last one are silent and may still be training (rule S4). True
    is a promise: no process of that node runs, nor will run again, as of a pod that was deleted, an instance that was
    terminated, or a Slurm node that is down with its steps ended. A network that does not answer proves nothing. If a
    promise is wrong, two rounds train at once, until that node reaches the store again or fences itself. The heartbeat
    of a node that goes on overrules it.

    ``node`` has what the node has said of itself: ``host`` (its name, of a pod too), ``host_id``, ``address``. All
    plugins are asked, and one True is enough. Called on the leader only, in a thread of its own, off every loop, with
    10 s to answer; again every 10 s while the job waits, but not before it has answered. A plugin that raises, takes
    longer, or answers something else is reported, and its answer is None.
    """


# 3. Metrics ----------------------------------------------------------------------------------------------------------


@hookspec
def elastic_observe(event: Event) -> None:
    """Receive an event, on every node. All levels come, DEBUG too; ``docs/events.md`` lists the events.

    Called on the observer's thread, in order, never from the agent's loop, so it may take its time; if more than
    10,000 notices wait, the oldest are dropped and counted. An observer that raises is reported once and switched
    off; the job goes on.
    """


@hookspec
def elastic_run_starts(config: RunConfig, run_uid: str, node: NodeInfo, log_dir: Path | None) -> None:
    """This node has joined a run, under the name ``node``.

    ``run_uid`` is the run's own random id; a job id, ``config.rdzv_id``, may see many runs. ``log_dir`` is the run's
    folder: None when nothing in it is kept, not always made yet, and perhaps shared with other nodes, so name files
    after ``node.node_id``. Called once, on the observer's thread, as :func:`elastic_observe` and with the same
    consequences when it raises. No round has started yet; events such as ``joining`` may have come before.
    """


@hookspec
def elastic_run_ends() -> None:
    """Nothing follows: close what is open.

    Called once, on the observer's thread, as the last notice, also where the run never started; not for an observer
    that is switched off.
    """


# 4. Checkpoint -------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def elastic_train_state() -> type[TrainingState] | None:
    """The class that ``elastic_core.TrainState`` is in a script: what saves and restores its training.

    Called in a worker, when its script first uses the name, and never by the agent: so it imports what it needs in
    here, torch among it, and not where its module is imported. Asked are the plugins of the group ``elastic.worker``
    that the run names with ``--plugin`` or ``ELASTIC_PLUGINS``, the last named first; then elastic-torch, whose answer
    is ``elastic_torch.TrainState``. All nodes of a run name the same ones, or are refused. What is to outlive a worker
    goes to the agent (``elastic_core.worker.fd_store``) or to a disk.

    Raises:
        PluginError: What is no ElasticError becomes one, which names the plugin, in the script.
    """


@hookspec(firstresult=True)
def elastic_init_process_group() -> Callable[..., None] | None:
    """The function that ``elastic_core.init_process_group`` is in a script; elastic-torch's is torch's, made ready.

    Called as :func:`elastic_train_state`. What it returns calls ``elastic_core.worker.channel.report("initialized")``
    once the worker has met its peers, which counts as progress of the round.
    """


@hookspec
def elastic_round_starts(round: int, run_uid: str, members: Sequence[str]) -> None:
    """A round is about to start workers on this node: ``members`` are its node ids in rank order.

    Called on the observer's thread, like :func:`elastic_observe` and with the same consequences when it raises: it
    is a notice, not a gate, and the workers do not wait for it.
    """


@hookspec
def elastic_stop_planned(round: int, grace: float, reason: str) -> None:
    """The workers of a healthy round are about to be stopped for a planned reason (a resize, a leaving node).

    ``grace`` is the time in seconds that they get after SIGTERM; workers that take notices (``should_checkpoint``) get
    none, and have that long to stop together by themselves. Called on the observer's thread, as
    :func:`elastic_round_starts`.
    """


# 5. Worker start -----------------------------------------------------------------------------------------------------


@hookspec
def elastic_preload(config: RunConfig) -> Sequence[str] | None:
    """Modules that the fork server imports before it forks workers, besides those of ``--preload``.

    Called once, before the node joins, in runs with a warm start only. They must not start threads, nor touch a GPU:
    a process that has done either is not forked, and workers start fresh. Raising ends the run before it has begun.

    The fork server is on its way before plugins are loaded: what a plugin sets in ``os.environ`` comes too late for it,
    and workers start fresh where a library reads that while it is imported.
    """


@hookspec(firstresult=True)
def elastic_worker_command(program: Program, assignment: Assignment) -> Sequence[str] | None:
    """The argument vector of one worker; the first plugin that does not return None decides, core's plain start
    comes last.

    Called on the agent's loop just before each worker is started: it must not block. Raising fails the start on this
    node, as a worker that cannot be started.
    """


@hookspec
def elastic_worker_environment(program: Program, assignment: Assignment) -> Mapping[str, str] | None:
    """Variables to add to one worker's environment; of several answers for one variable the last registered plugin's
    wins.

    Called on the agent's loop, as :func:`elastic_worker_command`. Core's own answer is the contract with training
    scripts (RANK, WORLD_SIZE, MASTER_ADDR, …, listed in ``elastic_core.config.environment``).
    """
