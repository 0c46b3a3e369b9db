"""Every hook that a plugin can implement, with its contract.

Eight families: rendezvous, failure, run and events, checkpoint, worker start, settings, monitors, gates. A plugin is
any object (module, class instance) with functions of these names marked by :data:`hookimpl`;
``docs/authors/writing_a_plugin.md`` builds one step by step. Core's defaults (``elastic_core.plugins.builtin``) are
registered through these hooks and nowhere else.

All hooks run in the agent's process, except the two of family 4 that run in workers. Unless a contract says otherwise,
a hook that raises fails the run: an ElasticError as it is, any other error as a ``PluginError`` that names the plugin,
with exit code 2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from elastic_core.causes import Cause, EndedWorker
    from elastic_core.config.flag import Flag
    from elastic_core.config.program import Program
    from elastic_core.config.run import RunConfig
    from elastic_core.events import Event
    from elastic_core.gates import AgentEnd, JoinedRun, JoinGate, RunSummary, StartGate
    from elastic_core.incidents import Explanation, History, Incident, Verdict
    from elastic_core.monitors import Assignment, RunningRound
    from elastic_core.protocol.entries import Closed
    from elastic_core.protocol.roster import NodeInfo
    from elastic_core.questions import AskedQuestion, NodeAnswer
    from elastic_core.rendezvous.backend import RendezvousBackend
    from elastic_core.rendezvous.options import RendezvousOptions, RendezvousParameters
    from elastic_core.worker.train_state import TrainingState

PROJECT = "elastic"

HOOKSPEC_VERSION = (2, 2)
"""(major, minor). A plugin whose attribute ``elastic_hookspec_major`` names another major is refused."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# 1. Rendezvous -------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def elastic_rendezvous_options() -> RendezvousOptions | None:
    """Declare the endpoint's form and the ``--rdzv_conf`` options of a backend.

    Called once, by the CLI, on the main thread, before anything is started. The CLI refuses unknown options and
    malformed endpoints by what the hook returns. Only the plugin of the backend that the run names is called. A backend
    without this hook takes no endpoint and no options.
    """


@hookspec(firstresult=True)
def elastic_make_rendezvous(params: RendezvousParameters) -> RendezvousBackend | None:
    """Make the backend's first connection to the store of job ``params.run_id``.

    Called on the main thread, before the agent has threads or workers (forking is safe here): once, and again while the
    store is not up (see Raises). It may block while it connects, for the backend's own timeout at most. The agent
    closes the connection that it returns; an embedded store ends with that.

    Raises:
        RendezvousConnectionError: Nothing listens at the endpoint, or the connection is refused. The agent reports it
            and calls again for 60 s, or for ``join_timeout`` if that is shorter; then the run ends with exit code 69.
            The run ends at once if the error is ``lasting``, and for an embedded store or a handler, which wait by
            themselves.
        UsageError: The endpoint or an option is wrong. Ends the run with exit code 2.
    """


# 2. Failure ----------------------------------------------------------------------------------------------------------


@hookspec
def elastic_find_cause(worker: EndedWorker) -> Cause | None:
    """Return why a worker failed; None if that is not known, or if nothing has failed.

    Called on the node of a worker that has failed, before the failure is reported; in a separate thread. The recovery
    waits, so be quick: a plugin that has taken 0.5 s in one round is left off there. Asked once for a worker and its
    exit code. Called also, with ``exit_code`` None, for each worker that runs while its round is broken, which may be
    about to end because of the same failure or have caused it: return the cause that is to end it, None if it has not
    failed by itself.

    All plugins are called. Of several answers, that of the plugin registered last counts, as a whole: only an empty
    ``detail`` is filled in. That of elastic-causes (``trylast``) counts if all others are None, so return None where
    you know no more. Without an answer, the message is that of the script's ``@record``, or the last line of stderr,
    the detail is the end of stderr, no failure follows from that of a peer, and a taken port spends a restart. A plugin
    that raises, takes longer, or returns a value of another type is reported, and its answer is None.
    """


@hookspec
def elastic_explain_failure(incident: Incident, text: str) -> Explanation | None:
    """Return what a failure is known to be: its class, its name, and what to do about it; None if it is not known.

    Called for each failure that a node reports, on that node, before it is reported, in a separate thread; not for a
    lost node. ``text`` has the texts of the exception and of those that led to it, or what native code wrote last, at
    most 1,500 characters. The recovery waits for the answer, for 0.5 s at most, so the plugin must be quick.

    All plugins are called. Of several answers, that of the plugin registered last counts; that of elastic-policies
    (``trylast``) if all others are None. The answer becomes ``incident.explanation``, which the report,
    ``verdict.json``, the failure policies and their ``history`` read. Of its name 100 characters are kept, of its
    advice 250. A plugin that raises, takes longer, or returns a value of another type is reported, and its answer is
    None; one that is late is not asked again before it has answered.
    """


@hookspec
def elastic_judge_failure(incident: Incident, history: History) -> Verdict | None:
    """Return the verdict on a failure of workers; None abstains.

    Called on the leader, in a separate thread, once per incident that could spend a restart (the protocol itself
    handles lost and leaving nodes). All policies are called, and the strictest verdict wins, with the longest delay of
    all. The answer is awaited for 10 s; a policy that raises, takes longer, or returns a verdict whose fields are of
    other types or out of range is reported and abstains, and one that is late is not asked again before it has
    answered. The event ``verdict`` has the decision and its reason.

    A policy must not keep state: another node may judge the next incident. ``history`` comes from the ledger and is the
    only memory.
    """


@hookspec
def elastic_node_gone(node: NodeInfo) -> bool | None:
    """Return whether a node is gone for good, with all its processes; None where that is not known.

    Called when a round cannot begin because nodes of the last one are silent and may still be training (rule S4). True
    is a promise: no process of that node runs, nor will run again, as for a deleted pod, a terminated instance, or a
    Slurm node that is down with its steps ended. A network that does not answer proves nothing. If the promise is
    wrong, two rounds train at once, until that node reaches the store again or stops its workers by the fence. A
    heartbeat of the node overrules the promise.

    ``node`` is what the node wrote about itself: ``host`` (its name, of a pod too), ``host_id``, ``address``. All
    plugins are called, and one True is enough. Called on the leader only, in a separate thread, with 10 s to answer;
    again every 10 s while the job waits, but not before it has answered. A plugin that raises, takes longer, or returns
    another value is reported, and its answer is None.
    """


@hookspec
def elastic_sum_up_answers(question: AskedQuestion, answers: Sequence[NodeAnswer], before: Any) -> Any:
    """Return one report of the answers of all nodes to a question, a JSON value; None if the plugin does not know it.

    Called on the leader, in a separate thread, when all nodes have answered a question of
    :meth:`~elastic_core.monitors.RunningRound.ask`, or after 5 s. ``answers`` has one for each node of the round, in
    rank order; nodes of a foreign handler have none. ``before`` is the former report on a question of that name in this
    round; None for none, and after another node has become the leader. All nodes get the report by
    :meth:`~elastic_core.monitors.RunningRound.follow_answers`.

    All plugins are called, with 3 s to answer; of several reports that of the last registered plugin counts. A plugin
    that raises, takes longer, or returns no JSON value of at most 4,096 bytes is reported, and its answer is None. A
    plugin must not keep state: another node may sum up the next answers. Whatever the report says, core decides
    nothing by it.
    """


# 3. Run and events ---------------------------------------------------------------------------------------------------


@hookspec
def elastic_observe(event: Event) -> None:
    """Receive an event, on every node, of any level; ``docs/reference/events.md`` lists the events.

    Called on the observer's thread, in order, never from the agent's loop, so it may block; if more than 10,000 notices
    wait, the oldest are dropped and counted. An observer that raises is reported once and switched off; the job goes
    on.
    """


@hookspec
def elastic_run_starts(run: JoinedRun) -> None:
    """Receive the notice that this node has joined a run, under the name ``run.node``.

    ``run_uid`` is the run's own random id; a job id, ``config.rdzv_id``, may see many runs. ``log_dir`` is the run's
    folder: None when nothing in it is kept, not always made yet, and perhaps shared with other nodes, so name files
    after ``node.node_id``. Called once for each node that the agent becomes, on the observer's thread, as
    :func:`elastic_observe` and with the same consequences when it raises. No round has started yet; events such as
    ``joining`` may have come before.

    ``leave(why, seconds)`` says that this host is taken away in so many seconds: the node leaves as after ``elastic
    drain``, with that deadline. All workers of the job stop together before it, and nothing is lost where they call
    ``should_checkpoint``; others get SIGTERM at once. Any thread may call it, at any time and more than once: the
    earliest deadline holds, also for the node that the agent is about to become (rule L17). ``publish`` publishes an
    event of this node, from any thread. ``look`` returns what the agent does and waits for, and ``decisions`` its
    newest decisions, on any thread. ``connect`` makes another connection to the job's store, as
    :meth:`RendezvousBackend.connect`, on any thread but the agent's own; the plugin closes it. It is None over a
    rendezvous handler of others: no other process has a part in the ledger of such a node.
    """


@hookspec
def elastic_job_closed(closed: Closed, summary: RunSummary, publish: Callable[[Event], None]) -> None:
    """Receive the verdict on the job, and this node's counters of the run.

    Called on the main thread of each node that had joined, when its workers have ended and before it leaves the roster:
    the exit waits, so be quick. ``publish`` publishes an event of this node. A plugin that raises is reported.
    """


@hookspec
def elastic_run_ends() -> None:
    """Close all resources: no notice follows.

    Called once, on the observer's thread, as the last notice, also where the run never started, perhaps before
    :func:`elastic_configure`; not for an observer that is switched off.
    """


# 4. Checkpoint -------------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def elastic_train_state() -> type[TrainingState] | None:
    """Return the class that ``elastic_core.TrainState`` is in a script, which saves and restores training state.

    Called in a worker, when its script first uses the name, and never by the agent. The implementation imports torch
    and the like inside the function, not at the top of its module. Called in turn are the plugins of the group
    ``elastic.worker`` that the run names with ``--plugin`` or ``ELASTIC_PLUGINS``, the last named first; then
    elastic-torch, whose answer is ``elastic_torch.TrainState``. All nodes of a run must name the same ones. State that
    is to outlive a worker goes to a disk, or to a plugin of the agent (``RunningRound.serve``).
    """


@hookspec(firstresult=True)
def elastic_init_process_group() -> Callable[..., None] | None:
    """Return the function that ``elastic_core.init_process_group`` is in a script; elastic-torch's wraps torch's.

    Called as :func:`elastic_train_state`. The function calls ``elastic_core.worker.channel.report("initialized")`` once
    the process group is there, which counts as progress of the round.
    """


@hookspec
def elastic_agent_ends(end: AgentEnd) -> None:
    """Release what the plugin keeps in memory for workers, and write to disk what no other node continues from.

    Called on the main thread, when a node that had joined and its workers have ended, and the process may go on as
    another node; all plugins are called in turn. The exit waits: write with :meth:`AgentEnd.run`, which limits the
    time and ends at a signal, and publish the result as ``rescued`` or ``rescue_failed``. A plugin that raises is
    reported as ``rescue_failed``, and the agent ends as it would have.
    """


# 5. Worker start -----------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def elastic_worker_command(program: Program, assignment: Assignment) -> Sequence[str] | None:
    """Return the argument vector of one worker; the first answer that is not None counts, core's comes last.

    Called on the agent's loop just before each worker is started: it must not block. Raising has the consequence of a
    worker that cannot be started.
    """


@hookspec
def elastic_worker_environment(program: Program, assignment: Assignment) -> Mapping[str, str] | None:
    """Return variables to add to one worker's environment; of several answers, the last registered plugin's wins.

    Called on the agent's loop, as :func:`elastic_worker_command`. Core's own answer is the contract with training
    scripts (RANK, WORLD_SIZE, MASTER_ADDR, …; ``docs/reference/environment.md`` lists them).
    """


@hookspec
def elastic_worker_startup() -> Sequence[str] | None:
    """Return paths of Python files that every Python worker executes before its program.

    A file has a function ``prepare(at_end)``, which is called in the worker's main thread. ``at_end(function)`` has a
    function called when the interpreter ends, after all that ``atexit`` calls, also in its forks; its result is
    ignored, and it must not raise. The file is executed by its path, not imported, in a fresh interpreter and in a fork
    of a starter alike, and each start waits for it. A module that it imports stays in the worker's ``sys.modules`` and
    hides a module of the program with that name, so import only modules that the interpreter loads by itself. A file
    that raises is left out; the program runs all the same. A program that takes no ``sitecustomize`` (``python -I``),
    or is not Python, executes none.

    Called on the main thread, when the plugins of a run are loaded. The files of all plugins are executed in the
    order of their registration.
    """


@hookspec(firstresult=True)
def elastic_worker_cpus(program: Program, assignment: Assignment) -> Collection[int] | None:
    """Return the CPUs that one worker may run on, some of the agent's; None leaves it all of them.

    Called as :func:`elastic_worker_command`. :func:`elastic_configure` can refuse a run whose workers cannot be bound.
    """


# 6. Settings ---------------------------------------------------------------------------------------------------------


@hookspec
def elastic_flags() -> Sequence[Flag[Any]] | None:
    """Return flags of ``elastic run`` that plugins of the same distribution read.

    A plugin reads a flag with ``config.of(FLAG)``, where ``FLAG`` is the object that this function returns; callers in
    Python give it to ``LaunchConfig`` by its name.

    Only modules of the group ``elastic.flags`` are asked. Their entry points have the name of the plugin that reads the
    flags: a flag that is given while it is off is an error. Called on the main thread, before anything is started, if
    the command line or a ``PET_`` variable has a name that core does not know, and for ``--help``. The launch waits for
    it, so the module imports next to nothing.

    An error names the distribution, as does a name that is taken.
    """


@hookspec(firstresult=True)
def elastic_count_workers(word: str, environ: Mapping[str, str]) -> int | None:
    """Return the number of workers that a word of ``--nproc_per_node`` means on this node, from 1 to 4,096.

    Called in ``elastic run``, for the plugin of the group ``elastic.worker_counts`` only whose entry point has the name
    of the word (``hpu = "elastic_gaudi.plugin"``; ``cpu`` is core's), on the main thread, before anything is started,
    and again if a scheduler's defaults change the launch. ``--no_plugin`` does not leave off a word. Another number, or
    None, is an error. The variables of ``environ``, the agent's environment, may hide devices from workers.

    Raises:
        UsageError: There is nothing of its kind here. Ends the run with exit code 2.
    """


@hookspec(firstresult=True)
def elastic_scheduler_defaults(
    environ: Mapping[str, str], given: Mapping[str, object]
) -> Mapping[str, tuple[str, str]] | None:
    """Return defaults of flags out of a scheduler's variables: each flag's text, and the variables that it is from.

    ``{"nnodes": ("4", "SLURM_STEP_NODELIST")}`` has the consequence of ``--nnodes=4``. ``given`` has the flags that
    the command line or ``PET_<FLAG>`` gave, with their values; an answer for one of them is not used, but for the keys
    of ``rdzv_conf`` that were not given. Called in ``elastic run``, for the plugin of the group ``elastic.schedulers``
    only whose entry point names, as its extras, a variable that is set (``slurm = "elastic_slurm.plugin
    [SLURM_JOB_ID]"``), once, on the main thread, before anything is started: the launch waits for it.

    Raises:
        UsageError: The command cannot be what the user means. Ends the run with exit code 2.
    """


@hookspec
def elastic_configure(config: RunConfig) -> bool | None:
    """Receive the run's configuration, so that a plugin can read its own settings there.

    Return True to have the directory of the run kept, also without ``--log_dir``: the plugin will have files there.

    Called on the main thread, when the plugins of a run are loaded, before anything is started. Plugins are called in
    the order of their registration.

    Raises:
        UsageError: A setting is wrong. Ends the run with exit code 2.
    """


# 7. Monitors ---------------------------------------------------------------------------------------------------------


@hookspec
def elastic_round_starts(round: RunningRound) -> None:
    """Watch the workers of a round, which are about to start on this node.

    Called on every node and for every round, on the agent's loop, just before the workers start: register callbacks of
    :class:`RunningRound`, and return at once. Start a thread for work that blocks; end it when ``round.closed`` is set.
    A plugin that raises is reported, and the round starts without it.
    """


# 8. Gates ------------------------------------------------------------------------------------------------------------


@hookspec
def elastic_before_join(gate: JoinGate) -> None:
    """Add checks to the gate that this node passes before it joins its job (rule L17), by :meth:`JoinGate.add`.

    A check keeps this host out by raising :class:`elastic_core.UnhealthyNodeError`, and waits by :meth:`JoinGate.wait`.
    Checks run before each join, also over a rendezvous handler of others, and never in a node that is in a round.
    Called on the main thread, for each node that the agent becomes: add the checks, and return at once. Plugins are
    called in the order of their registration.
    """


@hookspec
def elastic_before_start(gate: StartGate) -> str | None:
    """Return why the workers of a round should not be started here yet, in one sentence; None if they need not wait.

    Called on every node, on a separate thread, while the workers of the last round are being stopped, and before the
    first round. If all return None, as after an ordinary failure, the workers start at once. Otherwise the plugins are
    asked again every quarter of a second, and the workers start once all return None, or after 10 s (rule L18). The
    first start on a node waits for the first answer for 1 s at most, a later one not at all.

    Return None at once where there is nothing to look at. A plugin that raises is reported once, and not asked again.
    """
