"""The example as a run sees it: found by its entry points, loaded by name, asked through the hooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_core import RendezvousParameters, RunConfig
from elastic_core.config.program import Program, ProgramKind
from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, IncidentKind
from elastic_core.plugins.entry_points import Catalogue
from elastic_core.plugins.manager import Plugins, load
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Versions
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_operate.plugin_list import inventory


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    monkeypatch.setenv("ELASTIC_EVENT_FILE", str(tmp_path / "events.jsonl"))
    program = Program(ProgramKind.SCRIPT, "train.py")
    return load(RunConfig(program=program, rdzv_backend="sqlite", plugins=("usage-errors", "event-file")))


def test_elastic_plugins_lists_all_and_their_hooks() -> None:
    listed = [row for row in inventory(Catalogue.read()) if row.distribution == "elastic-example-plugin"]
    assert {(row.group, row.name, row.hooks, row.error) for row in listed} == {
        ("elastic.rendezvous", "sqlite", ("elastic_make_rendezvous", "elastic_rendezvous_options"), None),
        ("elastic.plugins", "usage-errors", ("elastic_judge_failure",), None),
        ("elastic.plugins", "gone-hosts", ("elastic_node_gone",), None),
        ("elastic.plugins", "event-file", ("elastic_observe",), None),
    }


def test_the_backend_is_made_through_its_hook(plugins: Plugins, tmp_path: Path) -> None:
    path = tmp_path / "rendezvous.db"
    backend = plugins.make_rendezvous(
        RendezvousParameters(backend="sqlite", endpoint=str(path), run_id="job", min_nodes=1, max_nodes=2)
    )
    assert isinstance(backend, RendezvousBackend)
    assert backend.enter("node", b"value") == 1
    backend.close()


@pytest.mark.parametrize(
    ("exit_code", "action"),
    [
        pytest.param(2, Action.GIVE_UP, id="a usage error"),
        pytest.param(1, Action.RESTART, id="any other code is core's to judge"),
        pytest.param(-9, Action.RESTART, id="so is a signal"),
    ],
)
def test_the_policy_gives_up_on_usage_errors_only(plugins: Plugins, exit_code: int, action: Action) -> None:
    incident = Incident(kind=IncidentKind.WORKER_FAILED, round=0, node_id="n", host="h", exit_code=exit_code)
    history = History(restarts=0, max_restarts=3, rounds_without_progress=0)
    assert plugins.judge(incident, history).action is action


def test_a_host_with_a_file_is_vouched_for_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_GONE_HOSTS", str(tmp_path))
    (tmp_path / "pod-1").touch()
    program = Program(ProgramKind.SCRIPT, "train.py")
    asked = load(RunConfig(program=program, plugins=("gone-hosts",))).node_gone
    assert asked is not None
    nodes = [
        NodeInfo(
            node_id=host, host=host, host_id=host, slot=0, local_world_size=1, role="", versions=Versions(python="3")
        )
        for host in ("pod-1", "pod-2")
    ]
    assert [asked(node) for node in nodes] == [True, False]


def test_the_observer_writes_every_event_as_a_line(plugins: Plugins, tmp_path: Path) -> None:
    plugins.publish(Event("round_started", "round 1 started", fields={"round": 1}))
    plugins.publish(Event("worker_failed", "rank 3 failed"))
    assert plugins.close(timeout=60) == ()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "round_started", "level": "INFO", "message": "round 1 started", "round": 1},
        {"event": "worker_failed", "level": "INFO", "message": "rank 3 failed"},
    ]
