"""The flags that installed distributions declare (``hookspecs.elastic_flags``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from elastic_core.config.flag import Flag
from elastic_core.distributions import brought
from elastic_core.errors import PluginError, UsageError, how_to_install, in_one_line
from elastic_core.hookspecs import PROJECT
from elastic_core.plugins.entry_points import Catalogue, Group, import_plugin

if TYPE_CHECKING:
    from elastic_core.config.run import RunConfig

MAX_AGREED_CHARACTERS = 500  # of a flag in which nodes agree: an OPEN carries it (``protocol/limits.py``)


def declared_flags(catalogue: Catalogue, taken: Collection[str] = ()) -> Mapping[str, Flag[Any]]:
    """Return the flags of all distributions, by name; ``taken`` are the names of core's flags.

    Raises:
        PluginError: A distribution's flags cannot be read, or a name is taken.
    """
    found: dict[str, Flag[Any]] = {}
    for offer in catalogue.offers(Group.FLAGS):
        declare: Any = getattr(import_plugin(offer), "elastic_flags", None)
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
            flag.reader = offer.name
            found[flag.name] = flag
    return found


def not_declared(name: str) -> UsageError:
    """Return the error for a flag that no installed distribution declares."""
    if (distribution := brought(Group.FLAGS.kind).get(name)) is not None:
        return UsageError(f"--{name} needs {distribution}, which is not installed.", hint=how_to_install(distribution))
    return UsageError(f"There is no flag --{name}.")


def check_given(
    config: RunConfig, catalogue: Catalogue, loaded: Collection[str], problems: Mapping[str, PluginError]
) -> tuple[str, ...]:
    """Check the plugins' flags that a run has; return those in which all nodes must agree, as on the command line.

    ``loaded`` are the names of the plugins of the run; ``problems`` are the errors of those that are left off, by name.

    Raises:
        UsageError: A flag is not declared, has a wrong value, or its plugin is off.
        PluginError: The flags of a distribution, or the plugin that reads one, cannot be loaded.
    """
    declared, agreed = declared_flags(catalogue), []
    for name, value in config.settings.items():
        if (flag := declared.get(name)) is None:
            raise not_declared(name)
        value, reader = flag.accept(value), flag.reader
        shown = f"--{name}={','.join(value) if isinstance(value, tuple) else value}"
        if value and reader in config.no_plugin:
            raise UsageError(f"{shown} needs the plugin {reader!r}, which --no_plugin switches off.")
        if value and reader not in loaded and reader in catalogue.names(Group.PLUGINS, Group.AUTOLOAD):
            if reader in problems:
                raise problems[reader]
            raise UsageError(f"{shown} needs the plugin {reader!r}.", hint=f"Add --plugin={reader}.")
        if flag.agreed:
            agreed.append(f"--{name}={value}")
            if (length := len(str(value))) > MAX_AGREED_CHARACTERS:
                raise UsageError(f"--{name} has {length} characters; {MAX_AGREED_CHARACTERS} are allowed.")
    return tuple(sorted(agreed))
