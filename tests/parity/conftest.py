"""The same program fresh and warm, and what each worker made of it.

A program runs twice at the same time: with ``--no_warm_start``, and forked from a fork server that has imported a
witness. Each life of each rank writes a report (``scripts/tell.py``), which also says whether the witness was there: a
warm start that quietly became a fresh one would compare well with anything. What must differ between two runs of one
command (addresses, ports, the run's id, each side's own folder) is replaced by its name; everything else has to be
equal.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rig import PATIENCE, Agent, Rig

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
JOB = "parity"
STDLIB = ("json", "logging", "multiprocessing", "random", "tempfile", "threading", "uuid")
"""The imports of a torch-free fork server, besides the witness: modules that have a state of their own."""
WITNESS = "parity_witness"
FACTS = [
    "stack",
    "interpreter",
    "program",
    "paths",
    "text",
    "descriptors",
    "signals",
    "process",
    "threads",
    "environment",
    "language",
    "libraries",
]
"""The groups in which ``scripts/facts.py`` tells what it sees; each is a case for tests that take a ``fact``."""
NAMES = (
    (re.compile(rf"\b{JOB}_[0-9a-f]{{12}}\b"), f"{JOB}_RUN"),
    (re.compile(r"\b0x[0-9a-f]+\b"), "0xADDRESS"),
    (re.compile(r'("MASTER_PORT": ")\d+'), r"\1PORT"),
    (re.compile(r'("TORCHELASTIC_ERROR_FILE": ")[^"]*'), r"\1PATH"),
    (re.compile(r'("TORCH_(?:FR_DUMP_TEMP_FILE|NCCL_DEBUG_INFO_\w+)": ")[^"]*'), r"\1PATH"),
    (re.compile(r'("ELASTIC_RUN_UID": ")[^"]*'), r"\1UID"),
    (re.compile(r'("TORCHELASTIC_USE_AGENT_STORE": ")\w+'), r"\1HOSTED"),
)
"""Values that differ in any two runs, and their placeholders."""


class Start(enum.Enum):
    """The way in which the workers of a run start."""

    FRESH = "fresh"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class Life:
    """One life of one rank.

    Attributes:
        report: What it said of itself; whether it was forked is not in here.
        warm: Whether it found the witness; None if it said nothing.
        stdout: Its output, where the job redirects it to files.
        stderr: The same.
        exit_code: With which it failed, negative for a signal; 0 if it did not.
    """

    report: Mapping[str, Any]
    warm: bool | None
    stdout: str
    stderr: str
    exit_code: int

    @property
    def ending(self) -> dict[str, object]:
        """The end of the life, and its output."""
        return {"exit code": self.exit_code, "stdout": self.stdout, "stderr": self.stderr}


@dataclass(frozen=True, slots=True)
class Job:
    """One side: every life by (rank, life), in that order, and what its agent printed."""

    start: Start
    exit_code: int
    lives: Mapping[tuple[int, int], Life]
    output: str

    def report(self, rank: int = 0, life: int = 0) -> Mapping[str, Any]:
        """Return the report of one life."""
        return self.lives[rank, life].report


@dataclass(frozen=True, slots=True)
class Pair:
    """The same command, both ways."""

    fresh: Job
    warm: Job

    def __iter__(self) -> Iterator[Job]:
        return iter((self.fresh, self.warm))

    def assert_equal(self, *names: str) -> None:
        """Check that the reports of all lives are equal under these names; show only the differences.

        Without names everything is compared, and with it how the lives ended and what they printed.
        """
        fresh, warm = (
            {
                place: {name: life.report.get(name) for name in names} if names else {**life.report, **life.ending}
                for place, life in job.lives.items()
            }
            for job in self
        )
        told = {name for life in fresh.values() for name, value in life.items() if value is not None}
        assert fresh
        assert told >= {*names}, f"nobody told of {names}:\n{self.fresh.output}"
        assert not (found := list(differences(fresh, warm))), "\n".join(["fresh and warm differ:", *found])


class Parity:
    """Runs programs both ways.

    Args:
        folder: For what the runs leave.
        rig: Starts the agents, in the folder of the scripts.
    """

    def __init__(self, folder: Path, rig: Rig) -> None:
        self.folder, self.scripts = folder, SCRIPTS
        self._rig = rig
        self._count = 0

    def run(self, *arguments: object, **options: Any) -> Pair:
        """Run a program fresh and warm, and wait for both; the arguments are those of :meth:`start`."""
        return self.start(*arguments, **options)()

    def start(
        self,
        *arguments: object,
        preload: Sequence[str] = STDLIB,
        env: Mapping[str, str] | None = None,
        python: Sequence[str] = (sys.executable,),
        flags: Sequence[str] = ("--redirects=3",),
        silent: bool = False,
        fallback: bool = False,
    ) -> Callable[[], Pair]:
        """Start a program fresh and warm; what is returned waits for both, and may be called again.

        Args:
            arguments: The program and its arguments, and flags of its kind before it.
            preload: What the fork server imports, besides the witness.
            env: Added to the environment of the agents.
            python: Starts the agents' interpreter.
            flags: Those of ``elastic run`` that are not about the start.
            silent: The program does not get as far as a report.
            fallback: The warm run is expected to start fresh, having found a reason.
        """
        self._count += 1
        folders = {start: self.folder / f"{self._count}" / start.value for start in Start}
        agents = {}
        for start, folder in folders.items():
            folder.mkdir(parents=True)
            places = ("--event_log_handler=console", f"--log_dir={folder / 'logs'}", *flags)
            command = [*python, *command_of(start, (*preload, WITNESS), *places, *arguments)]
            search = os.pathsep.join(filter(None, [str(HERE / "preloaded"), (env or {}).get("PYTHONPATH")]))
            own = {"PARITY_REPORTS": str(folder), "PYTHONPATH": search}
            agents[start] = self._rig.start(command, env={**(env or {}), **own})

        @functools.cache
        def gather() -> Pair:
            jobs = {start: _job(start, agent, folders[start]) for start, agent in agents.items()}
            for job in jobs.values():
                expected = job.start is Start.WARM and not fallback
                was = {key: life.warm for key, life in job.lives.items() if not silent}
                assert set(was.values()) <= {expected}, f"{job.start.value}, but (rank, life) {was}:\n{job.output}"
            return Pair(jobs[Start.FRESH], jobs[Start.WARM])

        return gather


def command_of(start: Start, preload: Sequence[str], *arguments: object) -> list[str]:
    """Return the arguments after ``python`` to run a job with this start; the only place that knows the flags."""
    how = {Start.FRESH: ["--no_warm_start"], Start.WARM: ["--warm_start", f"--preload={','.join(preload)}"]}
    return ["-m", "elastic_core", "run", f"--rdzv_id={JOB}", *how[start], *map(str, arguments)]


def differences(fresh: Any, warm: Any, where: str = "") -> Iterator[str]:
    """Yield the differences of two reports, a line each."""
    if isinstance(fresh, dict) and isinstance(warm, dict):
        for key in [*fresh, *(key for key in warm if key not in fresh)]:
            yield from differences(fresh.get(key, "(nothing)"), warm.get(key, "(nothing)"), f"{where} {key}")
        if list(fresh) != list(warm) and fresh.keys() == warm.keys():
            yield f"{where}: in the order {list(fresh)}, but {list(warm)}"
    elif fresh != warm:
        yield f"{where}: {fresh!r}, but {warm!r}"


def _job(start: Start, agent: Agent, folder: Path) -> Job:
    """Wait for one side's end, and gather what it left."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.process.wait(PATIENCE)  # longer than others get: both sides run at once, and some of them compile
    exit_code = agent.exit_code()
    codes = {}
    for line in agent.lines:
        if line.startswith('{"time"') and (event := json.loads(line))["name"] == "worker_failed":
            codes[event["fields"]["rank"], event["fields"]["round"] - 1] = event["fields"]["exit_code"]
    lives = {}
    for path in folder.glob("logs/*/round_*/rank_*"):
        rank, life = int(path.name.removeprefix("rank_")), int(path.parent.name.removeprefix("round_")) - 1
        report: dict[str, Any] = {}
        if (told := folder / f"{rank}.{life}.jsonl").exists():
            for line in told.read_text().splitlines():
                report |= json.loads(_named(line, folder))
        stdout, stderr = (
            _named(file.read_text(errors="replace"), folder) if (file := path / name).exists() else ""
            for name in ("stdout.log", "stderr.log")
        )
        warm = report.pop("warm", None)
        lives[rank, life] = Life(report, warm, stdout, stderr, codes.get((rank, life), 0))
    return Job(start, exit_code, dict(sorted(lives.items())), agent.output)


def _named(text: str, folder: Path) -> str:
    """A text without what no two runs have in common."""
    text = text.replace(str(folder), "FOLDER")
    for pattern, name in NAMES:
        text = pattern.sub(name, text)
    return text


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fact" in metafunc.fixturenames:
        metafunc.parametrize("fact", FACTS)


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    """Runs programs both ways; none of their processes may outlive them."""
    folder = tmp_path_factory.mktemp("parity")
    rig = Rig(SCRIPTS)
    yield Parity(folder, rig)
    left = rig.close()
    assert not left, "processes that outlived their agents: " + "; ".join(left)
