"""The runtime of an agent's code: time, ids, threads, and the codec of its values in the store.

Production uses :data:`RUNTIME`, made of the standard library. The simulator passes its own runtime, and so runs
the same code in virtual time.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.protocol.repair import ENTRIES_KEPT_WHOLE
from elastic_core.threads import PatientThread, asked


@dataclass(frozen=True, slots=True)
class Runtime:
    """Factories for whatever reads a clock, blocks, or starts a thread, and the codec."""

    now: Callable[[], float] = time.monotonic  # seconds on a monotonic clock
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12]  # random
    thread: Callable[..., threading.Thread] = PatientThread
    condition: Callable[[], threading.Condition] = threading.Condition
    event: Callable[[], threading.Event] = threading.Event
    ask: Callable[..., Future[Any]] = asked
    """Calls a function on a separate thread, like :func:`elastic_core.threads.asked`."""
    codec: Codec = CODEC
    whole: int = ENTRIES_KEPT_WHOLE  # the newest ledger entries, which a leader does not shrink


RUNTIME = Runtime()  # production's
