"""What makes a node leave before it has entered its job: a signal, or the end of its host (rule L17)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType

from elastic_core.exit_codes import signal_name, signalled
from elastic_core.plugins.host_end import HostEnd
from elastic_core.protocol.node_events import Exit


class Interruption:
    """Ends the wait of a node that is being checked. Make and close it on the main thread: it sets signal handlers.

    The first of ``signals`` becomes :attr:`end`. A second one ends this process at once, and the warden then ends all
    that it has started.
    """

    def __init__(self, signals: Iterable[int], host_end: HostEnd) -> None:
        self.end: Exit | None = None  # how the agent ends; None while nothing makes it leave
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock, self._closed = threading.RLock(), False
        self._old_handlers = {signum: signal.signal(signum, self._on_signal) for signum in signals}
        host_end.heard_by(lambda why, _seconds, _at: self._leave(signal.SIGTERM, why))

    def fileno(self) -> int:
        """Return a descriptor that is readable once the wait is to end."""
        return self._wake_r

    def wake(self) -> None:
        """End the wait, for what the caller knows. Any thread may call this."""
        with self._lock:
            if not self._closed:
                os.write(self._wake_w, b"\0")

    def close(self) -> None:
        """Restore the signal handlers; :attr:`end` stays."""
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        with self._lock:
            self._closed = True  # another file may soon have its number
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        for one in self._old_handlers:
            signal.signal(one, signal.SIG_DFL)
        self._leave(signum, f"received {signal_name(signum)}")

    def _leave(self, signum: int, why: str) -> None:
        self.end = self.end or Exit(signalled(signum), f"{why}, before this node had entered the job")
        self.wake()
