"""Pumps: each moves one stream of a worker from a pipe or pseudo-terminal into a file, memory and a console."""

from __future__ import annotations

import math
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from elastic_core.agent.console import DirectConsole, resize_terminal
from elastic_core.monitors import OutputReader, Shape

TAIL = 4096  # bytes of stderr that an incident may show
REMEMBERED = 16384  # bytes of stderr that are remembered: faulthandler's stacks follow what native code wrote

_CHUNK = 1 << 16
_READS = 20  # how often a stream is read until nothing is left: a pseudo-terminal holds 64 KiB and gives 4 KiB at once


class Pump:
    """One stream of a worker, and where its bytes go. Other threads than the pump thread only read ``tail``, ``ended``.

    Args:
        pipe: A pipe, or our end of a pseudo-terminal, which is made not to block. Closed with this object.
        readers: Take all bytes: files, and the monitors' readers.
        console: Where the stream is shown.
        shape: What the stream becomes before it is shown.
    """

    def __init__(
        self,
        pipe: int,
        readers: Sequence[OutputReader],
        console: DirectConsole | None,
        shape: Shape,
        rank: int = 0,
    ) -> None:
        self.pipe, self.console, self.shape = pipe, console, shape
        self._readers, self._rank = readers, rank
        self.tail = b""
        """The last ``REMEMBERED`` bytes, and one more that tells whether they begin a line. Replaced, never changed."""
        self.ended = threading.Event()
        os.set_blocking(pipe, False)

    def transfer(self) -> bool:
        """Pass on what can be read; return False at the end of the stream, or if the console is gone."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # EIO: the last process with this pseudo-terminal has closed it
            data = b""
        if data:
            self.tail = (self.tail + data)[-REMEMBERED - 1 :]
            for reader in self._readers:
                reader.feed(data)
        return self.show(self.shape.feed(data)) and bool(data)

    def show(self, data: bytes) -> bool:
        """Show data that has its shape; return False if the console is gone."""
        return not data or self.console is None or self.console.write(data, self._rank)

    def close(self) -> None:
        """Show the rest of the shape, and close: the stream is over, or its rest is not needed."""
        self.show(self.shape.finish())
        for reader in self._readers:
            reader.finish()
        os.close(self.pipe)
        self.ended.set()


class PumpThread:
    """A thread that reads the streams of many workers. Any thread may call the methods."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._orders: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, pumps: Sequence[Pump]) -> None:
        """Read these pumps, too, to the ends of their streams."""
        self._order(lambda: [self._selector.register(pump.pipe, selectors.EVENT_READ, pump) for pump in pumps])

    def catch_up(self, pumps: Sequence[Pump], timeout: float) -> None:
        """Wait until these pumps have passed on what can be read now, ``timeout`` seconds at most."""
        done = threading.Event()

        def read() -> None:
            for _ in range(_READS):
                self._transfer(pumps)
            done.set()

        self._order(read)
        done.wait(timeout)

    def resize(self, size: bytes) -> None:
        """Give all pseudo-terminals this window size."""

        def pass_on() -> None:
            for pump in self._pumps():
                resize_terminal(pump.pipe, size)

        self._order(pass_on)

    def close(self, timeout: float) -> None:
        """Forward the output that has arrived, then stop; abandon a thread that is stuck after ``timeout`` seconds."""
        self._closing = True
        os.eventfd_write(self._bell, 1)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            os.close(self._bell)  # here, and not when it ends: it may end before it is rung for

    def _order(self, order: Callable[[], object]) -> None:
        self._orders.put(order)
        os.eventfd_write(self._bell, 1)

    def _pumps(self) -> list[Pump]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _run(self) -> None:
        """Read until the thread is closed and nothing is left to read."""
        while True:
            closing = self._closing
            ready = self._selector.select(0 if closing else self._patience())
            pumps = [key.data for key, _ in ready if key.data is not None]
            if len(pumps) < len(ready):
                os.eventfd_read(self._bell)
                while not self._orders.empty():
                    self._orders.get()()
            elif closing and not pumps:
                break
            self._transfer(pumps)
            now = time.monotonic()
            for pump in [pump for pump in self._pumps() if pump.shape.due <= now]:
                if not pump.show(pump.shape.overdue()):
                    self._end(pump)
        for pump in self._pumps():
            self._end(pump)
        self._selector.close()

    def _patience(self) -> float | None:
        """Return the seconds until a shape is due; None if none will be."""
        due = min((pump.shape.due for pump in self._pumps()), default=math.inf)
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _transfer(self, pumps: Sequence[Pump]) -> None:
        for pump in pumps:
            if not pump.ended.is_set() and not pump.transfer():
                self._end(pump)

    def _end(self, pump: Pump) -> None:
        self._selector.unregister(pump.pipe)
        pump.close()
