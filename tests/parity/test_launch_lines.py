"""Public launch lines of torchrun: workers see the same under ``elastic run``, or the page says what and why.

Lines that torchrun's parser takes for the same share a run; ours must take them for the same, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_lines import GENERAL, LAUNCH, LINES, Line, table
from rig import WORKERS, free_port
from scaled_lines import SCRIPT, ScaledLine, scale
from torch.distributed.run import get_args_parser

from elastic_core.cli.run import RunCommand
from elastic_core.config.run import Flags

pytestmark = pytest.mark.timeout(300)  # the first line waits until torch is imported

HARNESS = Path(__file__).parents[1] / "harness"
PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "launch_lines.md"
PATIENCE = 100.0
OURS = ("PET_", "ELASTIC_", "SLURM_", "TORCHELASTIC_", "OMP_", "PYTEST_", "MASTER_")
OURS_IN_WORKERS = "ELASTIC_", "STAND_IN_", "TORCH_FR_", "TORCH_NCCL_D"
"""The beginnings of what Elastic adds; the last two are the flight recorder's, by elastic-torch."""
BASE = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
NAMES_OF_THIS_HOST = {"localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()}
NEW_ID = re.compile(r"[0-9a-f]{8}((-[0-9a-f]{4}){3}-[0-9a-f]{12})?")  # ours is the shorter

Facts = dict[str, Any]


def meaning(line: ScaledLine) -> str:
    """Equal for lines that torchrun takes for the same."""
    flags = [word for word in plain(line) if word != "--use_env"]
    read = vars(get_args_parser().parse_args(flags))
    read["max_restarts"] = read["max_restarts"] if "--max" in " ".join(flags) else "the launcher's default"
    read["nnodes"] = "1" if read["nnodes"] == "1:1" else read["nnodes"]
    read["local_rank"] = line.launcher == LAUNCH and "--use_env" not in line.flags
    return json.dumps([read, line.environ, line.nodes])


def plain(line: ScaledLine) -> list[str]:
    """The flags as they may be parsed."""
    return [word.replace("{port}", "1").replace("{node}", "0") for word in line.flags]


def ours(line: ScaledLine) -> Flags:
    """Return the flags that ``elastic run`` reads."""
    found: list[Flags] = []

    def keep(**values: Any) -> int:
        found.append(Flags(**values))
        return 0

    RunCommand(keep).main([*launchers_flags(line.launcher == LAUNCH), *plain(line)], standalone_mode=False)
    return replace(found[0], node_rank=found[0].node_rank or 0, master_addr=found[0].master_addr or "127.0.0.1")


def launchers_flags(launch: bool) -> list[str]:
    """Return the flags that ``elastic exec`` puts before those of ``python -m torch.distributed.launch``."""
    return ["--pass_local_rank"] if launch else []


RUNS: dict[str, ScaledLine] = {}
for each in LINES:
    RUNS.setdefault(meaning(scale(each)), scale(each))


class Bench:
    """Runs lines under both launchers, in a folder with the stand-in and some input."""

    def __init__(self, folder: Path, torchruns: subprocess.Popen[str]) -> None:
        self._folder, self._torchruns = folder, torchruns
        self._seen: dict[str, tuple[list[Facts], list[Facts]]] = {}

    def seen(self, run: str) -> tuple[list[Facts], list[Facts]]:
        """Return the facts of each rank under torchrun, and under ``elastic run``."""
        if run not in self._seen:
            number, line = len(self._seen), RUNS[run]
            self._seen[run] = (
                self._collect(self._folder / f"torchrun-{number}", line, self._run_torchruns),
                self._collect(self._folder / f"elastic-{number}", line, run_agents),
            )
        return self._seen[run]

    def _collect(self, views: Path, line: ScaledLine, run: Any) -> list[Facts]:
        views.mkdir()
        port = str(free_port())
        nodes: list[dict[str, Any]] = []
        for node in range(line.nodes):

            def told(text: str, node: int = node) -> str:
                return text.replace("{port}", port).replace("{node}", str(node))

            nodes.append(
                {
                    "launch": line.launcher == LAUNCH,
                    "arguments": [told(word) for word in line.flags],
                    "environment": {**BASE, **{k: told(v) for k, v in line.environ}, "STAND_IN_VIEWS": str(views)},
                    "directory": str(self._folder),
                    "input": str(self._folder / "input"),
                    "output": f"{views}.{node}",
                }
            )
        codes = run(nodes)
        said = "\n".join(Path(node["output"]).read_text(errors="replace") for node in nodes)
        assert codes == [0] * len(nodes), said
        return [facts((views / str(rank)).read_text(), port) for rank in range(len(list(views.iterdir())))]

    def _run_torchruns(self, nodes: list[dict[str, Any]]) -> list[int]:
        assert self._torchruns.stdin is not None
        assert self._torchruns.stdout is not None
        self._torchruns.stdin.write(json.dumps(nodes) + "\n")
        self._torchruns.stdin.flush()
        codes: list[int] = json.loads(self._torchruns.stdout.readline())
        return codes


def run_agents(nodes: list[dict[str, Any]]) -> list[int]:
    """Run ``elastic run`` on each node; the exit codes."""
    agents = []
    for node in nodes:
        passed = launchers_flags(node["launch"])
        with open(node["input"]) as stdin, open(node["output"], "w") as output:
            agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", "elastic_core", "run", *passed, *node["arguments"]],
                    cwd=node["directory"],
                    env={**node["environment"], "PET_WARM_START": "0"},
                    stdin=stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        return [agent.wait(PATIENCE) for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


def facts(view: str, port: str) -> Facts:
    """Return a worker's facts, each variable by itself, without those that differ in each run or everywhere."""
    found: dict[str, Any] = json.loads(view.replace(port, "{port}"))
    environment = found.pop("environment")
    found |= {
        name: value
        for name, value in environment.items()
        if BASE.get(name) != value and not name.startswith(OURS_IN_WORKERS) and name != "PET_WARM_START"
    }
    for name in ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_USE_AGENT_STORE"):
        assert name in GENERAL
        found.pop(name, None)
    if found["MASTER_PORT"].isdigit():
        found["MASTER_PORT"] = "a free port"
    if found["MASTER_ADDR"] in NAMES_OF_THIS_HOST:
        found["MASTER_ADDR"] = "this host"
    if NEW_ID.fullmatch(found["TORCHELASTIC_RUN_ID"]):
        found["TORCHELASTIC_RUN_ID"] = "a new id"
    return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench; its torchruns end with it."""
    folder = tmp_path_factory.mktemp("launch_lines")
    shutil.copy(WORKERS / SCRIPT, folder)
    (folder / "input").write_text("typed\n")
    with subprocess.Popen(
        [sys.executable, str(HARNESS / "torchruns.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=BASE,
    ) as torchruns:
        yield Bench(folder, torchruns)
        torchruns.kill()  # its own end would take seconds


@pytest.mark.everyday(every=3)
@pytest.mark.parametrize("line", LINES, ids=[line.seen for line in LINES])
def test_workers_see_what_they_see_under_torchrun(bench: Bench, line: Line) -> None:
    scaled = scale(line)
    run = meaning(scaled)
    assert ours(scaled) == ours(RUNS[run])
    differing = set()
    theirs, mine = bench.seen(run)
    assert len(theirs) == len(mine)
    for under_torchrun, under_elastic in zip(theirs, mine, strict=True):
        if (under_torchrun["TORCHELASTIC_MAX_RESTARTS"], under_elastic["TORCHELASTIC_MAX_RESTARTS"]) == ("0", "3"):
            under_elastic = {**under_elastic, "TORCHELASTIC_MAX_RESTARTS": "0"}
        if (under_torchrun["TORCHELASTIC_RUN_ID"], under_elastic["TORCHELASTIC_RUN_ID"]) == ("none", "a new id"):
            under_elastic = {**under_elastic, "TORCHELASTIC_RUN_ID": "none"}
        names = under_torchrun.keys() | under_elastic.keys()
        differing |= {name for name in names if under_torchrun.get(name) != under_elastic.get(name)}
    assert differing == set(line.differs), (theirs, mine)


def test_the_page_has_every_line_and_every_reason() -> None:
    page = PAGE.read_text()
    assert table() in page
    for name, why in GENERAL.items():
        assert f"| `{name}` | {why} |" in page
