"""The plugins of one run: chosen, imported, checked, and called.

:func:`load` registers core's own defaults, then the plugins of autoload, then those that the run names, then the
backend; the last registered is called first. Implementations are called one by one, and not by pluggy's loop, which
stops at the first that raises and does not name its plugin.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pluggy

from elastic_core import hookspecs
from elastic_core.config.program import Program
from elastic_core.config.run import RunConfig
from elastic_core.errors import ElasticError, PluginError, did_you_mean
from elastic_core.events import Event, Level
from elastic_core.gates import HostEnd, JoinedRun, JoinGate, StartGate
from elastic_core.hookspecs import HOOKSPEC_VERSION, PROJECT
from elastic_core.incidents import History, Incident, Verdict, strictest
from elastic_core.plugins import builtin, entry_points
from elastic_core.plugins.entry_points import Catalogue, Group, InstalledPlugin
from elastic_core.plugins.observers import Implementation, Observers, failure_events
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.guard import protect
from elastic_core.rendezvous.options import RendezvousOptions, RendezvousParameters

if TYPE_CHECKING:
    from concurrent.futures import Future

    from elastic_core.causes import Cause, EndedWorker
    from elastic_core.monitors import Assignment, RunningRound
    from elastic_core.protocol.roster import NodeInfo
    from elastic_core.questions import AskedQuestion, NodeAnswer

OBSERVING = ("elastic_observe", "elastic_run_starts", "elastic_run_ends")
"""The hooks of observers: a plugin that raises in one of them is switched off, and the job goes on."""

BACKENDS = (Group.RENDEZVOUS, Group.HANDLERS)  # the groups where a backend is looked for, in order

HOOKS: Mapping[str, Callable[..., Any]] = {
    name: spec for name, spec in vars(hookspecs).items() if name.startswith("elastic_") and inspect.isfunction(spec)
}


class Plugins:
    """Registered plugins, and the calls of their hooks.

    Where a hook's contract (``hookspecs``) says that an error fails the run, the method that calls it raises that
    error: an ElasticError as it is, any other as a PluginError that names the plugin.
    """

    def __init__(self) -> None:
        self.problems: dict[str, PluginError] = {}  # of autoload, by name; observers receive them before anything else
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self.in_workers: tuple[str, ...] = ()  # the named plugins that workers call, in order; equal on all nodes
        self.agreed_flags: tuple[str, ...] = ()  # plugins' flags in which all nodes must agree, with their values
        self.host_end = HostEnd()
        self.worker_startup: tuple[str, ...] = ()  # the files that each Python worker executes before its program
        self.keep_files = False  # whether the directory of the run is kept, for files of a plugin
        self.checks_again = False  # whether a node leaves for its checks once its host was excluded (rule L17)
        self.unanswered: dict[Implementation, Future[Any]] = {}  # the last question to each plugin
        self._finding: dict[Implementation, float] = {}  # the seconds that each has taken to find causes in this round
        self.described: dict[str, str] = {}  # the words for each registered plugin in messages, by its name
        self.backend: object = None

    def register(self, name: str, plugin: object, *, described: str | None = None) -> None:
        """Add a plugin: any object whose methods, or module whose functions, are marked with ``hookimpl``.

        Raises:
            PluginError: The name is taken, or :func:`hooks_of` refuses the plugin.
        """
        described = described or f"plugin {name!r}"
        hooks_of(plugin, described)
        if name in self.described:
            raise PluginError(f"The {described} has the name of another one.", hint="Rename its entry point.")
        if not self._manager.is_registered(plugin):  # one module may serve as backend and as plugin
            self._manager.register(plugin, name)
            self.described[name] = described

    def register_backend(self, name: str, plugin: object, *, described: str | None = None) -> None:
        """Add the backend of the run."""
        self.backend = plugin
        self.register(f"rdzv:{name}", plugin, described=described or f"rendezvous backend {name!r}")

    def configure(self, config: RunConfig) -> None:
        """Show the plugins the run's configuration, and ask them for what each worker executes first."""
        for impl in reversed(self.implementations("elastic_configure")):
            self.keep_files |= self._ask(impl, config=config) is True
        for impl in reversed(self.implementations("elastic_worker_startup")):
            files = self._ask(impl) or ()
            if isinstance(files, str) or not all(os.path.isabs(file) and os.pathsep not in file for file in files):
                raise PluginError(f"The {self.described[impl.plugin]} names no absolute paths to execute: {files!r}.")
            self.worker_startup += tuple(files)

    def implementations(self, *hooks: str) -> list[Implementation]:
        """Return the implementations of these hooks in the order of their calls: the last registered first."""
        return [
            Implementation(impl.plugin_name, hook, impl.function, tuple(impl.argnames))
            for hook in hooks
            for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls())
        ]

    # The rendezvous --------------------------------------------------------------------------------------------------

    def rendezvous_options(self) -> RendezvousOptions:
        """Return the options that the run's backend declares; without a declaration it takes none."""
        for options in self._ask_backend("elastic_rendezvous_options"):
            if isinstance(options, RendezvousOptions):
                return options
        return RendezvousOptions()

    def make_rendezvous(self, params: RendezvousParameters) -> RendezvousBackend:
        """Return the first connection to the job's store, from the run's backend."""
        for made in self._ask_backend("elastic_make_rendezvous", params=params):
            if isinstance(made, RendezvousBackend):
                if self.rendezvous_options().handler:
                    return made
                return protect(made, self.described[self._backend_name], params.token, params.run_id)
        raise PluginError(
            f"The plugin of the rendezvous backend {params.backend!r} made no RendezvousBackend.",
            hint="For a rendezvous handler, name its class in the entry point instead.",
        )

    def _ask_backend(self, hook: str, **facts: object) -> Iterator[Any]:
        name = self._backend_name
        return (self._ask(impl, **facts) for impl in self.implementations(hook) if impl.plugin == name)

    @property
    def _backend_name(self) -> str:
        """The backend's name as a plugin; another one if its module is a plugin of the run, too."""
        return self._manager.get_name(self.backend) or ""

    # Failures --------------------------------------------------------------------------------------------------------

    def find_cause(self, worker: EndedWorker, *, timeout: float = 0.5) -> Cause | None:
        """Return why a worker of this node has failed, None if no plugin knows.

        Blocks for ``timeout`` seconds at most, on one thread, and asks no plugin that has taken as long in this round.
        """
        found = self._answers("elastic_find_cause", timeout, self._finding, worker=worker)
        return next((cause for _, cause in found), None)

    def explain_failure(self, incident: Incident, text: str = "", *, timeout: float = 0.5) -> Incident:
        """Return a failure of this node with its explanation; blocks for ``timeout`` seconds at most, on one thread."""
        answers = self._answers("elastic_explain_failure", timeout, incident=incident, text=text)
        return replace(incident, explanation=next((said for _, said in answers), incident.explanation))

    def judge(self, incident: Incident, history: History, *, timeout: float = 10.0) -> Verdict:
        """Return the strictest verdict of all failure policies; blocks for ``timeout`` seconds at most, on any thread.

        Among equals the last registered policy gives the reason.
        """
        answers = self._answers("elastic_judge_failure", timeout, incident=incident, history=history)
        return strictest([replace(verdict, policy=verdict.policy or name) for name, verdict in answers])

    @property
    def node_gone(self) -> Callable[[NodeInfo], bool] | None:
        """Asks all plugins of the hook ``elastic_node_gone`` about a node; None where none implements it."""
        return self._is_gone if self.implementations("elastic_node_gone") else None

    def _is_gone(self, node: NodeInfo, timeout: float = 10.0) -> bool:
        vouching = [name for name, gone in self._answers("elastic_node_gone", timeout, node=node) if gone]
        for name in vouching:
            message = f"The plugin {name!r} vouches that {node} is gone for good."
            self.publish(Event("node_gone", message, fields={"plugin": name, "node": node.node_id}))
        return bool(vouching)

    def sum_up_answers(
        self, question: AskedQuestion, answers: Sequence[NodeAnswer], before: str, *, timeout: float = 3.0
    ) -> str:
        """Return the report that a plugin makes of answers, as JSON; 'null' for none within ``timeout`` seconds."""
        told = {"question": question, "answers": answers, "before": json.loads(before)}
        return next((report for _, report in self._answers("elastic_sum_up_answers", timeout, **told)), "null")

    def _answers(
        self, hook: str, timeout: float, took: dict[Implementation, float] | None = None, **facts: Any
    ) -> list[tuple[str, Any]]:
        from elastic_core.plugins import verdicts  # with concurrent.futures: a healthy run never needs it

        return verdicts.answers(self.implementations(hook), facts, timeout, self.publish, self.unanswered, took)

    # Gates -----------------------------------------------------------------------------------------------------------

    def join_gate(self, config: RunConfig, publish: Callable[[Event], None], patience: float = math.inf) -> JoinGate:
        """Return the gate that a node passes before it joins, with the checks of all plugins."""
        gate = JoinGate(config, publish, patience)
        for impl in reversed(self.implementations("elastic_before_join")):
            gate.plugin = impl.plugin
            self._ask(impl, gate=gate)
        self.checks_again = any(check.again for check in gate.checks)
        return gate

    @property
    def before_start(self) -> Callable[[StartGate], str] | None:
        """Asks all plugins of the hook ``elastic_before_start``; None where none implements it. Raises nothing."""
        waiting = self.implementations("elastic_before_start")

        def ask(gate: StartGate) -> str:
            said = []
            for impl in [*waiting]:
                try:
                    said.append(impl(gate=gate))
                except Exception as exc:
                    waiting.remove(impl)
                    self._report(impl, exc, "It is not asked again; workers start.")
            return "; ".join(filter(None, said))

        return ask if waiting else None

    # Observers -------------------------------------------------------------------------------------------------------

    def publish(self, event: Event) -> None:
        """Queue an event for the observers. Never blocks. The first notice starts their threads."""
        self._observers.tell("elastic_observe", event=event)

    def run_starts(self, run: JoinedRun) -> None:
        """Queue the notice that this node has joined a run. Never blocks."""
        self._observers.tell("elastic_run_starts", run=run)

    def round_starts(self, round: RunningRound) -> None:
        """Show a round that is about to start workers on this node to the monitors. Raises nothing."""
        self._finding = {}
        call_all(self, "elastic_round_starts", "It does not watch this round.", round=round)

    def _report(self, impl: Implementation, exc: Exception, consequence: str) -> None:
        for event in failure_events("plugin_failed", impl, exc, consequence):
            self.publish(event)

    def close(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Wait up to ``timeout`` seconds until the observers have finished; return the names of those that have not."""
        self._observers.tell("elastic_run_ends")
        return self._observers.close(timeout)

    @functools.cached_property
    def _observers(self) -> Observers:
        observers = Observers(self.implementations(*OBSERVING))
        for problem in self.problems.values():
            message = f"{problem.message} It is left off; the job goes on."
            observers.tell("elastic_observe", event=Event("plugin_left_off", message, Level.WARNING))
        return observers

    # Worker start ----------------------------------------------------------------------------------------------------

    def worker_command(self, program: Program, assignment: Assignment) -> list[str]:
        """Return the argument vector of one worker; core's own plugin has an answer for all of them."""
        return list(self.first_answer("elastic_worker_command", program=program, assignment=assignment))

    def worker_environment(self, program: Program, assignment: Assignment) -> dict[str, str]:
        """Return the variables to add to one worker's environment; the last registered plugin's value of each wins."""
        environment: dict[str, str] = {}
        for impl in reversed(self.implementations("elastic_worker_environment")):
            environment.update(self._ask(impl, program=program, assignment=assignment) or {})
        return environment

    def first_answer(self, hook: str, **facts: object) -> Any:
        """Return the last registered plugin's answer that is not None; None where no plugin answers."""
        answers = (self._ask(impl, **facts) for impl in self.implementations(hook))
        return next((answer for answer in answers if answer is not None), None)

    def _ask(self, impl: Implementation, **facts: object) -> Any:
        """Call one implementation."""
        try:
            return impl(**facts)
        except ElasticError:
            raise
        except Exception as exc:
            *_, raised = traceback.extract_tb(exc.__traceback__)
            raise PluginError(
                f"The {self.described[impl.plugin]} raised in {impl.hook}: {type(exc).__name__}: {exc}.",
                hint=f"Raised at {raised.filename}:{raised.lineno}.",
            ) from exc


def load(config: RunConfig, catalogue: Catalogue | None = None) -> Plugins:
    """Return the plugins of a run.

    Raises:
        PluginError: A plugin that the run names is not installed, cannot be imported, or does not fit the hook specs. A
            plugin of autoload never raises: it is left off and its error is kept in :attr:`Plugins.problems`.
    """
    catalogue = catalogue or Catalogue.read()
    known = catalogue.names(Group.AUTOLOAD, Group.PLUGINS, Group.WORKER)
    for name in config.no_plugin:
        if name not in known:
            message = f"--no_plugin {name!r} switches nothing off: no such plugin is installed."
            raise PluginError(message + did_you_mean(name, known))
    plugins = Plugins()
    named = [name for name in dict.fromkeys(config.plugins) if name not in config.no_plugin]
    plugins.in_workers = tuple(name for name in named if name in catalogue.names(Group.WORKER))
    for name, plugin in core_plugins(config.least_level, named).items():
        plugins.register(name, plugin)
    for name in catalogue.names(Group.AUTOLOAD):
        if name not in (*config.plugins, *config.no_plugin):
            try:
                offer = catalogue.find(name, Group.AUTOLOAD)
                plugins.register(name, entry_points.import_plugin(offer), described=str(offer))
            except PluginError as problem:
                plugins.problems[name] = problem
    for name in named:
        for offer in _agents_side(name, catalogue):
            plugins.register(name, entry_points.import_plugin(offer), described=str(offer))
    _register_backend(plugins, config.rdzv_backend, catalogue)
    try:
        plugins.configure(config)
        if config.settings:
            from elastic_core.plugins.flags import check_given  # few runs have any

            plugins.agreed_flags = check_given(config, catalogue, plugins.described, plugins.problems)
    except BaseException:
        plugins.problems.clear()  # which say that the job goes on
        with suppress(Exception):
            plugins.close()
        raise
    return plugins


def call_all(plugins: Plugins, hook: str, consequence: str, **facts: object) -> None:
    """Call all plugins with a hook; report those that raise, and the consequence. Raises nothing."""
    for impl in plugins.implementations(hook):
        try:
            impl(**facts)
        except Exception as exc:
            plugins._report(impl, exc, consequence)


def worker_cpus(plugins: Plugins, program: Program, assignment: Assignment) -> list[int] | None:
    """Return the CPUs that one worker may run on; None for those of the agent."""
    cpus = plugins.first_answer("elastic_worker_cpus", program=program, assignment=assignment)
    if cpus is None:
        return None
    own = os.sched_getaffinity(0)
    if isinstance(cpus, Collection) and cpus and all(type(cpu) is int and cpu in own for cpu in cpus):
        return sorted(cpus)
    names = [plugins.described[impl.plugin] for impl in plugins.implementations("elastic_worker_cpus")]
    raise PluginError(
        f"The answer to elastic_worker_cpus, {cpus!r}, has no CPUs, or not only such as the agent may run on.",
        hint=f"It is by the {' or '.join(names)}. The agent's: {sorted(own)}.",
    )


def failure_policies(plugins: Plugins) -> tuple[str, ...]:
    """Return the sorted names of the plugins that judge failures; all nodes of a run must have the same."""
    return tuple(sorted(impl.plugin for impl in plugins.implementations("elastic_judge_failure")))


def load_backend(backend: str, catalogue: Catalogue | None = None, named: Sequence[str] = ()) -> Plugins:
    """Return a backend alone; its options are needed to make a :class:`RunConfig`.

    ``named`` are the plugins that the run names; one of them may register the backend when it is imported.

    Raises:
        PluginError: The backend is not installed, cannot be imported, or does not fit the hook specs.
    """
    catalogue = catalogue or Catalogue.read()
    if backend not in catalogue.names(*BACKENDS):
        for name in named:
            for offer in _agents_side(name, catalogue):
                entry_points.import_plugin(offer)
    plugins = Plugins()
    _register_backend(plugins, backend, catalogue)
    return plugins


def core_plugins(least: Level = Level.INFO, named: Sequence[str] = ()) -> dict[str, object]:
    """Return core's own plugins, by name: they print events from ``least`` on, and tell workers the named plugins."""
    return {
        "max-restarts": builtin.MaxRestartsPolicy(),
        "log-lines": builtin.LogLineMetrics(least=least),
        "plain-start": builtin.PlainWorkerStart(plugins=named),
    }


def hooks_of(plugin: object, described: str) -> list[str]:
    """Return the hooks that a plugin implements, after all checks.

    Raises:
        PluginError: The plugin was built for another major version of the hook specs, implements no hook and registers
            no rendezvous handler, or implements a hook that does not exist, with an argument that the hook does not
            have, or as a wrapper.
    """
    major, ours = getattr(plugin, "elastic_hookspec_major", HOOKSPEC_VERSION[0]), HOOKSPEC_VERSION[0]
    if major != ours:
        raise PluginError(
            f"The {described} is built for version {major} of the hook specs; this elastic-core has version {ours}."
        )
    rehearsal = pluggy.PluginManager(PROJECT)  # without specs it accepts every plugin, so that _check can refuse it
    rehearsal.register(plugin, described)
    callers = rehearsal.get_hookcallers(plugin) or []
    if not callers and not any(one.registered_by(plugin) for one in Catalogue.read().adapters(imported=True)):
        raise PluginError(
            f"The {described} implements no hook, and registers no rendezvous handler.",
            hint="Mark its functions with @elastic_core.hookimpl, or call elastic_core.rendezvous.registry.register "
            "where its module is imported.",
        )
    for caller in callers:
        for impl in caller.get_hookimpls():
            _check(impl, caller.name, described)
    return sorted(caller.name for caller in callers)


def _check(impl: pluggy.HookImpl, hook: str, described: str) -> None:
    if hook not in HOOKS:
        if impl.optionalhook:
            return
        raise PluginError(
            f"The {described} implements {hook!r}, which is not a hook.{did_you_mean(hook, HOOKS)}",
            hint=f"The hooks are: {', '.join(HOOKS)}.",
        )
    if impl.hookwrapper or impl.wrapper:
        raise PluginError(f"The {described} wraps {hook}; Elastic calls implementations one by one, without wrappers.")
    known = tuple(inspect.signature(HOOKS[hook]).parameters)
    for argument in impl.argnames:
        if argument not in known:
            raise PluginError(
                f"The {described} takes an argument {argument!r} that {hook} does not have."
                f"{did_you_mean(argument, known)}",
                hint=f"Declared: {hook}({', '.join(impl.argnames)}). The hook: {hook}({', '.join(known)}).",
            )


def _agents_side(name: str, catalogue: Catalogue) -> list[InstalledPlugin]:
    """Return the entry points of a plugin that an agent imports: none, where the plugin is for workers only."""
    if name in catalogue.names(Group.WORKER):
        catalogue.find(name, Group.WORKER)
        if name not in catalogue.names(Group.PLUGINS, Group.AUTOLOAD):
            return []
    return [catalogue.find(name, Group.PLUGINS, Group.AUTOLOAD, Group.WORKER)]


def _register_backend(plugins: Plugins, name: str, catalogue: Catalogue) -> None:
    """Add the backend of that name: one that was registered in this process, else an installed one."""
    adapters = catalogue.adapters(imported=name in catalogue.names(*BACKENDS))
    if (found := next(filter(None, (one.backend(name) for one in adapters)), None)) is not None:
        plugins.register_backend(name, found)
    else:
        offer = catalogue.find(name, *BACKENDS)
        plugins.register_backend(name, entry_points.import_plugin(offer), described=str(offer))
