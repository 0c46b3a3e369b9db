"""The installed plugins, as their distributions declare them by entry points; only :func:`load` imports them.

A distribution declares a plugin so::

    [project.entry-points."elastic.rendezvous"]
    sqlite = "elastic_example_plugin.backend"
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

from elastic_core.errors import PluginError, did_you_mean, how_to_install, in_one_line
from elastic_core.hookspecs import PROJECT


class Group(enum.Enum):
    """The entry-point groups, the noun for a member in messages, and the flag by which a run names one.

    A name is unique within its group.
    """

    RENDEZVOUS = "elastic.rendezvous", "rendezvous backend", "--rdzv_backend"  # only the one of the run is imported
    PLUGINS = "elastic.plugins", "plugin", "--plugin"  # on when named, by ``--plugin`` or ``ELASTIC_PLUGINS``
    AUTOLOAD = "elastic.autoload", "plugin", "--plugin"  # on once installed, off with ``--no_plugin``
    WORKER = "elastic.worker", "plugin", "--plugin"  # its part in workers, on when named; never imported by the agent
    HANDLERS = "torchrun.handlers", "rendezvous handler", "--rdzv_backend"  # for torchrun; imported as a backend is
    ADAPTERS = "elastic.adapters", "adapter", ""  # make backends of other objects; imported when one is needed
    FLAGS = "elastic.flags", "declaration of flags", ""  # of ``elastic run``; named as the plugin that reads them
    WORKER_COUNTS = "elastic.worker_counts", "word of --nproc_per_node", ""  # imported when a launch has the word
    COMMANDS = "elastic.commands", "command", ""  # subcommands of ``elastic``; imported when called
    SCHEDULERS = "elastic.schedulers", "scheduler", ""  # defaults of flags; imported inside a job of the scheduler

    def __init__(self, key: str, noun: str, flag: str) -> None:
        self.key, self.noun, self.flag = key, noun, flag
        self.kind = key.removeprefix("elastic.")  # the key of ``distributions.toml`` for the names of the group


class Adapter(Protocol):
    """Makes a backend of another object, such as a rendezvous handler."""

    def backend(self, name: str) -> object | None:
        """Return the backend of a name that no installed backend has, or that was registered in this process."""

    def adapt(self, name: str, loaded: object) -> object | None:
        """Return the backend for what an entry point names, or for what that of ``torchrun.handlers`` returns."""

    def registered_by(self, module: object) -> list[str]:
        """Return the names of the backends that were registered while a module was imported."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """One installed plugin, not imported yet."""

    group: Group
    name: str
    distribution: str
    version: str
    entry_point: metadata.EntryPoint

    def __str__(self) -> str:
        """As messages name it, e.g. ``rendezvous backend 'c10d' (elastic-rdzv-c10d 0.1.0)``."""
        return f"{self.group.noun} {self.name!r} ({self.source})"

    @property
    def source(self) -> str:
        """The distribution and its version."""
        return f"{self.distribution} {self.version}"

    @property
    def summary(self) -> str:
        """The summary of its distribution."""
        return str(self.entry_point.dist.metadata.json.get("summary", "")) if self.entry_point.dist else ""


class Catalogue:
    """All installed plugins, read once: reading takes milliseconds, and longer with more distributions."""

    def __init__(self, offers: Iterable[InstalledPlugin]) -> None:
        self._offers = sorted(offers, key=lambda offer: (offer.group.key, offer.name, offer.distribution))

    @classmethod
    def read(cls) -> Catalogue:
        """Return the plugins of the distributions that are on ``sys.path`` now."""
        installed = metadata.entry_points()
        points = [(group, point) for group in Group for point in installed.select(group=group.key)]
        # Once for each, since a look parses all metadata of a distribution.
        described = functools.cache(lambda one: ((found := one.metadata)["Name"], found["Version"]))
        return cls(
            InstalledPlugin(group, point.name, *described(distribution), point)
            for group, point in points
            if (distribution := point.dist) is not None  # as it is for all that were found
        )

    def offers(self, group: Group) -> list[InstalledPlugin]:
        """Return the plugins of one group in order of name; a name that two distributions offer is there twice."""
        return [offer for offer in self._offers if offer.group is group]

    def names(self, *groups: Group) -> list[str]:
        """Return the sorted names in these groups, each once."""
        return sorted({offer.name for group in groups for offer in self.offers(group)})

    def adapters(self, *, imported: bool = False) -> list[Adapter]:
        """Return the adapters; only those that are ``imported`` already if nothing else can have changed them."""
        offers = [offer.entry_point for offer in self.offers(Group.ADAPTERS)]
        return [point.load() for point in offers if not imported or point.module in sys.modules]

    def find(self, name: str, *groups: Group) -> InstalledPlugin:
        """Return the plugin of that name in the first of ``groups`` that has it.

        Raises:
            PluginError: It is not installed (the hint names the distribution that brings it), or installed twice.
        """
        for group in groups:
            match [offer for offer in self.offers(group) if offer.name == name]:
                case [offer]:
                    return offer
                case [first, second, *_]:
                    raise PluginError(
                        f"Two distributions offer the {group.noun} {name!r}: {first.source} and {second.source}.",
                        hint="Uninstall one of them.",
                    )
        raise self._missing(name, groups)

    def _missing(self, name: str, groups: tuple[Group, ...]) -> PluginError:
        from elastic_core.distributions import brought

        noun, installed = groups[0].noun, self.names(*groups)
        known = {name: source for group in groups for name, source in brought(group.kind).items()}
        if name in known:
            return PluginError(f"The {noun} {name!r} is not installed.", hint=how_to_install(known[name]))
        others = {each: source for each, source in sorted(known.items()) if each not in installed}
        hint = f"Installed: {', '.join(installed) or 'none'}."
        if others:
            hint += f" Not installed: {', '.join(f'{each} ({source})' for each, source in others.items())}."
        for group in Group:
            if name in self.names(group) and group.flag:
                hint = f"It is a {group.noun}: {group.flag}={name}."
        return PluginError(f"There is no {noun} {name!r}.{did_you_mean(name, [*installed, *others])}", hint=hint)


def _has_hooks(loaded: object) -> bool:
    """Return True if an object has functions that are marked with ``hookimpl``."""
    return any(hasattr(inspect.getattr_static(loaded, name, None), f"{PROJECT}_impl") for name in dir(loaded))


def import_plugin(offer: InstalledPlugin) -> Any:
    """Import a plugin and return it: an instance, if its entry point names a class; what an adapter makes of others.

    Raises:
        PluginError: It cannot be imported; the message has the cause.
    """
    try:
        loaded = offer.entry_point.load()
        if offer.group is Group.HANDLERS:
            loaded = loaded()
        if offer.group is Group.HANDLERS or (offer.group is Group.RENDEZVOUS and not _has_hooks(loaded)):
            if not (adapters := Catalogue.read().adapters()):
                from elastic_core.distributions import brought

                needed = ", ".join(brought(Group.ADAPTERS.kind).values())
                raise PluginError(f"it has no hooks, and needs {needed}, which is not installed.")
            if (made := next(filter(None, (one.adapt(offer.name, loaded) for one in adapters)), None)) is not None:
                return made
        return loaded() if inspect.isclass(loaded) else loaded
    except Exception as exc:
        raise PluginError(
            f"The {offer} fails to load: {in_one_line(exc)}",
            hint=f"It is looked for at {offer.entry_point.value!r}; the other plugins are not affected.",
        ) from exc
