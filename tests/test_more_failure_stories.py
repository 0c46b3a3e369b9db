"""Failures that users of training programs report: every node of two names the rank, the cause and the line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from more_failure_stories import STORIES, Story
from rig import COLD, WARM, Agent, Rig, over

NO_CORES = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"]


def cases() -> Iterator[object]:
    """Each story with both ways to start workers; every day runs take one of them."""
    for number, (name, story) in enumerate(STORIES.items()):
        everyday = ("cold", "warm")[number % 2]
        if story.torch:  # the one with fewer imports
            everyday = "warm" if story.torch > 2 else "cold"
        for start in ("cold", "warm"):
            marks = [pytest.mark.skipif(sys.version_info < story.least, reason=f"needs Python {story.least}")]
            if start != everyday:
                marks.append(pytest.mark.variant)
            yield pytest.param(name, start, id=f"{name}-{start}", marks=marks)


def run(rig: Rig, story: Story, start: str) -> list[Agent]:
    """Run a story on two nodes, to its end."""
    for name, text in {story.program: story.script, **story.files}.items():
        (rig.folder / name).write_text(text)
    (rig.folder / story.program).chmod(0o755)
    flags = ["--nnodes=2", "--nproc_per_node=2", *over("file", rig.folder / "rdzv"), "--tee=3"]
    flags += ["--no_python", f"./{story.program}"] if story.no_python else [story.program]
    env = {"LAST": "3", "OMP_NUM_THREADS": "1", "PET_PRELOAD": "torch" if story.torch else "json"}
    env |= WARM if start == "warm" else COLD
    command = [*NO_CORES, sys.executable, "-m", "elastic_core", "run"]
    agents = [rig.start([*command, f"--log_dir=logs{number}", *flags], env=env) for number in range(2)]
    if story.outside:
        assert rig.wait_until(lambda: any("ready" in agent.output for agent in agents)), agents[0].output
        [pid] = [pid for agent in agents for rank, pid in agent.workers().items() if rank == 3]
        os.kill(pid, story.outside)
    for agent in agents:
        agent.exit_code()
    return agents


def summary(agent: Agent) -> list[str]:
    """The lines of the last message of a node."""
    start = next((at for at, line in enumerate(agent.lines) if "the job has failed" in line), None)
    assert start is not None, agent.output
    return [agent.lines[start], *(line for line in agent.lines[start + 1 :] if line.startswith("  |"))]


def misses(story: Story, lines: list[str], verdict: Mapping[str, Any], exit_code: int) -> list[str]:
    """Return the differences of a node's output from the expected one."""
    text, incident = "\n".join(lines), verdict["incident"]
    fields = dict(re.findall(r"^  \|   (\w+) +(.*)$", text, re.MULTILINE))
    error, where = fields.get("error", ""), fields.get("where", "")
    found = [f"lacks {said!r}" for said in story.also if said not in text]
    if not fields["what"].startswith(story.what):
        found.append(f"what: {fields['what']}")
    if story.error is not None and not (error.startswith(story.error) if story.error else not error):
        found.append(f"error: {error}")
    if not story.anywhere and where.partition(" ")[0] != story.where:
        found.append(f"where: {where}, not {story.where}")
    if incident["rank"] not in story.ranks or not fields["who"].startswith(f"rank {incident['rank']} (host "):
        found.append(f"who: {fields['who']}")
    if (incident["class"] == "peer") != story.peer:
        found.append(f"class: {incident['class']}")
    if {exit_code, verdict["exit_code"]} != {story.exit_code}:
        found.append(f"exit code: {exit_code}")
    return found


@pytest.mark.parametrize(("name", "start"), list(cases()))
def test_every_node_names_rank_cause_and_line(rig: Rig, name: str, start: str) -> None:
    wrong: dict[str, list[str]] = {}
    for number, agent in enumerate(run(rig, STORIES[name], start)):
        [file] = rig.folder.glob(f"logs{number}/*/verdict.json")
        verdict = json.loads(file.read_text())
        if found := misses(STORIES[name], summary(agent), verdict, agent.exit_code()):
            wrong[f"node {number}"] = [*found, *summary(agent)]
    assert not wrong
