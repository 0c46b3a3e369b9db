"""The name by which training loops know graceful stops; what it does is tested with core, and in whole jobs."""

from __future__ import annotations

import subprocess
import sys

import elastic_torch
from elastic_core.worker import graceful_stop


def test_it_is_cores() -> None:
    assert elastic_torch.should_checkpoint is graceful_stop.should_checkpoint


def test_it_needs_no_torch() -> None:
    code = "import sys, elastic_torch; elastic_torch.should_checkpoint(1); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
