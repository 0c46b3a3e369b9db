"""Foreign rendezvous handlers by name, each made a plugin (:class:`HandlerPlugin`).

``--rdzv_backend=NAME`` is looked up in this order: names given to :func:`register` in this process; the entry-point
group ``elastic.rendezvous`` (hooks that make a backend, or a handler's class); the group ``torchrun.handlers``, which
plain torchrun reads, too; ``torch-NAME``, which is torchrun's own backend ``NAME``. Core asks :func:`backend`
and :func:`adapt`, by the entry-point group ``elastic.adapters``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeAlias

from elastic_core import hookimpl
from elastic_core.config import EXIT_BARRIER, MONITOR_INTERVAL, RunConfig
from elastic_core.config.parse import NodeRange
from elastic_core.errors import PluginError, RendezvousError, UsageError
from elastic_core.host import ANY_FORM, advertised_address
from elastic_core.rendezvous import RendezvousBackend, RendezvousOptions, RendezvousParameters
from elastic_torchrun.errors import translate_error
from elastic_torchrun.rendezvous_api import HandlerAnswer, RendezvousHandler

Factory: TypeAlias = Callable[..., Any]  # makes a handler, from RendezvousParameters or without an argument
TORCH_PREFIX = "torch-"  # before the names of torch's own handlers, of which some are also names of our backends

_OPTIONAL_METHODS = ("get_backend", "get_run_id", "is_closed", "set_closed", "num_nodes_waiting", "shutdown")
_factories: dict[str, Factory] = {}
_importing: dict[str, set[str]] = {}  # the modules that were being imported when a name was registered


def register(name: str, factory: Factory) -> None:
    """Make ``factory`` the backend that ``--rdzv_backend=NAME`` means, for runs that start in this process.

    Args:
        name: The backend's name. An installed backend of the same name is not used then.
        factory: Called once a run: with :class:`RendezvousParameters` if it requires an argument, else without.

    Raises:
        UsageError: The name is empty or belongs to another factory, or the factory cannot be called.
    """
    if not name:
        raise UsageError("A rendezvous handler needs a name to be registered by.")
    if not callable(factory):
        raise UsageError(
            f"The rendezvous handler {name!r} is registered with {factory!r}, which cannot be called.",
            hint="Give a class, or a function that returns a handler.",
        )
    known = _factories.setdefault(name, factory)
    if known is not factory and _home(known) != _home(factory):  # a module may be imported twice
        raise UsageError(
            f"The rendezvous handler {name!r} is registered twice: by {_home(known)} and by {_home(factory)}.",
            hint="Give one of them another name.",
        )
    _factories[name] = factory
    _importing.setdefault(name, set()).update(_modules_being_imported())


def unregister(name: str) -> None:
    """Forget a name; one that is not registered is no error."""
    _factories.pop(name, None)
    _importing.pop(name, None)


@contextmanager
def using(handler: RendezvousHandler) -> Iterator[str]:
    """Make one handler a backend while the block runs; yield the backend's name, which is the handler's.

    Raises:
        PluginError: The object is no handler.
    """
    if (ours := as_handler(handler)) is None:
        raise PluginError(
            f"{handler!r} is no rendezvous handler.",
            hint="Give an instance of a class that has next_rendezvous, such as one of elastic_core.RendezvousHandler.",
        )
    name = ours.get_backend()
    before = _factories.get(name)
    _factories[name] = lambda: ours
    try:
        yield name
    finally:
        _factories.pop(name, None)
        if before is not None:
            _factories[name] = before


def backend(name: str) -> HandlerPlugin | None:
    """Return the backend of a name that was registered, or of one of torch's own; None for any other."""
    factory = find(name)
    if factory is None and name.startswith(TORCH_PREFIX):
        factory = torch_handler(name.removeprefix(TORCH_PREFIX))
    return None if factory is None else HandlerPlugin(name, factory)


def adapt(name: str, loaded: object) -> HandlerPlugin | None:
    """Return the backend for what an entry point names: a handler's class, or a module that has registered one.

    A function is one that makes a handler, as an entry point for torchrun returns it.

    Raises:
        PluginError: It is a handler, or a class that lacks methods for which there is no default.
    """
    if inspect.isclass(loaded):
        is_handler = issubclass(loaded, RendezvousHandler) or hasattr(loaded, "next_rendezvous")
        return HandlerPlugin(name, loaded) if is_handler else None
    if as_handler(loaded) is not None:
        raise PluginError(f"{loaded!r} is a rendezvous handler, where its class is wanted.")
    factory = loaded if inspect.isroutine(loaded) else find(name)
    return None if factory is None else HandlerPlugin(name, factory)


def find(name: str) -> Factory | None:
    """Return what was registered under a name, or None."""
    return _factories.get(name)


def names() -> list[str]:
    """Return the registered names, in order."""
    return sorted(_factories)


def registered_by(module: object) -> list[str]:
    """Return the names that were registered while a module was imported, wherever their factories are defined.

    A plugin that is such a module may do without hooks.
    """
    home = getattr(module, "__name__", None)
    return sorted(name for name, modules in _importing.items() if home in modules)


def _modules_being_imported() -> set[str]:
    """Return the names of the modules whose top-level code is running: the caller's, and those that import it."""
    found, frame = set(), sys._getframe(1)
    while (outer := frame.f_back) is not None:
        if outer.f_code.co_name == "<module>":
            found.add(str(outer.f_globals.get("__name__")))
        frame = outer
    return found


class HandlerPlugin:
    """The hooks of the backend ``name``, whose handler ``factory`` makes.

    Raises:
        PluginError: The factory is a class that lacks methods for which there is no default.
    """

    def __init__(self, name: str, factory: Factory) -> None:
        self._name = name
        self._factory = complete_class(factory) if inspect.isclass(factory) else factory
        self._monitor_interval, self._exit_barrier = MONITOR_INTERVAL, EXIT_BARRIER
        if lacking := sorted(getattr(self._factory, "__abstractmethods__", ())):
            raise PluginError(f"The handler's class {_home(factory)} lacks {', '.join(lacking)}.")

    @hookimpl
    def elastic_rendezvous_options(self) -> RendezvousOptions:
        """Declare any endpoint and any option: the handler checks them."""
        return RendezvousOptions(endpoint=ANY_FORM, handler=True)

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Note the run's durations that concern handlers.

        Raises:
            UsageError: The run has sizes or spares, or a job token.
        """
        if config.sizes or config.spares:
            nodes = NodeRange(config.min_nodes, config.max_nodes, config.sizes)
            raise UsageError(
                f"{f'--nnodes {str(nodes)!r}' if config.sizes else f'--spares={config.spares}'}: the "
                f"{config.rdzv_backend} backend is a rendezvous handler that decides by itself which nodes form a "
                "round, and takes only a minimum and a maximum.",
                hint=f"Write --nnodes={nodes.least}:{nodes.most} without --spares, or use a backend of Elastic's.",
            )
        _refuse_token(config.job_token, config.rdzv_backend)
        self._monitor_interval, self._exit_barrier = config.monitor_interval, config.exit_barrier

    @hookimpl
    def elastic_make_rendezvous(self, params: RendezvousParameters) -> RendezvousBackend:
        """Return a backend over the handler.

        Raises:
            UsageError: The job has a token.
            PluginError, ElasticError: As for :meth:`make`.
        """
        from elastic_torchrun.foreign.backend import HandlerBackend, Settings

        _refuse_token(params.token, params.backend)
        settings = Settings(
            backend=params.backend, monitor_interval=self._monitor_interval, exit_barrier=self._exit_barrier
        )
        return HandlerBackend.over(self.make(params), settings)

    def make(self, params: RendezvousParameters) -> RendezvousHandler:
        """Return the handler.

        Raises:
            PluginError: The factory returned another object, or raised an error that is none of a rendezvous.
            ElasticError: The factory raised it, or an error of torch's with the name of one of ours.
        """
        try:
            made = self._factory(params) if requires_argument(self._factory) else self._factory()
        except Exception as exc:
            error = translate_error(exc, f"the rendezvous handler {self._name!r} could not be made")
            if type(error) is RendezvousError and error is not exc:
                error = PluginError(error.message, hint=error.hint)
            raise error from exc
        if (handler := as_handler(made)) is not None:
            return handler
        raise PluginError(
            f"The rendezvous handler {self._name!r} is made by {_home(self._factory)}, which returned {made!r}.",
            hint="Return an instance of a class that has next_rendezvous.",
        )


def requires_argument(factory: Factory) -> bool:
    """Return True if a factory cannot be called without an argument."""
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return True
    except ValueError:  # a class written in C without a signature
        return False
    return False


def torch_handler(name: str) -> Factory:
    """Return the factory of ``torch-NAME``; imports torch when it is called."""

    def make(params: RendezvousParameters) -> Any:
        try:
            torchs = import_module("torch.distributed.elastic.rendezvous")
            registry = import_module("torch.distributed.elastic.rendezvous.registry")
        except ImportError as exc:
            raise PluginError(
                f"The rendezvous backend {params.backend!r} is torch's own, and torch cannot be imported: {exc}.",
                hint="Install torch, or take another --rdzv_backend.",
            ) from exc
        config: dict[str, Any] = dict(params.config)
        if (rank := params.get_as_int("rank", params.node_rank)) is not None:
            config["rank"] = rank  # torch's static handler compares it with numbers
        # torch's own choice of an address, the full host name, often cannot be resolved
        address = advertised_address(params.endpoint, "HOST", params.local_addr, single_node=params.max_nodes == 1)
        theirs = torchs.RendezvousParameters(
            name, params.endpoint, params.run_id, params.min_nodes, params.max_nodes, address, **config
        )
        return registry.get_rendezvous_handler(theirs)

    return make


def _refuse_token(token: object | None, backend: str) -> None:
    if token is not None:
        raise UsageError(
            f"The {backend} backend is a rendezvous handler of others, where a job token protects nothing.",
            hint="Unset ELASTIC_JOB_TOKEN and leave out token_file, or take a backend of Elastic's, such as c10d, "
            "redis, etcd or file.",
        )


def _home(factory: Factory) -> str:
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(factory)


class _CompletedHandler(RendezvousHandler):
    """A handler of another class, with the defaults of :class:`RendezvousHandler` for the methods that it lacks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        for name in _OPTIONAL_METHODS:
            if callable(method := getattr(inner, name, None)):
                setattr(self, name, method)

    def next_rendezvous(self) -> HandlerAnswer:
        answer: HandlerAnswer = self._inner.next_rendezvous()
        return answer

    def get_backend(self) -> str:
        return type(self._inner).__name__

    @property
    def use_agent_store(self) -> bool:
        return bool(getattr(self._inner, "use_agent_store", False))


def complete_class(kind: type) -> type:
    """Return a handler's class with the defaults of :class:`RendezvousHandler` for the abstract methods that it lacks.

    In torch's class all methods except ``use_agent_store`` are abstract, in ours only :meth:`next_rendezvous`.
    """
    lacking: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    defaults = {name: getattr(RendezvousHandler, name) for name in _OPTIONAL_METHODS if name in lacking}
    if not defaults:
        return kind
    return type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **defaults})


def as_handler(made: object) -> RendezvousHandler | None:
    """Return any object with ``next_rendezvous``, e.g. one of torch's, as a handler; None for anything else."""
    if isinstance(made, RendezvousHandler):
        return made
    if inspect.isclass(made) or inspect.ismodule(made) or not callable(getattr(made, "next_rendezvous", None)):
        return None
    return _CompletedHandler(made)
