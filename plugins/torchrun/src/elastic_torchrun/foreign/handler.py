"""Objects of other classes than ours as handlers: those of torch's classes, and of any with ``next_rendezvous``."""

from __future__ import annotations

import inspect
from typing import Any

from elastic_torchrun.rendezvous_api import HandlerAnswer, RendezvousHandler

_OPTIONAL_METHODS = ("get_backend", "get_run_id", "is_closed", "set_closed", "num_nodes_waiting", "shutdown")


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
