"""The example with FSDP2 does what its README says."""

from __future__ import annotations

import re

from rig import EXAMPLES, WARM, Rig


def test_a_worker_that_is_killed_is_replaced_and_training_goes_on(rig: Rig) -> None:
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", "--preload=torch,torch._dynamo"]
    agent = rig.run(*flags, EXAMPLES / "fsdp" / "train.py", "--epochs=1", "--sentences=640", env=WARM)
    agent.wait_for(r"step 4, epoch 0: loss")
    agent.kill_worker(1)
    assert agent.exit_code() == 0, agent.output  # two ranks may print into one line
    assert len(re.findall(r"rank \d goes on at step \d+, from memory", agent.output)) == 2
    assert len(re.findall("rank [01] is done after 20 steps", agent.output)) == 2
