"""The agent's part: variables for workers, the request for dumps, and the analysis in a process of its own.

And the worker's, where no NCCL group answers: a thread that writes a dump when the agent asks for one.

torch's variables: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html. What the user has set
stays. A request is any byte in the named pipe ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE`` + rank + ``.pipe``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from elastic_core import Assignment, hookimpl
from elastic_core.events import Event, Field, Level
from elastic_core.monitors import RunningRound

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILES = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"  # the new name of torch 2.9, and the old one
SIZES = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
RENAMED = (2, 9)  # since when a variable's old name leads to a warning
ENTRIES = 2000  # collectives that are remembered, torch's own default
DUMP_PREFIX, PIPE_PREFIX = "flight_recorder_", "dump_request_"  # in the folder of the round, before the rank
DUMP_SECONDS = 5.0  # a thread of an NCCL group looks once a second whether a dump is wanted
PEERS_SECONDS = 1.0  # for the dumps of other nodes, where they share the folder
ANALYSIS_SECONDS = 12.0  # most of it is the import of torch
LOOK_SECONDS = 0.05

elastic_hookspec_major = 2


@hookimpl
def elastic_worker_environment(assignment: Assignment) -> Mapping[str, str]:
    """Have the worker keep a flight recorder, and write its dumps into the folder of the round."""
    folder = Path(assignment.error_file).parent.parent
    found = variables(os.environ, folder, torch_version())
    if not takes_pipes(folder.parent):
        found.pop(PIPE, None)
    return found


@functools.cache
def takes_pipes(directory: Path) -> bool:
    """Return True if named pipes can be made here: mounted object stores have none, and without one a worker aborts."""
    probe = directory / f".elastic_pipe_{os.getpid()}"
    try:
        os.mkfifo(probe)
        os.unlink(probe)
    except OSError:
        return False
    return True


def variables(environ: Mapping[str, str], folder: Path, version: tuple[int, ...]) -> dict[str, str]:
    """Return the variables that are to be set, by torch's version; none that the user has set."""
    old = int(version < RENAMED)
    wanted = {
        FILES: str(folder / DUMP_PREFIX),
        SIZES: str(ENTRIES),
        (PIPE, PIPE): str(folder / PIPE_PREFIX),
        (ON_TIMEOUT, ON_TIMEOUT): "1",
    }
    return {names[old]: value for names, value in wanted.items() if environ.keys().isdisjoint(names)}


@functools.cache
def torch_version() -> tuple[int, ...]:
    """Return the first two numbers of the version of torch that is installed here, without importing it."""
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        found = None
    return RENAMED if found is None else (int(found[1]), int(found[2]))


@hookimpl
def elastic_round_starts(round: RunningRound) -> None:
    """Explain each new hang that elastic-hangs finds in this round."""
    told: list[object] = [None]

    def explain(report: Mapping[str, Any] | None) -> None:
        if report is None or not report["hang"] or told[0] == (what := (report["report"], report["step"])):
            return
        told[0] = what
        ranks = [worker.rank for worker in round.workers if worker.is_running]
        if ranks and (text := explain_hang(ranks, report["ranks"], round.directory)):
            lines = "\n".join(f"  {line}" for line in text.splitlines())
            fields: dict[str, Field] = {"round": round.number, "explanation": text}
            message = f"round {round.number}: why it hangs:\n{lines}"
            round.publish(Event("hang_explained", message, Level.WARNING, fields))
            round.explain(text)

    round.follow_answers("hang", explain)


def explain_hang(ranks: Collection[int], world_size: int, directory: Path) -> str | None:
    """Ask the workers of these ranks for dumps, and return in a few lines what torch's analysis says of them."""
    pipes = os.environ.get(PIPE) or str(directory / PIPE_PREFIX)
    prefix = next((value for name in FILES if (value := os.environ.get(name))), str(directory / DUMP_PREFIX))
    asked = {rank: prefix + str(rank) for rank in ranks if request(f"{pipes}{rank}.pipe")}
    if not asked:
        return None
    began = time.time()
    await_files(asked.values(), began, DUMP_SECONDS)
    peers = [prefix + str(rank) for rank in range(world_size) if rank not in asked]
    if any(os.path.exists(f"{pipes}{rank}.pipe") for rank in range(world_size) if rank not in ranks):
        await_files(peers, began - PEERS_SECONDS, PEERS_SECONDS)
    if not any(os.path.exists(path) for path in asked.values()):
        return f"the flight recorder of ranks {', '.join(map(str, sorted(asked)))} has not answered"
    return f"{analyse(prefix, world_size)}\nflight recorder dumps: {prefix}*"


def request(pipe: str) -> bool:
    """Ask for a dump by a byte in this named pipe; return whether a process reads it."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no process group has made it, or its process is gone
        return False
    try:
        return os.write(descriptor, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)


def await_files(paths: Collection[str], since: float, seconds: float) -> None:
    """Wait until all these files are newer than ``since``, seconds since the epoch, and grow no more."""
    deadline, sizes = time.monotonic() + seconds, [-1] * len(paths)
    while time.monotonic() < deadline:
        before, sizes = sizes, [_size(path, since) for path in paths]
        if sizes == before and all(size > 0 for size in sizes):
            return
        time.sleep(LOOK_SECONDS)


def _size(path: str, since: float) -> int:
    try:
        found = os.stat(path)
    except OSError:
        return 0
    return found.st_size if found.st_mtime >= since - 1.0 else 0  # the clock of files is coarse


def analyse(prefix: str, world_size: int) -> str:
    """Return what the analysis of the dumps says, or why there is none."""
    command = [sys.executable, "-m", "elastic_torch.flight_recorder.analysis", prefix, str(world_size)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANALYSIS_SECONDS,
            check=False,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"torch's analysis of the flight recorder did not end: {type(exc).__name__}"
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"torch's analysis of the flight recorder failed: {why[:200]}"
    return done.stdout.strip()


def answer_requests() -> bool:
    """Begin to answer in a worker, by a thread, once in a process; return whether it does.

    It does not where no agent asks, where torch has no recorder for this kind of group, or where a group answers by
    itself, which has made the pipe then. The thread takes the interpreter's lock, so a rank that holds it in native
    code does not answer.
    """
    import torch  # the agent has none

    pipe_prefix, file_prefix = os.environ.get(PIPE), next(filter(None, map(os.environ.get, FILES)), None)
    rank = os.environ.get("RANK", "0")
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if not pipe_prefix or not file_prefix or dump is None:
        return False
    pipe, file = f"{pipe_prefix}{rank}.pipe", f"{file_prefix}{rank}"
    try:
        os.mkfifo(pipe, 0o600)
        descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # for writing too, or a reader finds its end at once
    except OSError:
        return False
    threading.Thread(target=_serve, args=(descriptor, file, dump), name="elastic-flight-recorder", daemon=True).start()
    return True


def _serve(descriptor: int, file: str, dump: Callable[..., bytes]) -> None:
    while os.read(descriptor, 4096):
        with contextlib.suppress(Exception):  # a full disk, or a recorder that another version of torch changed
            content = dump(includeStackTraces=False)  # with them it imports half of torch, which takes many seconds
            with open(f"{file}.part", "wb") as part:
                part.write(content)
            os.replace(f"{file}.part", file)
