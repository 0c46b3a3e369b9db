"""Runs a training script, whose rank 1 is killed after a step of its optimizer: in the first round, and only then.

    hurt.py STEP SCRIPT [ARGUMENTS]

The kill comes within the script's own step, before it could say that it is done, so a script that lost more than that
one step, or none, shows where it goes on.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

if __name__ == "__main__":
    step, script = int(sys.argv[1]), sys.argv[2]
    if (os.environ["ELASTIC_ROUND"], os.environ["RANK"]) == ("1", "1"):
        steps = count(1)

        def hurt(*_: Any) -> None:
            """Be killed, after so many steps."""
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        register_optimizer_step_post_hook(hurt)
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
