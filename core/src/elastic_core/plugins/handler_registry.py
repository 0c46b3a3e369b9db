"""Rendezvous handlers of others, by name: registered by hand, or installed for torchrun, or torch's own.

A name of ``--rdzv_backend`` is looked for in this order:

1. what :func:`register` was told in this process;
2. entry points of the group ``elastic.rendezvous``: hooks that make a backend or a handler, or a handler's class;
3. entry points of the group ``torchrun.handlers``, which plain torchrun reads, too;
4. ``torch-NAME``: what torchrun itself would take for ``--rdzv_backend=NAME``, e.g. ``torch-c10d``, ``torch-static``.

All of them become plugins here (:class:`HandlerPlugin`), so that the rest of the system knows only hooks.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeAlias

from elastic_core.errors import (
    ElasticError,
    PluginError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
    UsageError,
)
from elastic_core.hookspecs import hookimpl
from elastic_core.rendezvous.handler import RendezvousHandler, RendezvousParameters, as_handler, complete_class
from elastic_core.rendezvous.options import RendezvousOptions

Factory: TypeAlias = Callable[..., Any]
"""Makes a handler: a class or a function that takes :class:`RendezvousParameters`, or nothing."""

TORCH_PREFIX = "torch-"
"""What stands before the names of torch's own handlers; without it they are those of our backends."""
SHARE_SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

_factories: dict[str, Factory] = {}
_importing: dict[str, set[str]] = {}  # the modules that were being imported when a name was registered


def register(name: str, factory: Factory) -> None:
    """Make ``factory`` the backend that ``--rdzv_backend=NAME`` means, for runs that start in this process.

    Args:
        name: The backend's name. One that is installed under the same name is not used then.
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
    """Make one handler a backend for as long as the block runs; yields the backend's name, which is the handler's own.

    Raises:
        PluginError: It is no handler.
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
        if before is None:
            _factories.pop(name, None)
        else:
            _factories[name] = before


def find(name: str) -> Factory | None:
    """Return what was registered under a name, or None."""
    return _factories.get(name)


def names() -> list[str]:
    """Return the registered names, in order."""
    return sorted(_factories)


def is_handler_class(loaded: object) -> bool:
    """Whether an entry point names a handler's class."""
    return inspect.isclass(loaded) and (issubclass(loaded, RendezvousHandler) or hasattr(loaded, "next_rendezvous"))


def registered_by(module: object) -> list[str]:
    """Return the names that were registered while a module was imported, wherever their factories are defined.

    A plugin that is such a module may do without hooks.
    """
    home = getattr(module, "__name__", None)
    return sorted(name for name, modules in _importing.items() if home in modules)


def _modules_being_imported() -> set[str]:
    """Whose own lines run now: the module that calls us, and those that import it."""
    found, frame = set(), sys._getframe(1)
    while (outer := frame.f_back) is not None:
        if outer.f_code.co_name == "<module>":
            found.add(str(outer.f_globals.get("__name__")))
        frame = outer
    return found


class HandlerPlugin:
    """The hooks of the backend ``name``, whose handler ``factory`` makes.

    Raises:
        PluginError: It is a class that lacks methods for which there is no default.
    """

    def __init__(self, name: str, factory: Factory) -> None:
        self._name = name
        self._factory = complete_class(factory) if inspect.isclass(factory) else factory
        if lacking := sorted(getattr(self._factory, "__abstractmethods__", ())):
            raise PluginError(f"The handler's class {_home(factory)} lacks {', '.join(lacking)}.")

    @hookimpl
    def elastic_rendezvous_options(self) -> RendezvousOptions:
        """Any endpoint and any option: they are the handler's to check."""
        return RendezvousOptions(endpoint="ENDPOINT", handler=True)

    @hookimpl
    def elastic_make_rendezvous(self, params: RendezvousParameters) -> RendezvousHandler:
        """Return the handler.

        Raises:
            PluginError: The factory returns something else, or raised what is no error of a rendezvous.
            ElasticError: The factory raised it; what torch calls a connection error is one here, and so on.
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
    """Whether a factory cannot be called without an argument; one that has a default keeps it."""
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return True
    except ValueError:  # a class written in C that does not tell
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
        theirs = torchs.RendezvousParameters(
            name, params.endpoint, params.run_id, params.min_nodes, params.max_nodes, _address(params), **config
        )
        return registry.get_rendezvous_handler(theirs)

    return make


@contextmanager
def without_shared_store() -> Iterator[None]:
    """Have torch's handlers keep their store to themselves, for as long as the block runs.

    One that shares it with the workers does not tell a newcomer where it is, and the job ends when a node joins. Who
    has set the variable has the last word.
    """
    before = os.environ.get(SHARE_SWITCH)
    os.environ.setdefault(SHARE_SWITCH, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[SHARE_SWITCH]


def translate_error(error: BaseException, what: str) -> ElasticError:
    """Return an error of a handler in our words, after ``what`` failed: torch's errors have the names of ours."""
    if isinstance(error, ElasticError):
        return error
    said = f"{what[0].upper()}{what[1:]}: {type(error).__name__}: {error}"
    if error.__cause__ is not None:
        said += f" ({error.__cause__})"
    for kind in type(error).__mro__:
        if (ours := _SAME_NAMES.get(kind.__name__)) is not None:
            return ours(said)
    raised = traceback.extract_tb(error.__traceback__)
    where = f"Raised at {raised[-1].filename}:{raised[-1].lineno}." if raised else None
    return RendezvousError(said, hint=where)


def is_graceful_exit(error: BaseException) -> bool:
    """Whether a handler says that this node is not needed (RendezvousGracefulExitError): no failure."""
    return any(kind.__name__ == "RendezvousGracefulExitError" for kind in type(error).__mro__)


_SAME_NAMES: dict[str, type[RendezvousError]] = {
    kind.__name__: kind
    for kind in (RendezvousClosedError, RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError)
}


def _address(params: RendezvousParameters) -> str | None:
    """Return this node's numeric address: torch's own choice, the full host name, often cannot be resolved."""
    from elastic_core.host.addresses import advertised_address

    return advertised_address(params.endpoint, "HOST", params.local_addr, single_node=params.max_nodes == 1)


def _home(factory: Factory) -> str:
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(factory)
