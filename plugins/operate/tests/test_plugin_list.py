from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from elastic_core import __version__
from elastic_core.plugins.entry_points import Catalogue
from elastic_operate.plugin_list import Listed, command, inventory, table

BACKEND = """
    from elastic_core import hookimpl

    @hookimpl
    def elastic_make_rendezvous(params):
        ...
"""
MISFIT = BACKEND.replace("make_rendezvous", "make_rendevous")
Install = Callable[..., None]


def listed(**facts: object) -> Listed:
    defaults = {"group": "elastic.plugins", "distribution": "dist", "version": "1.0"}
    return Listed(**{**defaults, **facts})  # type: ignore[arg-type] # a table's rows


def test_an_installed_plugin_is_listed_with_its_hooks_or_why_it_fails(install: Install) -> None:
    install(
        "dist",
        {
            "elastic.rendezvous": {"fine": "fine_backend", "misfit": "misfit_backend", "gone": "nowhere:thing"},
            "elastic.commands": {"greet": "json:dumps"},
        },
        {"fine_backend": BACKEND, "misfit_backend": MISFIT},
    )
    mine = [row for row in inventory(Catalogue.read()) if row.distribution == "dist"]
    rendezvous = "elastic.rendezvous"
    assert mine == [
        listed(name="fine", group=rendezvous, summary="It is for a test.", hooks=("elastic_make_rendezvous",)),
        listed(
            name="gone",
            group=rendezvous,
            error="The rendezvous backend 'gone' (dist 1.0) fails to load: "
            "ModuleNotFoundError: No module named 'nowhere'.",
        ),
        listed(
            name="misfit",
            group=rendezvous,
            summary="It is for a test.",
            error="The rendezvous backend 'misfit' (dist 1.0) implements 'elastic_make_rendevous', "
            "which is not a hook. Did you mean 'elastic_make_rendezvous'?",
        ),
        listed(name="greet", group="elastic.commands", summary="It is for a test."),
    ]


def test_a_name_that_two_distributions_offer_is_listed_for_both_as_a_failure(install: Install) -> None:
    install("dist-a", {"elastic.plugins": {"mine": "one"}})
    install("dist-b", {"elastic.plugins": {"mine": "other"}})
    rivals = [row for row in inventory(Catalogue.read()) if row.name == "mine"]
    assert [row.distribution for row in rivals] == ["dist-a", "dist-b"]
    assert {row.error for row in rivals} == {"Two distributions offer the plugin 'mine': dist-a 1.0 and dist-b 1.0."}


def test_the_list_is_for_people_by_default() -> None:
    shown = table(
        [
            listed(name="local", group="elastic.rendezvous", hooks=("elastic_make_rendezvous", "elastic_observe")),
            listed(name="watcher", summary="It writes what happens.", hooks=("elastic_observe",)),
            listed(name="broken", error="The plugin 'broken' (dist 1.0) fails to load: RuntimeError: not today."),
        ],
        width=60,
    )
    assert shown.splitlines() == [
        "elastic.rendezvous",
        "  local    dist 1.0",
        "           elastic_make_rendezvous, elastic_observe",
        "elastic.plugins",
        "  watcher  dist 1.0",
        "           It writes what happens.",
        "           elastic_observe",
        "  broken   dist 1.0",
        "           FAILED: The plugin 'broken' (dist 1.0) fails to",
        "           load: RuntimeError: not today.",
    ]


def test_core_s_own_plugins_stand_first() -> None:
    lines = CliRunner().invoke(command, []).output.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["built", "in"],
        ["max-restarts", "elastic-core", __version__],
        ["Restart", "until", "`--max_restarts`", "are", "spent,", "unless", "the", "first"],
    ]


@pytest.mark.parametrize("name", ["max-restarts", "log-lines", "plain-start", "local"])
def test_json_is_for_programs(name: str) -> None:
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(command, ["--json"]).output)}
    assert rows[name]["distribution"] == "elastic-core"
    assert rows[name]["version"] == __version__
    assert rows[name]["summary"]
    assert rows[name]["hooks"]
    assert rows[name]["error"] is None
