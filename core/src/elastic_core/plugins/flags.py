"""The flags that installed distributions declare (``hookspecs.elastic_flags``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_core.config.flag import Flag
from elastic_core.distributions import brought
from elastic_core.errors import PluginError, UsageError, how_to_install, in_one_line
from elastic_core.hookspecs import PROJECT
from elastic_core.plugins.entry_points import Catalogue, Group, InstalledPlugin, load


@dataclass(frozen=True, slots=True)
class PluginFlag:
    """A flag, and the entry point that declares it, which has the name of the plugin that reads the flag."""

    flag: Flag[Any]
    offer: InstalledPlugin


def declared_flags(catalogue: Catalogue, taken: Collection[str] = ()) -> Mapping[str, PluginFlag]:
    """Return the flags of all distributions, by name; ``taken`` are the names of core's flags.

    Raises:
        PluginError: A distribution's flags cannot be read, or a name is taken.
    """
    found: dict[str, PluginFlag] = {}
    for offer in catalogue.offers(Group.FLAGS):
        declare: Any = getattr(load(offer), "elastic_flags", None)
        if not hasattr(declare, f"{PROJECT}_impl"):
            raise PluginError(f"The {offer} has no function elastic_flags that is marked with @hookimpl.")
        try:
            flags = list(declare())
        except Exception as exc:
            raise PluginError(f"The {offer} raised in elastic_flags: {in_one_line(exc)}") from exc
        for flag in flags:
            if not isinstance(flag, Flag):
                raise PluginError(f"The {offer} declares {flag!r}, which is not a Flag.")
            if flag.name in found or flag.name in taken:
                raise PluginError(f"The {offer} declares --{flag.name}, which exists already.")
            found[flag.name] = PluginFlag(flag, offer)
    return found


def not_declared(name: str) -> UsageError:
    """Return the error for a flag that no installed distribution declares."""
    if (distribution := brought(Group.FLAGS.kind).get(name)) is not None:
        return UsageError(f"--{name} needs {distribution}, which is not installed.", hint=how_to_install(distribution))
    return UsageError(f"There is no flag --{name}.")
