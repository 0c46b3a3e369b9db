"""A TorchX job on this host, below `elastic exec`: `make tox ARGS="-e torchx"`. TorchX needs an old urllib3."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rig import WARM, WORKERS, Rig


def test_a_ddp_job_of_torchx_recovers_a_killed_worker(rig: Rig) -> None:
    torchx = [str(Path(sys.executable).with_name("torchx")), "run", "--scheduler=local_cwd"]
    job = ["dist.ddp", "-j", "1x2", "--script", str(WORKERS / "summing.py"), "--", "torch"]
    command = [sys.executable, "-m", "elastic_core", "exec", *torchx, *job]
    agent = rig.start(command, env={**WARM, "PET_MAX_RESTARTS": "1"})
    agent.wait_for("elastic: torchrun → elastic run, started by torchx run")
    agent.wait_for('"met".*"life": 0, "total": 2.0, "ours": true')
    os.kill(agent.workers()[1], signal.SIGKILL)
    assert agent.exit_code() == 0
    assert '"finished", "rank": 0' in agent.output
