from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
from views import info

from elastic_core import hookimpl
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import PluginError, UsageError, how_to_install
from elastic_core.events import Event
from elastic_core.exit_codes import ExitCode
from elastic_core.gates import JoinedRun
from elastic_core.incidents import Action, History, Incident, IncidentKind, Verdict
from elastic_core.plugins import builtin
from elastic_core.plugins.entry_points import Catalogue, Group, InstalledPlugin
from elastic_core.plugins.flags import declared_flags
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.plugins.manager import Plugins, failure_policies, hooks_of, load, load_backend, worker_cpus
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.rendezvous.options import RendezvousOptions, RendezvousParameters

PATIENCE = 60.0
PROGRAM = Program(ProgramKind.SCRIPT, "train.py")
ANYWHERE = SimpleNamespace()
Install = Callable[..., None]

OBSERVER = """
    from elastic_core import hookimpl
    heard = []

    @hookimpl
    def elastic_observe(event):
        heard.append(event.message)
"""
BACKEND = """
    from elastic_core import RendezvousOptions, hookimpl

    @hookimpl
    def elastic_rendezvous_options():
        return RendezvousOptions(endpoint="PLACE", conf={"colour": "any"})
"""
BROKEN = "raise RuntimeError('not today')"


def config(**settings: object) -> RunConfig:
    return RunConfig(program=PROGRAM, **settings)  # type: ignore[arg-type] # what a test sets is its own affair


def parameters(backend: str) -> RendezvousParameters:
    return RendezvousParameters(backend=backend, endpoint="", run_id="job", min_nodes=1, max_nodes=1)


def plugin(**hooks: Callable[..., object]) -> SimpleNamespace:
    """A plugin with these implementations."""
    return SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})


# What is loaded ------------------------------------------------------------------------------------------------------


def test_core_answers_through_the_same_hooks_when_nothing_is_named() -> None:
    plugins = load(config())
    assert "max-restarts" in failure_policies(plugins)
    assert isinstance(plugins.make_rendezvous(parameters("local")), RendezvousBackend)
    assert "log-lines" in {impl.plugin for impl in plugins.implementations("elastic_observe")}
    assert {impl.plugin for impl in plugins.implementations("elastic_worker_command")} == {"plain-start"}


def test_only_what_a_run_names_is_imported(install: Install) -> None:
    install(
        "dist",
        {
            "elastic.rendezvous": {"named": "named_backend", "other": "other_backend"},
            "elastic.plugins": {"watcher": "named_plugin", "unused": "other_plugin"},
        },
        {"named_backend": BACKEND, "other_backend": BROKEN, "named_plugin": OBSERVER, "other_plugin": BROKEN},
    )
    plugins = load(config(rdzv_backend="named", plugins=("watcher", "watcher")))
    assert plugins.problems == {}
    assert {"named_backend", "named_plugin"} <= sys.modules.keys()


def test_a_backends_options_are_known_before_there_is_a_config(install: Install) -> None:
    install("dist", {"elastic.rendezvous": {"named": "named_backend"}}, {"named_backend": BACKEND})
    assert load_backend("named").rendezvous_options().conf == {"colour": "any"}


def test_a_backend_that_declares_nothing_takes_nothing(install: Install) -> None:
    install("dist", {"elastic.rendezvous": {"named": "named_backend"}}, {"named_backend": OBSERVER})
    options = load_backend("named").rendezvous_options()
    assert (options.endpoint, options.conf, options.endpoint_required) == ("", {}, False)


def test_an_autoloaded_plugin_is_on_until_it_is_switched_off(install: Install) -> None:
    install("dist", {"elastic.autoload": {"watcher": "watching"}}, {"watching": OBSERVER})
    assert "watcher" in {impl.plugin for impl in load(config()).implementations("elastic_observe")}
    off = load(config(no_plugin=("watcher",)))
    assert "watcher" not in {impl.plugin for impl in off.implementations("elastic_observe")}


def test_a_library_for_workers_is_named_like_a_plugin_and_not_imported_by_the_agent(install: Install) -> None:
    install(
        "dist",
        {"elastic.worker": {"library": "in_workers", "both": "in_workers"}, "elastic.plugins": {"both": "watching"}},
        {"in_workers": BROKEN, "watching": OBSERVER},
    )
    plugins = load(config(plugins=("both", "library")))
    assert plugins.in_workers == ("both", "library")
    assert "both" in {impl.plugin for impl in plugins.implementations("elastic_observe")}
    assert load(config(plugins=("both", "library"), no_plugin=("library", "both"))).in_workers == ()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (BROKEN, "The plugin 'watcher' (dist 1.0) fails to load: RuntimeError: not today."),
        (
            OBSERVER.replace("elastic_observe", "elastic_observ"),
            "The plugin 'watcher' (dist 1.0) implements 'elastic_observ', which is not a hook. "
            "Did you mean 'elastic_observe'?",
        ),
    ],
)
def test_a_broken_autoload_costs_a_line_and_not_the_job(install: Install, source: str, problem: str) -> None:
    install("dist", {"elastic.autoload": {"watcher": "watching"}}, {"watching": source})
    heard: list[str] = []
    plugins = load(config())
    plugins.register("listener", plugin(elastic_observe=lambda event: heard.append(event.message)))
    plugins.publish(Event("e", "first event"))
    assert plugins.close(PATIENCE) == ()
    assert heard == [f"{problem} It is left off; the job goes on.", "first event"]


@pytest.mark.parametrize("group", ["elastic.plugins", "elastic.autoload"])
def test_a_broken_plugin_that_was_named_ends_the_run(install: Install, group: str) -> None:
    install("dist", {group: {"watcher": "watching"}}, {"watching": BROKEN})
    with pytest.raises(PluginError, match=r"'watcher' \(dist 1\.0\) fails to load: RuntimeError: not today\."):
        load(config(plugins=("watcher",)))
    assert PluginError.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rdzv_backend": "locl"}, "There is no rendezvous backend 'locl'. Did you mean 'local'?"),
        ({"plugins": ("watchr",)}, "There is no plugin 'watchr'. Did you mean 'watcher'?"),
        (
            {"no_plugin": ("watchr",)},
            "--no_plugin 'watchr' switches nothing off: no such plugin is installed. Did you mean 'watcher'?",
        ),
    ],
)
def test_a_name_that_is_not_installed_is_refused(
    install: Install, settings: Mapping[str, object], message: str
) -> None:
    install("dist", {"elastic.plugins": {"watcher": "watching"}}, {"watching": OBSERVER})
    with pytest.raises(PluginError) as refused:
        load(config(**settings))
    assert refused.value.message == message


@pytest.mark.parametrize(("name", "distribution"), [("torch", "elastic-torch"), ("prometheus", "elastic-metrics")])
def test_a_plugin_of_ours_that_is_not_installed_is_named_with_its_distribution(name: str, distribution: str) -> None:
    with pytest.raises(PluginError) as refused:
        load(config(plugins=(name,)), Catalogue([]))
    assert refused.value.message == f"The plugin {name!r} is not installed."
    assert refused.value.hint == how_to_install(distribution)


def test_a_backend_that_two_distributions_offer_is_refused_naming_both(install: Install) -> None:
    install("dist-a", {"elastic.rendezvous": {"named": "one"}})
    install("dist-b", {"elastic.rendezvous": {"named": "other"}})
    with pytest.raises(PluginError, match=r"backend 'named': dist-a 1\.0 and dist-b 1\.0\."):
        load(config(rdzv_backend="named"))


def test_one_module_may_be_backend_and_plugin(install: Install) -> None:
    install(
        "dist",
        {"elastic.rendezvous": {"named": "both"}, "elastic.plugins": {"watcher": "both"}},
        {"both": BACKEND + OBSERVER},
    )
    plugins = load(config(rdzv_backend="named", plugins=("watcher",)))
    observers = [impl.plugin for impl in plugins.implementations("elastic_observe")]
    assert (observers[0], observers[-1]) == ("watcher", "log-lines")  # between them, what is installed here
    assert plugins.rendezvous_options().endpoint == "PLACE"


def test_a_plugin_with_the_name_of_another_is_refused() -> None:
    plugins = Plugins()
    plugins.register("mine", plugin(elastic_observe=lambda: None))
    with pytest.raises(PluginError, match="The plugin 'mine' has the name of another one"):
        plugins.register("mine", plugin(elastic_observe=lambda: None))


# What is refused -----------------------------------------------------------------------------------------------------


def newer() -> SimpleNamespace:
    return SimpleNamespace(elastic_hookspec_major=3, elastic_observe=hookimpl(lambda event: None))


def wrapping() -> SimpleNamespace:
    def elastic_observe(event):  # type: ignore[no-untyped-def] # pluggy's form of a wrapper
        yield

    return SimpleNamespace(elastic_observe=hookimpl(wrapper=True)(elastic_observe))


@pytest.mark.parametrize(
    ("misfit", "message", "hint"),
    [
        pytest.param(
            newer(),
            "The plugin 'mine' is built for version 3 of the hook specs; this elastic-core has version 2.",
            None,
        ),
        pytest.param(
            plugin(elastic_judge_failur=lambda incident: None),
            "The plugin 'mine' implements 'elastic_judge_failur', which is not a hook. "
            "Did you mean 'elastic_judge_failure'?",
            "The hooks are: elastic_rendezvous_options, elastic_make_rendezvous, elastic_find_cause, "
            "elastic_explain_failure, "
            "elastic_judge_failure, elastic_node_gone, elastic_sum_up_answers, elastic_observe, elastic_run_starts, "
            "elastic_job_closed, elastic_run_ends, elastic_train_state, elastic_init_process_group, "
            "elastic_agent_ends, "
            "elastic_worker_command, elastic_worker_environment, elastic_worker_startup, elastic_worker_cpus, "
            "elastic_flags, elastic_count_workers, elastic_scheduler_defaults, elastic_configure, "
            "elastic_round_starts, elastic_before_join, elastic_before_start.",
        ),
        pytest.param(
            plugin(elastic_judge_failure=lambda incident, histry: None),
            "The plugin 'mine' takes an argument 'histry' that elastic_judge_failure does not have. "
            "Did you mean 'history'?",
            "Declared: elastic_judge_failure(incident, histry). The hook: elastic_judge_failure(incident, history).",
        ),
        pytest.param(
            SimpleNamespace(elastic_observe=lambda event: None),
            "The plugin 'mine' implements no hook, and registers no rendezvous handler.",
            "Mark its functions with @elastic_core.hookimpl, or call elastic_core.rendezvous.registry.register "
            "where its module is imported.",
        ),
        pytest.param(
            wrapping(),
            "The plugin 'mine' wraps elastic_observe; Elastic calls implementations one by one, without wrappers.",
            None,
        ),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused_in_one_sentence(misfit: object, message: str, hint: str | None) -> None:
    with pytest.raises(PluginError) as refused:
        Plugins().register("mine", misfit)
    assert (refused.value.message, refused.value.hint) == (message, hint)


def test_a_plugin_may_implement_hooks_that_only_other_versions_have_if_it_says_so() -> None:
    future = SimpleNamespace(
        elastic_hookspec_major=2,
        elastic_dream=hookimpl(optionalhook=True)(lambda: None),
        elastic_observe=hookimpl(lambda: None),
    )
    plugins = Plugins()
    plugins.register("future", future)
    assert hooks_of(future, "plugin 'future'") == ["elastic_dream", "elastic_observe"]


# What they are asked -------------------------------------------------------------------------------------------------


def test_the_last_registered_is_asked_first_for_the_command() -> None:
    plugins = Plugins()
    plugins.register("core", plugin(elastic_worker_command=lambda program: ["python", program.target]))
    plugins.register("numa", plugin(elastic_worker_command=lambda program: ("numactl", program.target)))
    plugins.register("shy", plugin(elastic_worker_command=lambda: None))
    assert plugins.worker_command(PROGRAM, ANYWHERE) == ["numactl", "train.py"]  # type: ignore[arg-type] # unused


def test_the_last_registered_has_the_last_word_on_a_variable() -> None:
    plugins = Plugins()
    plugins.register("core", plugin(elastic_worker_environment=lambda: {"RANK": "0", "OMP_NUM_THREADS": "1"}))
    plugins.register("numa", plugin(elastic_worker_environment=lambda: {"OMP_NUM_THREADS": "8"}))
    plugins.register("shy", plugin(elastic_worker_environment=lambda: None))
    environment = plugins.worker_environment(PROGRAM, ANYWHERE)  # type: ignore[arg-type] # no plugin reads it
    assert environment == {"RANK": "0", "OMP_NUM_THREADS": "8"}


def test_the_last_registered_that_answers_binds_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    plugins = Plugins()
    assert worker_cpus(plugins, PROGRAM, ANYWHERE) is None  # type: ignore[arg-type] # unused
    plugins.register("first", plugin(elastic_worker_cpus=lambda: [0]))
    plugins.register("second", plugin(elastic_worker_cpus=lambda program: frozenset({9, 3})))
    plugins.register("shy", plugin(elastic_worker_cpus=lambda: None))
    assert worker_cpus(plugins, PROGRAM, ANYWHERE) == [3, 9]  # type: ignore[arg-type] # unused


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: (), r"The answer to elastic_worker_cpus, \(\), has no CPUs(?s:.*)It is by the plugin 'broken'"),
        (lambda: ["0"], r"\['0'\], has no CPUs"),
        (lambda: 0, "elastic_worker_cpus, 0, has no CPUs"),
        (lambda: (cpu for cpu in [0]), "<generator .*>, has no CPUs"),
        (lambda: [9999], r"\[9999\], has no CPUs, or not only such as the agent may run on"),
        (lambda: int("hpu"), "The plugin 'broken' raised in elastic_worker_cpus: ValueError: invalid literal"),
    ],
)
def test_a_plugin_that_cannot_bind_a_worker_is_an_error(answer: Callable[[], object], message: str) -> None:
    plugins = Plugins()
    plugins.register("broken", plugin(elastic_worker_cpus=answer))
    with pytest.raises(PluginError, match=message):
        worker_cpus(plugins, PROGRAM, ANYWHERE)  # type: ignore[arg-type] # unused


def test_a_hook_that_raises_names_its_plugin() -> None:
    plugins = Plugins()
    plugins.register("broken", plugin(elastic_worker_environment=lambda program: program.rank))
    with pytest.raises(PluginError) as raised:
        plugins.worker_environment(PROGRAM, ANYWHERE)  # type: ignore[arg-type] # no plugin reads it
    assert raised.value.message == (
        "The plugin 'broken' raised in elastic_worker_environment: "
        "AttributeError: 'Program' object has no attribute 'rank'."
    )
    assert str(raised.value.hint).startswith(f"Raised at {__file__}:")


class OneBackend:
    """Stands for an installed backend."""

    def __init__(self, made: object) -> None:
        self._made = made

    @hookimpl
    def elastic_make_rendezvous(self) -> object:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made

    @hookimpl
    def elastic_rendezvous_options(self) -> RendezvousOptions:
        return RendezvousOptions(endpoint="MINE")


def with_backend(made: object) -> Plugins:
    """Plugins whose backend makes that, and another plugin that would make something else."""
    plugins = Plugins()
    plugins.register_backend("mine", OneBackend(made))
    plugins.register("intruder", OneBackend(LocalBackend(MemoryStore())))
    return plugins


def test_only_the_runs_backend_makes_the_rendezvous() -> None:
    made = LocalBackend(MemoryStore())
    plugins = with_backend(made)
    guarded = plugins.make_rendezvous(parameters("mine"))
    assert isinstance(guarded, GuardedBackend)
    assert guarded.inner is made
    assert plugins.rendezvous_options().endpoint == "MINE"


@pytest.mark.parametrize("made", [None, "a string"])
def test_a_backend_that_makes_none_is_named(made: object) -> None:
    with pytest.raises(PluginError, match="backend 'mine' made no RendezvousBackend"):
        with_backend(made).make_rendezvous(parameters("mine"))


def test_a_backend_that_raises_is_named_as_what_it_is() -> None:
    with pytest.raises(PluginError) as raised:
        with_backend(TypeError("not today")).make_rendezvous(parameters("mine"))
    assert raised.value.message == (
        "The rendezvous backend 'mine' raised in elastic_make_rendezvous: TypeError: not today."
    )


def test_a_backends_own_word_for_what_went_wrong_is_passed_on() -> None:
    error = UsageError("--rdzv_endpoint 'x' is no place.")
    with pytest.raises(UsageError) as raised:
        with_backend(error).make_rendezvous(parameters("mine"))
    assert raised.value is error


def test_policies_are_judged_together_and_failures_are_told_to_observers() -> None:
    heard: list[str] = []
    plugins = Plugins()
    plugins.register("max-restarts", builtin.MaxRestartsPolicy())
    plugins.register("strict", plugin(elastic_judge_failure=lambda: Verdict(Action.GIVE_UP, "enough")))
    plugins.register("broken", plugin(elastic_judge_failure=lambda incident: incident.nothing))
    plugins.register("listener", plugin(elastic_observe=lambda event: heard.append(event.name)))
    incident = Incident(kind=IncidentKind.WORKER_FAILED, round=1, node_id="n", host="h")
    history = History(restarts=0, max_restarts=3, rounds_without_progress=0)
    assert failure_policies(plugins) == ("broken", "max-restarts", "strict")
    assert plugins.judge(incident, history, timeout=PATIENCE) == Verdict(Action.GIVE_UP, "enough")
    assert plugins.close(PATIENCE) == ()
    assert heard == ["policy_failed", "policy_failed_traceback"]


def test_observers_hear_of_events_and_of_the_runs_end_last() -> None:
    heard: list[object] = []
    plugins = Plugins()
    plugins.register(
        "listener",
        plugin(
            elastic_observe=lambda event: heard.append(event.name),
            elastic_run_starts=lambda run: heard.append(run),
            elastic_run_ends=lambda: heard.append("end"),
        ),
    )
    plugins.publish(Event("joined", ""))
    run = JoinedRun(config=config(), run_uid="uid", node=info("a"), look=pytest.fail)
    plugins.run_starts(run)
    assert plugins.close(PATIENCE) == ()
    assert heard == ["joined", run, "end"]


# Settings ------------------------------------------------------------------------------------------------------------


def test_a_plugin_reads_its_settings_in_the_run_s_configuration(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        "dist",
        {"elastic.plugins": {"reader": "reading_plugin"}},
        {
            "reading_plugin": """
            from elastic_core import UsageError, hookimpl

            @hookimpl
            def elastic_configure(config):
                if config.rdzv_id == "wrong":
                    raise UsageError("--rdzv_id is wrong.")

            @hookimpl
            def elastic_run_ends():
                print("released")
            """
        },
    )
    load(config(plugins=("reader",)))
    with pytest.raises(UsageError, match=r"--rdzv_id is wrong\."):
        load(config(plugins=("reader",), rdzv_id="wrong"))
    assert capsys.readouterr().out == "released\n", "by a run that does not start"


FLAGS = """
    from elastic_core import hookimpl
    from elastic_core.config.flag import Flag

    @hookimpl
    def elastic_flags():
        return [Flag(name="shade", text="", parse=str, default="", agreed=True)]
"""


def test_a_flag_of_a_distribution_that_is_not_installed_names_it() -> None:
    with pytest.raises(UsageError) as missing:
        load(config(settings={"failure_policy": "budget=1/1h"}), Catalogue([*_local()]))
    assert missing.value.message == "--failure_policy needs elastic-policies, which is not installed."
    assert missing.value.hint == how_to_install("elastic-policies")


def test_a_flag_whose_plugin_is_off_or_broken_is_refused(install: Install) -> None:
    install(
        "dist",
        {"elastic.autoload": {"paint": "no_such_module"}, "elastic.flags": {"paint": "paint_flags"}},
        {"paint_flags": FLAGS},
    )
    offers = [*Catalogue.read().offers(Group.AUTOLOAD), *Catalogue.read().offers(Group.FLAGS)]
    catalogue = Catalogue([*_local(), *(offer for offer in offers if offer.distribution == "dist")])
    assert load(config(), catalogue).problems, "without the flag the run goes on without the plugin"
    with pytest.raises(PluginError, match="fails to load: ModuleNotFoundError"):
        load(config(settings={"shade": "red"}), catalogue)
    with pytest.raises(UsageError, match="needs the plugin 'paint', which --no_plugin switches off"):
        load(config(settings={"shade": "red"}, no_plugin=("paint",)), catalogue)
    assert load(config(settings={"shade": ""}, no_plugin=("paint",)), catalogue).agreed_flags == ("--shade=",)
    with pytest.raises(UsageError, match="--shade has 501 characters; 500 are allowed"):
        load(config(settings={"shade": "x" * 501}), Catalogue([*_local(), *catalogue.offers(Group.FLAGS)]))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "has no function elastic_flags that is marked with @hookimpl"),
        ("def elastic_flags(): return []", "has no function elastic_flags that is marked with @hookimpl"),
        (FLAGS.replace("return [", "raise OSError("), "SyntaxError"),
        (FLAGS.replace("return [Flag", "return [1, Flag"), "declares 1, which is not a Flag"),
        (FLAGS.replace('"shade"', '"nnodes"'), "declares --nnodes, which exists already"),
        (FLAGS.replace("return [", "return 1 / 0, ["), "raised in elastic_flags: ZeroDivisionError"),
    ],
)
def test_flags_that_cannot_be_read_are_the_distributions_fault(install: Install, code: str, message: str) -> None:
    install("dist", {"elastic.flags": {"paint": "paint_flags"}}, {"paint_flags": code})
    offers = [offer for offer in Catalogue.read().offers(Group.FLAGS) if offer.distribution == "dist"]
    with pytest.raises(PluginError, match=re.escape(message)):
        declared_flags(Catalogue(offers), {"nnodes"})


def _local() -> list[InstalledPlugin]:
    return Catalogue.read().offers(Group.RENDEZVOUS)
