"""The flight recorder: torch's dumps of gloo groups, asked for by a pipe as NCCL groups are, and torch's analysis."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_core.events import Event
from elastic_core.monitors import RunningRound, WorkerView
from elastic_torch.flight_recorder import plugin
from elastic_torch.flight_recorder.analysis import analyse, read

RANK_1 = {
    "comes later": "pass",
    "has another collective": "dist.broadcast(torch.ones(2), 0, async_op=True)",
}
JOB = """
import os, sys
import torch, torch.distributed as dist
import elastic_core
elastic_core.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(2))
if dist.get_rank() == 1:
    {rank_1}
else:
    dist.all_reduce(torch.ones(2), async_op=True)
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize("case", RANK_1)
def test_the_collective_and_the_rank_are_named(case: str, tmp_path: Path) -> None:
    ranks: dict[int, subprocess.Popen[bytes]] = {}
    names = plugin.variables({}, tmp_path, plugin.torch_version())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    script = JOB.format(rank_1=RANK_1[case])
    try:
        for rank in range(2):
            ranks[rank] = subprocess.Popen(
                [sys.executable, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **where, **names, "RANK": str(rank)},
            )
        for process in ranks.values():
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        said = plugin.explain_hang([*ranks], 2, tmp_path)
    finally:
        for process in ranks.values():
            process.kill()
            process.communicate()
    expected = {
        "comes later": "gloo:all_reduce number 4 of group 0:default_pg: rank 0 waits in it, rank 1 has not come to it "
        "(but to gloo:all_reduce number 3)",
        "has another collective": "gloo:all_reduce number 4 of group 0:default_pg: rank 1 is in gloo:broadcast instead",
    }[case]
    assert said == f"{expected}\nflight recorder dumps: {tmp_path / plugin.DUMP_PREFIX}*"


def test_a_job_without_a_process_group_is_asked_nothing(tmp_path: Path) -> None:
    assert plugin.explain_hang([0], 1, tmp_path) is None


def test_a_pipe_that_no_process_reads_is_no_recorder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{plugin.PIPE_PREFIX}0.pipe")
    assert plugin.explain_hang([0], 1, tmp_path) is None


def test_a_recorder_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "DUMP_SECONDS", 0.2)
    os.mkfifo(pipe := tmp_path / f"{plugin.PIPE_PREFIX}0.pipe")
    reader = os.open(pipe, os.O_RDWR)
    try:
        said = plugin.explain_hang([0], 1, tmp_path)
    finally:
        os.close(reader)
    assert said == "the flight recorder of ranks 0 has not answered"


def test_variables_that_the_user_has_set_stay(tmp_path: Path) -> None:
    own = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine_", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert plugin.variables(own, tmp_path, (2, 13)) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "dump_request_"),
    }
    assert set(plugin.variables({}, tmp_path, (2, 8))) == {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
    }


def test_a_place_without_named_pipes_is_given_to_no_worker(tmp_path: Path) -> None:
    assert plugin.takes_pipes(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not plugin.takes_pipes(Path("/proc/self"))


def test_a_torn_dump_leaves_those_of_other_ranks(tmp_path: Path) -> None:
    whole = pickle.dumps({"entries": [], "version": "2.10", "pg_config": {}})
    for rank, text in enumerate([whole, whole[:-9], pickle.dumps({"entries": []}), pickle.dumps([])]):
        (tmp_path / f"d{rank}").write_bytes(text)
    assert list(read(str(tmp_path / "d"), 4)) == ["d0"]


def entry(number: int, name: str = "nccl:all_reduce", state: str = "completed") -> dict[str, Any]:
    """A record as NCCL's, whose dumps name the ranks of a group."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": number,
        "input_sizes": [[2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[2]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [],
    }


def write(folder: Path, rank: int, count: int) -> None:
    """A dump of a rank that has come to so many collectives."""
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    entries = [entry(number, state="completed" if number < 5 else "started") for number in range(1, count + 1)]
    dump = {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": entries}
    (folder / f"r_{rank}").write_bytes(pickle.dumps(dump))


def test_a_node_without_the_dumps_of_others_says_so_and_blames_none(tmp_path: Path) -> None:
    for rank, count in ((0, 5), (1, 4)):
        write(tmp_path, rank, count)
    lines = analyse(str(tmp_path / "r_"), 4)
    assert lines == [
        "the newest of rank 0 in group 0 is nccl:all_reduce number 5",
        "the newest of rank 1 in group 0 is nccl:all_reduce number 4",
        "there is no dump here of ranks 2, 3",
    ]


def test_a_rank_that_is_behind_is_named_in_dumps_as_of_nccl(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, rank, 4 if rank == 2 else 5)
    assert analyse(str(tmp_path / "r_"), 4) == [
        "nccl:all_reduce number 5 of group 0:default_pg: ranks 0, 1, 3 wait in it, rank 2 has not come to it "
        "(but to nccl:all_reduce number 4)"
    ]


def test_a_file_that_is_no_dump_is_not_read_and_no_code_in_it_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "r_0").write_bytes(pickle.dumps(Evil(str(marker))))
    (tmp_path / "r_1").write_bytes(b"half a du")
    with pytest.raises(ValueError, match="holds no readable dump"):
        analyse(str(tmp_path / "r_"), 2)
    assert not marker.exists()


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_each_new_report_of_a_hang_is_explained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Event] = []
    look = [WorkerView(rank, rank, 10 + rank, code, is_over=False) for rank, code in ((0, None), (1, 1))]
    round = RunningRound(3, "run", ["n"], tmp_path, publish=published.append, look=lambda: look)
    asked: list[object] = []

    def explain(ranks: list[int], world_size: int, directory: Path) -> str:
        asked.append((ranks, world_size, directory))
        return "all_reduce: rank 1 is late"

    monkeypatch.setattr(plugin, "explain_hang", explain)
    plugin.elastic_round_starts(round)
    [(name, take)] = round.callbacks.followers
    assert name == "hang"
    report = {"hang": True, "report": "rank 1 is in f", "step": 8, "ranks": 4}
    for found in (None, {**report, "hang": False}, report, report):
        take(found)
    assert asked == [([0], 4, tmp_path)]
    assert [event.message for event in published] == ["round 3: why it hangs:\n  all_reduce: rank 1 is late"]
    assert round.explanations == ["all_reduce: rank 1 is late"]
