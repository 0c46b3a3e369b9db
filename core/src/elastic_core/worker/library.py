"""What ``elastic`` offers to a training script and a library brings: by the hooks of family 4 that workers ask.

``elastic_core.TrainState`` and ``elastic_core.init_process_group`` are looked up when they are first used. The plugins
that the run names are asked, and elastic-torch at last. What that one answers is taken from it by name: pluggy, and a
reading of what is installed, would take a worker as long as all else of its start from a fork. Its sampler is reached
from here, too, and no plugin is asked for it.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_core.errors import did_you_mean

if TYPE_CHECKING:
    from elastic_core.plugins.manager import Plugins

    ElasticDistributedSampler: Any
    TrainState: Any
    init_process_group: Any

OFFERED = {"TrainState": "elastic_train_state", "init_process_group": "elastic_init_process_group"}
"""What a library brings, ``elastic_torch`` by default, and the hook that is asked for it."""
OF_ELASTIC_TORCH = ("ElasticDistributedSampler",)  # what is ``elastic_torch``'s alone


def __getattr__(name: str) -> Any:
    if name in OF_ELASTIC_TORCH:
        return from_elastic_torch(name)
    if name not in OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _offered(name)


def plugins_in_worker(named: Sequence[str]) -> Plugins:
    """Return the plugins that a worker asks, of those that its run names: those of the group ``elastic.worker``.

    A name that nothing here has is warned of once: agents of ``elastic run`` refuse it, other launchers know nothing.

    Raises:
        PluginError: One of them cannot be imported, or does not fit the hook specs.
    """
    from elastic_core.plugins import entry_points, manager

    catalogue, asked = entry_points.Catalogue.read(), manager.Plugins()
    known = catalogue.names(entry_points.Group.WORKER, entry_points.Group.PLUGINS, entry_points.Group.AUTOLOAD)
    for name in dict.fromkeys(named):
        if name in catalogue.names(entry_points.Group.WORKER):
            offer = catalogue.find(name, entry_points.Group.WORKER)
            asked.register(name, entry_points.load(offer), described=str(offer))
        elif name not in known:
            _warn(f"ELASTIC_PLUGINS names {name!r}, and no such plugin is installed here.{did_you_mean(name, known)}")
    return asked


@functools.cache
def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=6)  # the line that asks for what a library brings


@functools.cache
def _offered(name: str) -> Any:
    named = [word for text in os.environ.get("ELASTIC_PLUGINS", "").split(",") if (word := text.strip())]
    if named and (answer := plugins_in_worker(named).first_answer(OFFERED[name])) is not None:
        return answer
    return from_elastic_torch(name)


def from_elastic_torch(name: str) -> Any:
    """Return a name of elastic-torch.

    Raises:
        ImportError: It is not installed, or torch is not.
    """
    try:
        library = import_module("elastic_torch")
    except ModuleNotFoundError as exc:
        if exc.name != "elastic_torch":
            raise
        raise ImportError(
            f"elastic.{name} needs elastic-torch, which is not installed here. Install it with: pip install "
            "elastic-torch"
        ) from None
    return getattr(library, name)
