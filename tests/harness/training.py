"""Checks that jobs train, and go on training, for tests that take their store away."""

from __future__ import annotations

from rig import PATIENCE, Agent, Rig

SOON = "beat_interval=0.5,lost_after=1.5,last_call_timeout=1"
"""Settings with which a lost node is found soon."""


def train_for(rig: Rig, agents: list[Agent], seconds: float) -> None:
    """Wait until the same workers have trained for so long, without a pause."""
    before = [agent.workers() for agent in agents]
    began = [max(report["at"] for report in agent.reports("step")) for agent in agents]

    def trained() -> bool:
        return all(agent.reports("step")[-1]["at"] >= at + seconds for agent, at in zip(agents, began, strict=True))

    assert rig.wait_until(trained, PATIENCE + seconds), "training has stopped:\n" + agents[0].output
    assert [agent.workers() for agent in agents] == before


def train_again(agents: list[Agent], restarts: int) -> None:
    """Wait until all train in a round of two nodes, after so many restarts."""
    for agent in agents:
        agent.wait_for_report("training", world_size=2, restart_count=restarts)
        agent.wait_for_report("step", count=len(agent.reports("step")) + 1)
