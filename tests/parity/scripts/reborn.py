"""Is killed in its first life, and comes to an end in its second."""

from __future__ import annotations

import os
import signal

from tell import LIFE, tell

tell(life=LIFE)
if LIFE == 0:
    os.kill(os.getpid(), signal.SIGKILL)
