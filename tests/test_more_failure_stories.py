"""Failures that users of training programs report: every node of two names the rank, the cause and the line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from more_failure_stories import STORIES, Story
from stage import COLD, WARM, Agent, Stage, over

NO_CORES = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"]
WRONG: Mapping[str, str] = {}
"""What is not yet as it should be, by the story's name."""


def cases() -> Iterator[object]:
    """Each story with the starts that are tried at once: both, unless it needs torch, whose imports take seconds."""
    for name, story in STORIES.items():
        marks = [pytest.mark.skipif(sys.version_info < story.least, reason=f"needs Python {story.least}")]
        if name in WRONG:
            marks.append(pytest.mark.xfail(reason=WRONG[name], strict=True))
        if not story.torch:
            yield pytest.param(name, ("cold", "warm"), id=name, marks=marks)
            continue
        often, seldom = ("warm", "cold") if story.torch > 2 else ("cold", "warm")  # the one with fewer imports
        yield pytest.param(name, (often,), id=f"{name}-{often}", marks=marks)
        yield pytest.param(name, (seldom,), id=f"{name}-{seldom}", marks=[*marks, pytest.mark.variant])


def launch(stage: Stage, story: Story, start: str) -> list[Agent]:
    """Start a story on two nodes."""
    folder = stage.folder / start
    folder.mkdir()
    for name, text in {story.program: story.script, **story.files}.items():
        (folder / name).write_text(text)
    (folder / story.program).chmod(0o755)
    flags = ["--nnodes=2", "--nproc_per_node=2", *over("file", folder / "rdzv"), "--tee=3"]
    flags += ["--no_python", f"./{story.program}"] if story.no_python else [story.program]
    env = {"LAST": "3", "OMP_NUM_THREADS": "1", **(WARM if start == "warm" else COLD)}
    env["PET_PRELOAD"] = "torch" if story.torch else "json"
    command = [*NO_CORES, "env", "-C", str(folder), sys.executable, "-m", "elastic_core", "run"]
    return [stage.start([*command, f"--log_dir=logs{number}", *flags], env=env) for number in range(2)]


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


def misses(story: Story, lines: list[str], verdict: Mapping[str, Any], exit_code: int) -> list[str]:
    """What a node has said otherwise than it should."""
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


@pytest.mark.parametrize(("name", "starts"), cases())
def test_every_node_names_rank_cause_and_line(stage: Stage, name: str, starts: tuple[str, ...]) -> None:
    story = STORIES[name]
    jobs = {start: launch(stage, story, start) for start in starts}
    if story.outside:
        for agents in jobs.values():
            interfere(stage, agents, story.outside)
    wrong: dict[str, list[str]] = {}
    for start, agents in jobs.items():
        for number, agent in enumerate(agents):
            code = agent.exit_code()
            [file] = (stage.folder / start).glob(f"logs{number}/*/verdict.json")
            if found := misses(story, summary(agent), json.loads(file.read_text()), code):
                wrong[f"{start}, node {number}"] = [*found, "in:", *summary(agent)]
            if "DUMP" in os.environ:
                Path(os.environ["DUMP"]).mkdir(exist_ok=True)
                Path(os.environ["DUMP"], f"{name}-{start}-{number}.json").write_text(json.dumps({"misses": found, "summary": summary(agent), "output": agent.output, "verdict": json.loads(file.read_text())}))
    assert not wrong
