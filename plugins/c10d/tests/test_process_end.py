"""torch's calls at the end of an agent: they go on in threads that nothing can end."""

from __future__ import annotations

import subprocess
import sys

WAITING = """
import sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
from elastic_core.host.own_process import end_before_threads
store = TCPStore("127.0.0.1", 0, is_master=True)
sys.modules["late"] = type("Late", (), {"__del__": lambda self, sleep=time.sleep: sleep(10.0)})()
threading.Thread(target=store.wait, args=(["key"], timedelta(seconds=5.0)), daemon=True).start()
time.sleep(0.1)
end_before_threads(75)
"""


def test_a_call_that_returns_while_the_interpreter_is_finalized_does_not_abort_the_agent() -> None:
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (75, "")
