"""A rank that its peers wait for in vain is asked where it is before the round is stopped; on two nodes of two ranks.

Its peers fail by a timeout of a collective, of the store, of NCCL's watchdog or of a barrier, or in their own teardown.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rig import WARM, Rig

HEAD = """\
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
def stuck():
    signal.pause()
def load():
    time.sleep(1000)
"""
GROUP = 'dist.init_process_group("gloo", timeout=timedelta(seconds={}))\ndist.barrier()\n'
FAILS_AND_LINGERS = """\
if rank == 3:
    try:
        raise ValueError("the true failure")
    finally:
        dist.destroy_process_group()
        load()
"""
WITHOUT_A_GROUP = """\
if rank == 3:
    open("there", "w").close()
    load()
while not os.path.exists("there"):
    time.sleep(0.01)
"""
WATCHDOG = """\
time.sleep(1)
print("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600029 "
      "milliseconds before timing out.", file=sys.stderr)
print("terminate called after throwing an instance of 'c10::DistBackendError'\\n  what():  [PG ID 0 PG GUID 0] Process "
      "group watchdog thread terminated with exception: Watchdog caught collective operation timeout", file=sys.stderr)
sys.stderr.flush()
os.abort()
"""
TRAINER = """\
class Trainer:
    def train(self):
        try:
            dist.all_reduce(torch.ones(4))
        except Exception:
            self.checkpoint.close()
Trainer().train()
"""
LOADS = r"rank 3 is in load \(train.py:9\)"
STORIES = {
    "a collective": (GROUP.format(4) + "if rank == 3: load()\ndist.all_reduce(torch.ones(4))", LOADS),
    "a process in pause()": (
        GROUP.format(4) + "if rank == 3: stuck()\ndist.all_reduce(torch.ones(4))",
        "rank 3: no Python stack: sleeping, in .*pause",
    ),
    "NCCL's watchdog": (WITHOUT_A_GROUP + WATCHDOG, LOADS),
    "the store": ('if rank == 3: load()\ndist.init_process_group("gloo", timeout=timedelta(seconds=4))', LOADS),
    "a monitored barrier": (
        GROUP.format(20) + "if rank == 3: load()\ndist.monitored_barrier(timeout=timedelta(seconds=3))",
        LOADS,
    ),
    "a teardown that waits": (GROUP.format(20) + FAILS_AND_LINGERS + "dist.all_reduce(torch.ones(4))", LOADS),
    "a teardown that fails": (GROUP.format(20) + FAILS_AND_LINGERS + TRAINER, LOADS),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_summary_says_where_the_rank_is_that_the_others_waited_for(
    rig: Rig, file_rendezvous: list[str], story: str
) -> None:
    program, where = STORIES[story]
    Path(rig.folder, "train.py").write_text(HEAD + program)
    command = ["--nnodes=2", "--nproc_per_node=2", "--max_restarts=0", *file_rendezvous, "train.py"]
    agents = [rig.run(*command, env=WARM) for _ in range(2)]
    for agent in agents:
        assert agent.exit_code() == 79, agent.output
        assert re.search("what .*, which follows from the loss of a peer", agent.output), agent.output
        assert re.search(rf"others  (.*; )?{where}(;|$)", agent.output, re.MULTILINE), agent.output


def test_the_line_of_a_restart_says_it_too(rig: Rig) -> None:
    program = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1': sys.exit()\n" + STORIES["a collective"][0]
    Path(rig.folder, "train.py").write_text(HEAD + program)
    agent = rig.run("--nproc_per_node=4", "--max_restarts=1", "train.py", env=WARM)
    assert agent.exit_code() == 0, agent.output
    agent.wait_for(rf"round 2: .*Timed out waiting .*; {LOADS}")
