"""The plugin as a run sees it: found by its entry points, cheap until a failure, and what it makes of its flag."""

from __future__ import annotations

import queue
import subprocess
import sys

import pytest
from failures import failure, history, incident

import elastic_core.plugins.manager
from elastic_core import RunConfig, UsageError
from elastic_core.config.program import Program, ProgramKind
from elastic_core.events import Event
from elastic_core.incidents import Action
from elastic_core.plugins.entry_points import Catalogue
from elastic_core.plugins.manager import failure_policies
from elastic_operate.plugin_list import inventory
from elastic_policies.plugin import PREPARE_AFTER, FailurePolicies

LATE = "elastic_policies.composition"
IMPORTS = f"""
import sys, threading
from elastic_core.events import Event
from elastic_policies.plugin import FailurePolicies

plugin = FailurePolicies(prepare_after={{sys.argv[1]: 0.0}})
plugin.elastic_observe(event=Event("joining", ""))
assert threading.active_count() == 1
print({LATE!r} in sys.modules)
plugin.elastic_observe(event=Event(sys.argv[1], ""))
[thread.join() for thread in threading.enumerate() if thread is not threading.main_thread()]
print({LATE!r} in sys.modules)
"""


def config(**settings: object) -> RunConfig:
    return RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), **settings)  # type: ignore[arg-type] # a table's


def test_elastic_plugins_lists_the_plugin_and_its_command() -> None:
    rows = [row for row in inventory(Catalogue.read()) if row.distribution == "elastic-policies"]
    assert {(row.group, row.name, row.hooks, row.error) for row in rows} == {
        (
            "elastic.autoload",
            "policies",
            ("elastic_configure", "elastic_explain_failure", "elastic_judge_failure", "elastic_observe"),
            None,
        ),
        ("elastic.commands", "policy", (), None),
        ("elastic.flags", "policies", ("elastic_flags",), None),
    }


def test_it_is_on_once_installed_and_off_with_no_plugin() -> None:
    load = elastic_core.plugins.manager.load
    assert "policies" in failure_policies(load(config()))
    assert "policies" not in failure_policies(load(config(no_plugin=("policies",))))


def test_its_verdict_is_the_run_s_and_names_the_policy() -> None:
    plugins = elastic_core.plugins.manager.load(config(settings={"failure_policy": "no_progress=2"}))
    verdict = plugins.judge(incident(), history(failure(5)))
    assert (verdict.action, verdict.policy) == (Action.GIVE_UP, "no_progress")
    verdict = plugins.judge(incident(), history())
    assert (verdict.action, verdict.policy) == (Action.RESTART, "max-restarts")


def test_a_text_that_is_wrong_is_refused_when_plugins_are_loaded() -> None:
    with pytest.raises(UsageError, match="there is no policy 'x'"):
        elastic_core.plugins.manager.load(config(settings={"failure_policy": "x=1"}))


@pytest.mark.parametrize("event", ["workers_started", "initialized"])
def test_the_imports_of_a_verdict_happen_while_workers_run(event: str) -> None:
    assert event in PREPARE_AFTER
    done = subprocess.run([sys.executable, "-c", IMPORTS, event], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_example_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: queue.SimpleQueue[str] = queue.SimpleQueue()
    plugin = FailurePolicies(prepare_after={"initialized": 0.0})
    monkeypatch.setattr(plugin, "elastic_judge_failure", lambda incident, history: judged.put(incident.message))
    for _ in range(2):
        plugin.elastic_observe(event=Event("initialized", ""))
    assert judged.get(timeout=30.0) == "Error: example"
    assert judged.empty()
