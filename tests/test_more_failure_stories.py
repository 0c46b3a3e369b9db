"""Failures that users of training programs report: every node of two names the rank, the cause and the line."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from more_failure_stories import STORIES, Story
from stage import COLD, PATIENCE, WARM, Agent, Stage, over

LIGHT = {"PET_PRELOAD": "json"}
"""What a worker is forked from where most ranks need no torch, so that the fork server starts at once."""
NO_CORES = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"]


def run(stage: Stage, story: Story, start: str) -> list[Agent]:
    """Run a story on two nodes, to its end."""
    for name, text in {story.program: story.script, **story.files}.items():
        (stage.folder / name).write_text(text)
    (stage.folder / story.program).chmod(0o755)
    flags = ["--nnodes=2", "--nproc_per_node=2", *over("file", stage.folder / "rdzv"), "--tee=3"]
    program = ["--no_python", f"./{story.program}"] if story.no_python else [story.program]
    env = {"LAST": "3", "OMP_NUM_THREADS": "1", **(WARM if start == "warm" else COLD), **LIGHT}
    agents = []
    for number in range(2):
        launch = [sys.executable, "-m", "elastic_core", "run", *flags, f"--log_dir=logs{number}", *program]
        agents.append(stage.start([*NO_CORES, *launch], env=env))
    if story.outside:
        interfere(stage, agents, story.outside)
    for agent in agents:
        agent.exit_code()
    return agents


def interfere(stage: Stage, agents: list[Agent], signum: int) -> None:
    """Send rank 3 a signal once it says that it is ready."""
    assert stage.wait_until(lambda: any("ready" in agent.output for agent in agents)), agents[0].output
    [pid] = [pid for agent in agents for rank, pid in agent.workers().items() if rank == 3]
    os.kill(pid, signum)


def summary(agent: Agent) -> list[str]:
    """The lines of the last message of a node."""
    start = next((at for at, line in enumerate(agent.lines) if "the job has failed" in line), None)
    assert start is not None, agent.output
    return [agent.lines[start], *(line for line in agent.lines[start + 1 :] if line.startswith("  |"))]


def verdict(stage: Stage, number: int) -> dict[str, Any]:
    """The ``verdict.json`` of a node."""
    [file] = stage.folder.glob(f"logs{number}/*/verdict.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def misses(story: Story, lines: list[str], incident: dict[str, Any], exit_code: int | None) -> list[str]:
    """What a node has said otherwise than it should."""
    text = "\n".join(lines)
    fields = dict(re.findall(r"^  \|   (\w+) +(.*)$", text, re.MULTILINE))
    found = []
    if not fields["what"].startswith(story.what):
        found.append(f"what: {fields['what']}")
    error = fields.get("error", "")
    if story.error is not None and not (error.startswith(story.error) if story.error else not error):
        found.append(f"error: {error}")
    where = re.match(r"(\S+:\d+|) ?", fields.get("where", ""))
    named = where[1] if where is not None else fields["where"]
    if not story.anywhere and named != story.where:
        found.append(f"where: {fields.get('where', '')}, not {story.where}")
    if incident["rank"] not in story.ranks or not fields["who"].startswith(f"rank {incident['rank']} "):
        found.append(f"who: {fields['who']}")
    found += [f"lacks {said!r}" for said in story.also if said not in text]
    if (incident["class"] == "peer") != story.peer:
        found.append(f"class: {incident['class']}")
    if exit_code != story.exit_code:
        found.append(f"exit code: {exit_code}")
    return found


@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize("name", STORIES)
def test_every_node_names_rank_cause_and_line(stage: Stage, name: str, start: str) -> None:
    story = STORIES[name]
    if sys.version_info[:2] < story.least:
        pytest.skip(f"needs Python {story.least}")
    agents = run(stage, story, start)
    said = [misses(story, summary(agent), verdict(stage, number)["incident"], agent.process.returncode)
            for number, agent in enumerate(agents)]
    if dump := os.environ.get("DUMP"):
        out = Path(dump); out.mkdir(exist_ok=True)
        (out / f"{name}-{start}.json").write_text(json.dumps({"misses": said, "summaries": [summary(a) for a in agents], "outputs": [a.output for a in agents], "verdicts": [verdict(stage, n) for n in range(2)]}))
    assert said == [[], []], "\n".join(summary(agents[0]))
