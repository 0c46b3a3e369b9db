from __future__ import annotations

from importlib import metadata

import pytest

from elastic_core.distributions import brought
from elastic_core.errors import PluginError, how_to_install
from elastic_core.plugins.entry_points import Catalogue, Group, InstalledPlugin, import_plugin


def offer(
    name: str, group: Group = Group.RENDEZVOUS, distribution: str = "dist", value: str = "module"
) -> InstalledPlugin:
    return InstalledPlugin(group, name, distribution, "1.0", metadata.EntryPoint(name, value, group.key))


CATALOGUE = Catalogue(
    [
        offer("local"),
        offer("file"),
        offer("twice", distribution="two"),
        offer("twice", distribution="one"),
        offer("both", Group.PLUGINS),
        offer("both", Group.AUTOLOAD),
        offer("watcher", Group.AUTOLOAD),
    ]
)


NOT_INSTALLED = ", ".join(
    f"{name} ({distribution})" for name, distribution in sorted(brought("rendezvous").items()) if name != "file"
)


def test_installed_plugins_are_read_from_entry_points() -> None:
    found = Catalogue.read().find("local", Group.RENDEZVOUS)
    assert (found.distribution, found.version) == ("elastic-core", metadata.version("elastic-core"))


def test_a_name_is_looked_for_in_the_groups_in_order() -> None:
    assert CATALOGUE.find("both", Group.PLUGINS, Group.AUTOLOAD).group is Group.PLUGINS
    assert CATALOGUE.find("watcher", Group.PLUGINS, Group.AUTOLOAD).group is Group.AUTOLOAD
    assert CATALOGUE.names(Group.PLUGINS, Group.AUTOLOAD) == ["both", "watcher"]


@pytest.mark.parametrize(
    ("name", "groups", "message", "hint"),
    [
        pytest.param(
            "c10d",
            [Group.RENDEZVOUS],
            "The rendezvous backend 'c10d' is not installed.",
            how_to_install("elastic-rdzv-c10d"),
            id="known, not installed",
        ),
        pytest.param(
            "fiel",
            [Group.RENDEZVOUS],
            "There is no rendezvous backend 'fiel'. Did you mean 'file'?",
            f"Installed: file, local, twice. Not installed: {NOT_INSTALLED}.",
            id="misspelled",
        ),
        pytest.param(
            "c10",
            [Group.RENDEZVOUS],
            "There is no rendezvous backend 'c10'. Did you mean 'c10d'?",
            f"Installed: file, local, twice. Not installed: {NOT_INSTALLED}.",
            id="misspelled, and not installed",
        ),
        pytest.param(
            "prom",
            [Group.PLUGINS, Group.AUTOLOAD],
            "There is no plugin 'prom'.",
            "Installed: both, watcher. "
            "Not installed: causes (elastic-causes), devices (elastic-devices), event-log (elastic-torchrun), "
            "events (elastic-metrics), "
            "flight-recorder (elastic-torch), hangs (elastic-hangs), health (elastic-health), "
            "host-jobs (elastic-operate), notices (elastic-notices), policies (elastic-policies), "
            "progress (elastic-progress), prometheus (elastic-metrics), snapshots (elastic-torch), "
            "state-dump (elastic-operate), stream-filters (elastic-torchrun), "
            "torch-timers (elastic-torchrun), trainjob (elastic-kubernetes), "
            "verdict-file (elastic-operate).",
            id="unheard of",
        ),
        pytest.param(
            "file",
            [Group.PLUGINS, Group.AUTOLOAD],
            "There is no plugin 'file'.",
            "It is a rendezvous backend: --rdzv_backend=file.",
            id="of another group",
        ),
        pytest.param(
            "both",
            [Group.RENDEZVOUS, Group.HANDLERS],
            "There is no rendezvous backend 'both'.",
            "It is a plugin: --plugin=both.",
            id="a plugin for a backend",
        ),
        pytest.param(
            "twice",
            [Group.RENDEZVOUS],
            "Two distributions offer the rendezvous backend 'twice': one 1.0 and two 1.0.",
            "Uninstall one of them.",
            id="offered twice",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint(name: str, groups: list[Group], message: str, hint: str) -> None:
    with pytest.raises(PluginError) as refused:
        CATALOGUE.find(name, *groups)
    assert (refused.value.message, refused.value.hint) == (message, hint)


def test_a_plugin_that_cannot_be_imported_says_why() -> None:
    with pytest.raises(PluginError) as refused:
        import_plugin(offer("mine", Group.PLUGINS, "my-dist", "no_such_module:thing"))
    assert refused.value.message == (
        "The plugin 'mine' (my-dist 1.0) fails to load: ModuleNotFoundError: No module named 'no_such_module'."
    )


def test_a_class_is_made_an_instance() -> None:
    assert import_plugin(offer("mine", value="collections:OrderedDict")) == {}
