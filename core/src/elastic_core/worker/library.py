"""Finds the library that implements ``elastic_core.TrainState`` and ``init_process_group`` when they are first used.

The plugins that the run names are asked by the worker's hooks, and elastic-torch comes last. ``distributions.toml``
names its module: pluggy, and a search of what is installed, would double the time of a start from a fork.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_core.distributions import FILE
from elastic_core.errors import did_you_mean, how_to_install

if TYPE_CHECKING:
    from types import ModuleType

    from elastic_core.plugins.manager import Plugins

    ElasticDistributedSampler: Any
    TrainState: Any
    init_process_group: Any

OFFERED = {
    "ElasticDistributedSampler": "",
    "TrainState": "elastic_train_state",
    "init_process_group": "elastic_init_process_group",
}
"""The names that the default library implements, and the hook that is asked for each; '' for none."""


_warn = functools.cache(warnings.warn)  # once each, with the line that uses the name


def __getattr__(name: str) -> Any:
    if name not in OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _offered(name)


def plugins_in_worker(named: Sequence[str]) -> Plugins:
    """Return the plugins of the group ``elastic.worker`` among those that the run names.

    An unknown name leads to one warning: agents of ``elastic run`` refuse it, but other launchers do not.

    Raises:
        PluginError: One of them cannot be imported, or does not fit the hook specs.
    """
    from elastic_core.plugins import entry_points, manager

    catalogue, asked = entry_points.Catalogue.read(), manager.Plugins()
    known = catalogue.names(entry_points.Group.WORKER, entry_points.Group.PLUGINS, entry_points.Group.AUTOLOAD)
    for name in dict.fromkeys(named):
        if name in catalogue.names(entry_points.Group.WORKER):
            offer = catalogue.find(name, entry_points.Group.WORKER)
            asked.register(name, entry_points.import_plugin(offer), described=str(offer))
        elif name not in known:
            meant = did_you_mean(name, known)
            _warn(f"ELASTIC_PLUGINS names {name!r}, and no such plugin is installed here.{meant}", stacklevel=6)
    return asked


@functools.cache
def _offered(name: str) -> Any:
    named = [word for text in os.environ.get("ELASTIC_PLUGINS", "").split(",") if (word := text.strip())]
    hook = OFFERED[name]
    if named and hook and (answer := plugins_in_worker(named).first_answer(hook)) is not None:
        return answer
    return getattr(_import_for(f"elastic.{name}", "library"), name)


def added_names(wanted: str) -> Any:
    """Return elastic-torchrun's table of the names that it adds to our packages; ImportError if it is not installed."""
    return _import_for(f"{wanted}, if it is one of torch's names,", "names")


def added_name(module: str, name: str) -> Any:
    """Return a name that elastic-torchrun adds to a package; AttributeError if it adds none, or is not installed."""
    try:
        names = added_names(f"{module}.{name}")
    except ImportError as exc:
        raise AttributeError(f"module {module!r} has no attribute {name!r}: {exc}") from None
    return names.find_name(module, name)


@functools.cache
def failure_writer() -> Any:
    """Return elastic-torchrun's module that writes why a launch has failed; None if it cannot be imported."""
    try:
        return _import_for("the launcher's error file", "failures")
    except Exception:  # of a broken installation: it must not replace the failure that is to be written
        return None


def _import_for(wanted: str, kind: str) -> ModuleType:
    found = re.search(f'^{kind} = "(.+)"$', FILE.read_text(encoding="utf-8"), re.MULTILINE)  # tomllib takes 10 ms
    assert found is not None
    module = found[1]
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name == (package := module.partition(".")[0]):
            what = package.replace("_", "-")
            exc.msg = f"{wanted} needs {what}, which is not installed here. {how_to_install(what)}"
        raise
