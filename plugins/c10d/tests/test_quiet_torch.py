from __future__ import annotations

import os
import subprocess
import sys

import pytest

WAITS = """
from datetime import timedelta
{before}
from elastic_rdzv_c10d.quiet_torch import DistStoreError, TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True)
client = TCPStore("127.0.0.1", store.port, is_master=False)
try:
    client.wait(["missing"], timedelta(seconds=0.1))
except DistStoreError:
    print("timed out")
"""


@pytest.mark.parametrize("before", ["", "import torch"], ids=["first import", "torch was imported before"])
def test_a_wait_that_times_out_writes_no_warning(before: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    command = [sys.executable, "-c", WAITS.format(before=before)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("timed out\n", "")
