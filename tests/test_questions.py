"""A stranger's monitor asks all nodes of a job a question, by public names only."""

from __future__ import annotations

from pathlib import Path

from rig import Rig

LOAD = """
from elastic_core import hookimpl
from elastic_core.events import Event


@hookimpl
def elastic_round_starts(round):
    def take(report):
        round.publish(Event("load", f"the load of all nodes: {report}"))
        if report["nth"] == 1:
            round.ask("load", {"nth": 2})

    round.answer("load", lambda value: len(round.workers))
    round.follow_answers("load", take)
    round.ask("load", {"nth": 1})


@hookimpl
def elastic_sum_up_answers(question, answers, before):
    if question.name == "load":
        ranks = [rank for one in answers for rank in one.ranks]
        return {"nth": question.value["nth"], "ranks": ranks, "workers": sum(one.value for one in answers)}
"""


def install(folder: Path) -> dict[str, str]:
    """Install the plugin in a folder; return the environment of a process that finds it."""
    information = folder / "load-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: load\nVersion: 0.1.0\n")
    (information / "entry_points.txt").write_text("[elastic.autoload]\nload = load_monitor\n")
    (folder / "load_monitor.py").write_text(LOAD)
    return {"PYTHONPATH": str(folder)}


def test_each_node_gets_the_sum_of_all_answers(rig: Rig, file_rendezvous: list[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, time\nwhile not os.path.exists({str(tmp_path / 'stop')!r}):\n    time.sleep(0.05)\n")
    env = install(tmp_path / "installed")
    flags = ["--nnodes=2", "--nproc_per_node=2", *file_rendezvous]
    agents = [rig.run(*flags, script, env=env) for _ in range(2)]
    for agent in agents:
        for nth in (1, 2):
            agent.wait_for(rf"the load of all nodes: {{'nth': {nth}, 'ranks': \[0, 1, 2, 3\], 'workers': 4}}")
    (tmp_path / "stop").touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
        assert "plugin" not in agent.output
