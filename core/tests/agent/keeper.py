"""A worker that leaves a memory file ``train/0/0`` with its agent: ``keeper.py MARK``.

It makes the file MARK then, and stays, or exits with 1 where that file was there before.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from elastic_core.worker.fd_store import hold

fd = os.memfd_create("train")
os.write(fd, b"step 7")
assert hold("train/0/0", fd)
mark = Path(sys.argv[1])
if mark.exists():
    sys.exit(1)
mark.touch()
signal.pause()
