"""Twelve failures of jobs on two nodes, over every backend: each node names the first cause, in at most 15 lines.

``tests/data/failure_stories.md`` has the texts, beside torchrun's, and ``docs/failures.md`` a table of them.
``REWRITE_STORIES=1`` writes both anew with what Elastic prints, ``REWRITE_STORIES=torchrun`` also with what torchrun
prints for the same scripts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from failure_stories import STORIES, Story
from rig import PATIENCE, Agent, Rig, free_port, still_there

from elastic_causes.oom import find_counter

PAGE = Path(__file__).with_name("data") / "failure_stories.md"
TABLE_PAGE = Path(__file__).parents[1] / "docs" / "failures.md"
MOST_LINES = 15
MEMORY = 512 << 20
ELASTIC = [sys.executable, "-m", "elastic_core", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
REWRITE = os.environ.get("REWRITE_STORIES", "")

BACKENDS = ("file", "c10d", "redis", "etcd")  # with the first the page is written


@dataclass(frozen=True)
class Node:
    """One node of a job that has ended."""

    agent: Agent
    exit_code: int
    logs: Path

    @property
    def name(self) -> str:
        """The name that the agent gives this node."""
        match = re.search(r"\[elastic\] \S+ (.*): joining job", self.agent.output)
        assert match is not None, self.agent.output
        return match[1]

    @property
    def summary(self) -> list[str]:
        """The lines of its last message."""
        lines = self.agent.lines
        start = next((at for at, line in enumerate(lines) if "the job has failed" in line), None)
        assert start is not None, self.agent.output
        return [lines[start], *(line for line in lines[start + 1 :] if line.startswith("  |"))]

    def field(self, name: str) -> str:
        """One line of the summary, without its name; '' if there is none."""
        found = [line for line in self.summary if line.startswith(f"  |   {name:8}")]
        return found[0].removeprefix(f"  |   {name:8}") if found else ""

    @property
    def verdict(self) -> dict[str, Any]:
        """Its ``verdict.json``."""
        [file] = self.logs.glob("*/verdict.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def has_rank(self, rank: int) -> bool:
        """Return True if a rank was on this node."""
        return any(self.logs.glob(f"*/round_1/rank_{rank}"))


@contextmanager
def memory_cgroup(size: int) -> Iterator[Path]:
    """A cgroup below this process's own that has so many bytes of memory; empty again at its end."""
    counter = find_counter()
    assert counter.file is not None, "this system has no memory cgroup that can be read"
    directory = counter.file.parent / f"elastic-test-{uuid.uuid4().hex[:8]}"
    directory.mkdir()
    try:
        v2 = counter.file.name == "memory.events"
        (directory / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(size))
        yield directory
    finally:
        assert still_there(map(int, (directory / "cgroup.procs").read_text().split()), within=PATIENCE) == []
        directory.rmdir()


@contextmanager
def started(rig: Rig, story: Story, commands: list[list[str]], last: int) -> Iterator[list[Agent]]:
    """Start launchers of the story's script, each in a small cgroup where the story is about memory."""
    (rig.folder / "train.py").write_text(story.script)
    env = {"LAST": str(last), "OMP_NUM_THREADS": "1"}
    if story is not STORIES["oom"]:
        no_cores = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"]
        agents = []
        for command in commands:
            agents.append(rig.start([*no_cores, *command, "train.py"], env=env))
            if story is STORIES["agent"] and "--rdzv_backend=c10d" in command and len(agents) == 1:
                agents[0].wait_for("joining job")  # it hosts the store, and has rank 0, so that it is not killed
        yield agents
        return
    with memory_cgroup(MEMORY) as first, memory_cgroup(MEMORY) as second:
        enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"']
        agents = []
        for cgroup, command in zip((first, second), commands, strict=False):
            agents.append(rig.start([*enter, str(cgroup), *command, "train.py"], env=env))
        yield agents
        for agent in agents:
            agent.exit_code()


@contextmanager
def meeting_place(backend: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield an endpoint of a backend, and settings of ``--rdzv_conf``."""
    if backend == "file":
        yield f"{folder}/rdzv", []
    elif backend == "c10d":
        yield f"127.0.0.1:{free_port()}", []
    elif backend == "redis":
        from redis_servers import redis_server  # where core is tested alone, there is no such backend

        with redis_server(folder / "redis", durable=True) as server:
            yield server.endpoint, []
    else:
        from etcd_servers import running

        with running(folder / "etcd") as etcd:
            yield etcd.endpoint, ["durable=true"]


def run(rig: Rig, story: Story, per_node: int | None = None, backend: str = "file") -> list[Node]:
    """Run a story on two nodes; return those that have lived to its end, the one with rank 0 first."""
    per_node = per_node or story.per_node
    flags = ["--nnodes=2", f"--nproc_per_node={per_node}", f"--rdzv_backend={backend}", "--rdzv_id=job", "--tee=3"]
    with meeting_place(backend, rig.folder) as (endpoint, conf):
        if story is STORIES["agent"]:
            patience = 15 if backend == "c10d" else 6  # an agent that imports torch comes late
            conf = [*conf, f"join_timeout={patience}", "keep_alive_interval=1", "keep_alive_max_attempt=3"]
        flags += [f"--rdzv_endpoint={endpoint}", *([f"--rdzv_conf={','.join(conf)}"] if conf else [])]
        return run_nodes(rig, story, flags, last=2 * per_node - 1)


def run_nodes(rig: Rig, story: Story, flags: list[str], last: int) -> list[Node]:
    """Run a story on two nodes with these flags."""
    logs = [Path(f"logs{number}") for number in range(2)]
    commands = [[*ELASTIC, *flags, f"--log_dir={directory}"] for directory in logs]
    with started(rig, story, commands, last=last) as agents:
        if story is STORIES["agent"]:
            kill_agent(rig, agents)
        codes = [agent.exit_code() for agent in agents]
    nodes = [
        Node(agent, code, rig.folder / directory)
        for agent, code, directory in zip(agents, codes, logs, strict=True)
        if code != -signal.SIGKILL
    ]
    return sorted(nodes, key=lambda node: not node.has_rank(0))


def kill_agent(rig: Rig, agents: list[Agent]) -> None:
    """Kill the agent of the last ranks once all ranks train."""
    trains = re.compile(r"rank (\d) trains")
    assert rig.wait_until(lambda: sum(len(trains.findall(agent.output)) for agent in agents) == 4)
    [last] = [agent for agent in agents if "rank 3 trains" in agent.output]
    last.process.kill()


def masked(rig: Rig, nodes: list[Node], lines: list[str]) -> str:
    """A message without what differs from run to run."""
    text = "\n".join(line.rstrip() for line in lines)
    names = {node.name: f"node{number}" for number, node in enumerate(nodes)}
    lost = re.findall(r"missing: (.*)", text)
    names |= dict.fromkeys(lost, "node1")
    for name in sorted(names, key=len, reverse=True):  # "host (agent 2)" before "host"
        text = re.sub(rf"{re.escape(name)}(?! \(agent)", f"<{names[name]}>", text)
    text = re.sub(r"<(node\d)>", r"\1", text)
    text = re.sub(r"\[elastic\] \S+ ", "[elastic] 12:00:00 ", text)
    text = re.sub(r"pid \d+", "pid 4711", text)
    text = re.sub(r"thread 0x[0-9a-f]+", "thread 0x00007f3a5c1b2000", text)
    text = re.sub(r'"/\S+/lib/python3\.\d+/(\S+)", line \d+', r'"/usr/lib/python3.11/\1", line 519', text)
    text = re.sub(r"\d+\.\d s after its start", "0.1 s after its start", text)
    text = re.sub(r"logs\d/job_\w+", "logs/job_6e4bfe790b20", text)
    text = re.sub(r"(?<=after )\d+(?= s \(node0\))", "6", text)
    # Two agents on one machine may see from each other's slot that one is gone; on two machines they cannot.
    text = re.sub(r"no heartbeat for .*|its last process is gone", "no heartbeat for 3.0 s", text)
    if "torchvison" in text:  # some ranks are stopped before they fail
        text = re.sub(r"ends the job(; \d of 4 ranks failed alike)?", "ends the job; 3 of 4 ranks failed alike", text)
        text = re.sub(r"rank \d \(host node\d, local rank \d,", "rank 0 (host node0, local rank 0,", text)
        text = re.sub(r"rank_\d/stderr.log on node\d", "rank_0/stderr.log on node0", text)
    return text.replace(str(rig.folder), "/home/user")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STORIES)
def test_every_node_names_the_first_cause(rig: Rig, name: str, backend: str) -> None:
    story = STORIES[name]
    nodes = run(rig, story, backend=backend)
    assert len(nodes) == (1 if name == "agent" else 2)
    for node in nodes:
        assert len(node.summary) <= MOST_LINES
        assert node.exit_code == story.exit_code
        text = masked(rig, nodes, node.summary)
        fields = dict(re.findall(r"^  \|   (\w+) +(.*)$", text, re.MULTILINE))
        assert fields["what"] == story.what
        assert fields.get("error", "") == story.error
        assert fields.get("where", "") == story.where
        assert bool(story.hint) == ("hint" in fields)
        assert fields.get("hint", "").startswith(story.hint)
        incident = node.verdict["incident"]
        who = node.field("who")
        if name == "agent":
            assert who == f"node {incident['host']}, round 1"
        else:
            rank = incident["rank"] if story.rank is None else story.rank
            [host] = [other.name for other in nodes if other.has_rank(rank)]
            assert who.startswith(f"rank {rank} (host {host}, local rank {rank % story.per_node}, pid ")
            assert (incident["rank"], incident["host"]) == (rank, host)
        verdict = node.verdict
        assert (verdict["success"], verdict["exit_code"]) == (False, story.exit_code)
        assert verdict["requeue"] == (story.exit_code == 79)
        assert (incident["exception"], incident["class"]) == (story.exception, story.failure_class)
    texts = {masked(rig, nodes, node.summary).partition(": ")[2] for node in nodes}
    assert len(texts) == 1
    if backend == "file" or not REWRITE:
        on_the_page(name, masked(rig, nodes, nodes[0].summary), torchrun(rig, story))


@pytest.mark.variant
def test_a_node_whose_only_rank_has_exited_is_named(rig: Rig) -> None:
    nodes = run(rig, STORIES["early"], per_node=1)
    for node in nodes:
        assert node.exit_code == 1
        assert f"all workers of {nodes[1].name} had exited with code 0 before the other ranks" in node.summary[0]
        assert node.field("error") == "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer"


def test_the_core_dump_of_a_crash_is_named(rig: Rig) -> None:
    """If the kernel hands core dumps to a program, that program is named if it is systemd's."""
    (rig.folder / "train.py").write_text(STORIES["segv"].script)
    with_cores = ["sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh"]
    agent = rig.start([*with_cores, *ELASTIC, "--standalone", "train.py"], env={"LAST": "0"})
    assert agent.exit_code() == 1
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    told = re.findall(r"\| (core dump: .*)", agent.output)
    if not pattern.startswith("|"):
        [core] = told
        assert Path(core.removeprefix("core dump: ")).stat().st_size > 0
    else:
        assert bool(told) == ("systemd-coredump" in pattern)


# The page ------------------------------------------------------------------------------------------------------------

TABLE_HEAD = "| what happens | Elastic | torchrun |\n|---|---|---|\n"


def torchrun(rig: Rig, story: Story) -> str:
    """Return torchrun's output and end for a story on one node with two workers; '' unless it is recorded now."""
    if REWRITE != "torchrun":
        return ""
    workers = 8 if story.per_node > 2 else 2
    (rig.folder / "gradients").unlink(missing_ok=True)
    left: list[int] = []
    with started(rig, story, [[*TORCHRUN, f"--nproc_per_node={workers}"]], last=workers - 1) as [agent]:
        if story is STORIES["agent"]:
            agent.wait_for("trains", count=2)
            pids = list(agent.workers().values())
            agent.process.kill()
            left = still_there(pids, within=5.0)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        code = agent.exit_code()
    text = "\n".join(line.rstrip() for line in agent.lines).replace(str(rig.folder), "/home/user")
    text = re.sub(r"^([WEI])\d{4} [\d:.]+ +\d+ ", r"\g<1>1124 12:00:00.000000 4711 ", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=pid: )\d+|(?<=PID )\d+|(?<=process )\d+", "4711", text)
    text = re.sub(r"(time +: ).*", r"\g<1>2026-01-31_12:00:00", text)
    text = re.sub(r"(host +: ).*", r"\g<1>node0", text)
    text = text.replace(sys.prefix, "/opt/venv").strip()
    note = f"; {len(left)} workers go on without it" if left else ""
    return (
        f"<details>\n<summary>torchrun prints {len(text.splitlines())} lines, exit code {code}{note}</summary>\n\n"
        f"```text\n{text}\n```\n\n</details>\n"
    )


def section(page: str, name: str) -> str:
    """The page's section of a story; '' if it has none."""
    match = re.search(rf"^## {re.escape(STORIES[name].title)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return match[0] if match else ""


def row(name: str, text: str) -> str:
    """The table's row of a story, from its section."""
    story = STORIES[name]
    ours, _, theirs = text.partition("<details>")
    fields = dict(re.findall(r"^  \|   (\w+) +(.*)$", ours, re.MULTILINE))
    who = re.match(r"(rank \d) \(host (node\d)", fields["who"])
    said = ": ".join(part for part in (fields["what"], fields.get("error", "")) if part)
    where = f", at `{fields['where'].partition(': ')[0]}`" if "where" in fields else ""
    facts = dict(re.findall(r"^  (\w+) *: (.*)$", theirs.rpartition("Root Cause")[2], re.MULTILINE))
    blamed = "nothing"
    if facts:
        rank, code = int(facts["rank"].split()[0]), re.sub(r" *\(pid: \d+\) *", " ", facts["exitcode"]).strip()
        right = story.rank is None or rank == (5 if story.rank == 5 else 1)
        blamed = f"rank {rank}: exitcode {code}" + ("" if right else ", which is a consequence")
    place = f"{who[1]} on {who[2]}" if who is not None else "node1"
    return f"| {story.title} | {place}: {said}{where} | {blamed} |\n"


def on_the_page(name: str, summary: str, recorded: str) -> None:
    """Compare what Elastic has printed with the page, or write it there."""
    story, page = STORIES[name], PAGE.read_text()
    old = section(page, name)
    remark = f"{story.remark}\n\n" if story.remark else ""
    nodes = "the other node" if name == "agent" else "both nodes"
    _, start, end = old.partition("<details>")
    new = (
        f"## {story.title}\n\n{remark}```python\n{story.script}```\n\n"
        f"Elastic prints at the end on {nodes}, exit code {story.exit_code}:\n\n```text\n{summary}\n```\n\n"
        f"{recorded or start + end}"
    ).rstrip()
    if not REWRITE:
        assert new == old.rstrip()
        return
    page = page.replace(old.rstrip(), new) if old else f"{page.rstrip()}\n\n{new}\n"
    PAGE.write_text(page)
    before, head, after = TABLE_PAGE.read_text().partition(TABLE_HEAD)
    rows = "".join(row(each, text) for each in STORIES if (text := section(page, each)))
    rest = re.sub(r"^(\|.*\n)+", "", after)
    TABLE_PAGE.write_text(before + head + rows + rest)


def test_the_table_of_failures_shows_what_is_printed() -> None:
    page = PAGE.read_text()
    assert TABLE_HEAD + "".join(row(name, section(page, name)) for name in STORIES) + "\n" in TABLE_PAGE.read_text()
