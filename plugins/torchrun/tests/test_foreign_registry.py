from __future__ import annotations

import os
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elastic_core import errors
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import ElasticError, PluginError, UsageError
from elastic_core.plugins.entry_points import Catalogue, Group
from elastic_core.plugins.local_backend import LocalBackend
from elastic_core.plugins.manager import Plugins, load, load_backend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.rendezvous.job_token import JobToken
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_operate.plugin_list import inventory
from elastic_torchrun.errors import is_graceful_exit, translate_error
from elastic_torchrun.foreign import registry
from elastic_torchrun.foreign.backend import SHARE_SWITCH, without_shared_store
from elastic_torchrun.rendezvous_api import RendezvousHandler

Install = Callable[..., None]


class Bare(RendezvousHandler):
    """A user's smallest handler."""

    def next_rendezvous(self):  # type: ignore[no-untyped-def]  # as users write it
        return None, 0, 1


class Told(Bare):
    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params


class Theirs:
    """A handler of torch's kind, which knows nothing of ours."""

    def next_rendezvous(self) -> SimpleNamespace:
        return SimpleNamespace(store=None, rank=0, world_size=1, bootstrap_store_info=None)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "job"

    def get_backend(self) -> str:
        return "theirs"

    def shutdown(self) -> bool:
        return True


def parameters(**settings: Any) -> RendezvousParameters:
    given = {"backend": "mine", "endpoint": "", "run_id": "job", "min_nodes": 1, "max_nodes": 1, **settings}
    return RendezvousParameters(**given)


def made_by(factory: registry.Factory) -> Any:
    return registry.HandlerPlugin("mine", factory).make(parameters())


def run_config(**settings: Any) -> RunConfig:
    return RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), **settings)


@pytest.fixture(autouse=True)
def forgets() -> Iterator[None]:
    """Forget after a test the handlers that it registers."""
    before = set(registry.names())
    yield
    for name in set(registry.names()) - before:
        registry.unregister(name)


# Registering ---------------------------------------------------------------------------------------------------------


def test_the_snippet_of_the_documentation_runs() -> None:
    import elastic_core as elastic

    elastic.rendezvous.registry.register("custom", Bare)
    assert registry.find("custom") is Bare
    assert "custom" in registry.names()


def test_the_same_again_is_no_harm_and_another_one_is_refused() -> None:
    for _ in range(2):
        registry.register("custom", Bare)
    with pytest.raises(UsageError) as refused:
        registry.register("custom", Told)
    home = f"{__name__}."
    assert refused.value.message == (
        f"The rendezvous handler 'custom' is registered twice: by {home}Bare and by {home}Told."
    )
    assert registry.find("custom") is Bare


@pytest.mark.parametrize(("name", "factory"), [("", Bare), ("custom", Bare()), ("custom", None)])
def test_nothing_but_a_name_and_a_factory_can_be_registered(name: str, factory: Any) -> None:
    with pytest.raises(UsageError):
        registry.register(name, factory)
    assert registry.find(name) is None


# Making --------------------------------------------------------------------------------------------------------------


def with_default(made: object = None) -> RendezvousHandler:
    assert made is None
    return Bare()


@pytest.mark.parametrize(
    ("factory", "kind"),
    [
        pytest.param(Bare, Bare, id="class without arguments"),
        pytest.param(Told, Told, id="class with parameters"),
        pytest.param(lambda: Bare(), Bare, id="function without arguments"),
        pytest.param(lambda params: Told(params), Told, id="function with parameters"),
        pytest.param(with_default, Bare, id="function whose argument has a default"),
    ],
)
def test_a_factory_is_given_what_it_requires(factory: registry.Factory, kind: type) -> None:
    handler = made_by(factory)
    assert type(handler) is kind
    if isinstance(handler, Told):
        assert handler.params == parameters()


def test_a_job_token_is_refused() -> None:
    backend, token = registry.HandlerPlugin("mine", Bare), JobToken(bytes(range(40)), "test")
    config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), rdzv_backend="mine", job_token=token)
    with pytest.raises(UsageError, match="a job token protects nothing"):
        backend.elastic_configure(config)
    with pytest.raises(UsageError, match="a job token protects nothing"):
        backend.elastic_make_rendezvous(parameters(token=token))


@pytest.mark.parametrize(
    ("nodes", "given"), [({"sizes": (4, 6, 8)}, "--nnodes '4,6,8'"), ({"spares": 2}, "--spares=2")]
)
def test_sizes_and_spares_are_refused(nodes: dict[str, Any], given: str) -> None:
    program = Program(ProgramKind.SCRIPT, "train.py")
    config = RunConfig(program=program, min_nodes=4, max_nodes=8, rdzv_backend="mine", **nodes)
    with pytest.raises(UsageError) as refused:
        registry.HandlerPlugin("mine", Bare).elastic_configure(config)
    assert refused.value.message.startswith(f"{given}: the mine backend is a rendezvous handler that decides by itself")


def test_a_factory_that_makes_no_handler_is_named() -> None:
    with pytest.raises(PluginError, match=r"'mine' is made by .*<lambda>, which returned 'a string'\."):
        made_by(lambda: "a string")


class Unfinished(RendezvousHandler):
    """Says nothing."""


def test_a_class_without_next_rendezvous_is_refused_before_it_is_made() -> None:
    with pytest.raises(PluginError) as refused:
        registry.HandlerPlugin("mine", Unfinished)
    assert refused.value.message == f"The handler's class {__name__}.Unfinished lacks next_rendezvous."


class TorchsHandler(ABC):
    """The shape of torch's class: all methods are abstract."""

    @abstractmethod
    def next_rendezvous(self) -> object: ...

    @abstractmethod
    def get_backend(self) -> str: ...

    @abstractmethod
    def get_run_id(self) -> str: ...

    @abstractmethod
    def is_closed(self) -> bool: ...

    @abstractmethod
    def set_closed(self) -> None: ...

    @abstractmethod
    def num_nodes_waiting(self) -> int: ...

    @abstractmethod
    def shutdown(self) -> bool: ...

    @property
    def use_agent_store(self) -> bool:
        return False


class OnTorchs(TorchsHandler):
    """As a user of torch's class writes it, with one more method than needed."""

    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params

    def next_rendezvous(self) -> object:
        return "answer"

    def num_nodes_waiting(self) -> int:
        return 2


def test_a_class_on_torchs_handler_needs_next_rendezvous_only() -> None:
    handler = made_by(OnTorchs)
    handler.set_closed()
    assert told_by(handler) == ("answer", "OnTorchs", "", False, 2, True, False)
    with pytest.raises(PluginError, match=r"The handler's class .*TorchsHandler lacks next_rendezvous\."):
        made_by(TorchsHandler)


class Least:
    """Not even of torch's kind."""

    def next_rendezvous(self) -> str:
        return "answer"


def told_by(handler: RendezvousHandler) -> tuple[object, ...]:
    return (
        handler.next_rendezvous(),
        handler.get_backend(),
        handler.get_run_id(),
        handler.is_closed(),
        handler.num_nodes_waiting(),
        handler.shutdown(),
        handler.use_agent_store,
    )


def test_an_object_with_nothing_but_next_rendezvous_is_a_handler() -> None:
    handler = made_by(Least)
    handler.set_closed()
    assert told_by(handler) == ("answer", "Least", "", False, 0, True, False)
    with registry.using(Least()) as name:  # type: ignore[arg-type]  # as users write it
        assert name == "Least"
        assert told_by(made_by(registry.find(name)))[0] == "answer"  # type: ignore[arg-type]  # it is there


def test_the_attributes_of_a_handler_of_torchs_kind_are_used() -> None:
    class Full(Theirs):
        use_agent_store = True

        def num_nodes_waiting(self) -> int:
            return 3

        def is_closed(self) -> bool:
            return True

        def shutdown(self) -> bool:
            return False

    assert told_by(made_by(Full))[1:] == ("theirs", "job", True, 3, False, True)


@pytest.mark.parametrize("made", [Least, sys, object(), None])
def test_a_class_a_module_and_anything_else_is_no_handler(made: object) -> None:
    with pytest.raises(PluginError, match="is made by"):
        made_by(lambda: made)


# Errors --------------------------------------------------------------------------------------------------------------


def raised(name: str, base: type[Exception] = Exception) -> Exception:
    """An error of torch's: another class of the same name."""
    error: Exception = type(name, (base,), {})("no luck")
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (raised("RendezvousClosedError"), errors.RendezvousClosedError),
        (raised("RendezvousTimeoutError"), errors.RendezvousTimeoutError),
        (raised("RendezvousConnectionError"), errors.RendezvousConnectionError),
        (raised("RendezvousStateError"), errors.RendezvousStateError),
        (raised("Mine", type(raised("RendezvousClosedError"))), errors.RendezvousClosedError),
        (raised("KeyError"), errors.RendezvousError),
    ],
)
def test_torchs_errors_are_ours_by_name(error: Exception, kind: type[ElasticError]) -> None:
    found = translate_error(error, "the handler failed")
    assert type(found) is kind
    assert found.message == f"The handler failed: {type(error).__name__}: no luck"


def test_an_error_of_ours_stays_as_it_is_and_a_cause_is_told() -> None:
    ours = UsageError("wrong")
    assert translate_error(ours, "it failed") is ours
    theirs = ValueError("see below")
    theirs.__cause__ = OSError("refused")
    assert translate_error(theirs, "it failed").message == "It failed: ValueError: see below (refused)"


def test_a_handler_that_cannot_be_made_for_want_of_a_peer_says_so() -> None:
    def lonely() -> RendezvousHandler:
        raise raised("RendezvousConnectionError")

    with pytest.raises(errors.RendezvousConnectionError):
        made_by(lonely)


def test_an_error_of_another_kind_says_where_it_was_raised() -> None:
    def broken() -> RendezvousHandler:
        raise ValueError("not today")

    with pytest.raises(PluginError) as failed:
        made_by(broken)
    assert failed.value.message == "The rendezvous handler 'mine' could not be made: ValueError: not today"
    assert failed.value.hint is not None
    assert __file__ in failed.value.hint


def test_only_a_graceful_exit_is_no_failure() -> None:
    assert is_graceful_exit(raised("RendezvousGracefulExitError"))
    assert not is_graceful_exit(raised("RendezvousClosedError"))


# Finding -------------------------------------------------------------------------------------------------------------

HANDLER = """
    from elastic_core import RendezvousHandler
    from elastic_core.rendezvous import registry

    class Installed(RendezvousHandler):
        def next_rendezvous(self):
            return None, 0, 1
"""


def handler_of(plugins: Plugins) -> Any:
    """Return the handler that the backend of a run makes."""
    assert isinstance(plugins.backend, registry.HandlerPlugin)
    return plugins.backend.make(parameters())


@pytest.mark.parametrize(
    ("group", "entry_point", "more"),
    [
        pytest.param("elastic.rendezvous", "handlers:Installed", "", id="a class"),
        pytest.param("elastic.rendezvous", "handlers", "registry.register('mine', Installed)", id="a module"),
        pytest.param(
            "torchrun.handlers", "handlers:get", "def get():\n    return lambda params: Installed()", id="for torchrun"
        ),
    ],
)
def test_an_installed_handler_is_a_backend(install: Install, group: str, entry_point: str, more: str) -> None:
    install("dist", {group: {"mine": entry_point}}, {"handlers": textwrap.dedent(HANDLER) + more})
    options = load_backend("mine").rendezvous_options()
    assert (options.handler, options.endpoint_required, options.single_node) == (True, False, False)
    assert type(handler_of(load(run_config(rdzv_backend="mine")))).__name__ == "Installed"


def test_a_plugin_may_register_a_handler_and_need_no_hook(install: Install) -> None:
    source = textwrap.dedent(HANDLER) + "registry.register('custom', Installed)"
    install("dist", {"elastic.plugins": {"my-handlers": "handlers"}}, {"handlers": source})
    with pytest.raises(PluginError, match="There is no rendezvous backend 'custom'"):
        load_backend("custom").rendezvous_options()
    assert load_backend("custom", named=["my-handlers"]).rendezvous_options().handler
    plugins = load(run_config(rdzv_backend="custom", plugins=("my-handlers",)))
    assert type(handler_of(plugins)).__name__ == "Installed"


def test_a_plugin_may_register_what_other_modules_define(install: Install) -> None:
    """Here one that it imports also does the registering."""
    sources = {
        "handlers": HANDLER,
        "registers": "from elastic_core.rendezvous import registry\nfrom handlers import Installed\n"
        "registry.register('custom', Installed)",
        "plugin": "import registers",
        "idle": "from handlers import Installed",
    }
    install("dist", {"elastic.plugins": {"mine": "plugin", "direct": "registers", "idle": "idle"}}, sources)
    for name in ("mine", "direct"):
        plugins = load(run_config(rdzv_backend="custom", plugins=(name,)))
        assert type(handler_of(plugins)).__name__ == "Installed"
    with pytest.raises(PluginError) as refused:
        load(run_config(plugins=("idle",)))
    assert refused.value.message == (
        "The plugin 'idle' (dist 1.0) implements no hook, and registers no rendezvous handler."
    )
    assert refused.value.hint == (
        "Mark its functions with @elastic_core.hookimpl, or call elastic_core.rendezvous.registry.register "
        "where its module is imported."
    )


@pytest.mark.parametrize(
    ("entry_point", "why"),
    [
        ("handlers:Unfinished", "The handler's class handlers.Unfinished lacks next_rendezvous."),
        ("handlers:installed", "the instance is a rendezvous handler, where its class is wanted."),
    ],
)
def test_an_entry_point_that_names_no_whole_class_is_refused(install: Install, entry_point: str, why: str) -> None:
    source = textwrap.dedent(HANDLER) + textwrap.dedent("""
        class Unfinished(RendezvousHandler):
            pass

        Installed.__repr__ = lambda self: "the instance"
        installed = Installed()
    """)
    install("dist", {"elastic.rendezvous": {"mine": entry_point}}, {"handlers": source})
    (listed,) = [row for row in inventory(Catalogue.read()) if row.name == "mine"]
    assert listed.error == f"The rendezvous backend 'mine' (dist 1.0) fails to load: {why}"


def test_without_the_adapter_its_distribution_is_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        "dist", {"torchrun.handlers": {"mine": "handlers:get"}}, {"handlers": "def get():\n    return lambda: None\n"}
    )
    monkeypatch.setattr(Catalogue, "adapters", lambda self, imported=False: [])
    with pytest.raises(PluginError, match="it has no hooks, and needs elastic-torchrun, which is not installed"):
        load_backend("mine")


def test_a_handler_registered_by_hand_goes_before_an_installed_one() -> None:
    registry.register("local", Bare)
    assert type(handler_of(load(run_config(rdzv_backend="local")))) is Bare


def test_a_backend_of_ours_goes_before_a_handler_for_torchrun(install: Install) -> None:
    install("dist", {"torchrun.handlers": {"local": "no_such_module"}})
    made = load(run_config(rdzv_backend="local")).make_rendezvous(parameters(backend="local"))
    assert isinstance(made, GuardedBackend)
    assert type(made.inner) is LocalBackend


def test_a_handler_for_torchrun_that_cannot_be_imported_is_named(install: Install) -> None:
    install("dist", {"torchrun.handlers": {"broken": "no_such_module"}})
    with pytest.raises(PluginError, match=r"The rendezvous handler 'broken' \(dist 1\.0\) fails to load"):
        load_backend("broken").rendezvous_options()


def test_handlers_for_torchrun_are_listed(install: Install) -> None:
    install("dist", {"torchrun.handlers": {"listed": "handlers:get"}})
    assert "listed" in Catalogue.read().names(Group.HANDLERS)


# torch's own ---------------------------------------------------------------------------------------------------------


class TorchRegistry(ModuleType):
    """Stands for ``torch.distributed.elastic.rendezvous`` and its ``registry``."""

    def __init__(self) -> None:
        super().__init__("rendezvous")
        self.asked: list[tuple[Any, ...]] = []

    def RendezvousParameters(self, *told: Any, **config: Any) -> Any:
        return (*told, config)

    def get_rendezvous_handler(self, params: Any) -> Theirs:
        self.asked.append(params)
        return Theirs()


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> TorchRegistry:
    theirs = TorchRegistry()
    for name in ("torch", "torch.distributed", "torch.distributed.elastic"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("", ".registry"):
        monkeypatch.setitem(sys.modules, f"torch.distributed.elastic.rendezvous{name}", theirs)
    return theirs


@pytest.mark.parametrize("endpoint", ["127.0.0.1:29400", "no.such.host.invalid:2379,127.0.0.1:2379"])
def test_torchs_own_handlers_are_found_by_a_prefix(torchs: TorchRegistry, endpoint: str) -> None:
    assert load_backend("torch-c10d").rendezvous_options().handler
    assert torchs.asked == [], "options are known without it"
    params = parameters(backend="torch-c10d", endpoint=endpoint, max_nodes=2, config={"timeout": "9"}, node_rank=1)
    backend = load(run_config(rdzv_backend="torch-c10d")).backend
    assert isinstance(backend, registry.HandlerPlugin)
    assert backend.make(params).get_backend() == "theirs"
    told = {"timeout": "9", "rank": 1}
    assert torchs.asked == [("c10d", endpoint, "job", 1, 2, "127.0.0.1", told)]


@pytest.mark.parametrize(("given", "becomes"), [(None, "1"), ("0", "0")])
def test_torchs_handlers_do_not_share_their_store_unless_asked_to(
    monkeypatch: pytest.MonkeyPatch, given: str | None, becomes: str
) -> None:
    monkeypatch.delenv(SHARE_SWITCH, raising=False)
    if given is not None:
        monkeypatch.setenv(SHARE_SWITCH, given)
    with without_shared_store():
        assert os.environ[SHARE_SWITCH] == becomes
    assert os.environ.get(SHARE_SWITCH) == given, "workers and others find what they had"


def test_without_torch_its_handlers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.rendezvous", None)
    with pytest.raises(PluginError, match="'torch-c10d' is torch's own, and torch cannot be imported"):
        registry.torch_handler("c10d")(parameters(backend="torch-c10d"))
