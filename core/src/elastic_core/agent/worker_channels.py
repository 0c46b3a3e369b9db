"""The agent's side of the worker channels. Packets are untrusted input: malformed ones are dropped and reported once.

A channel is a socketpair of packets, whose other end the worker and its forks inherit. So end-of-file means nothing.
Packets are short JSON objects of known types. The agent never blocks on a channel: it stops reading one that sends too
much for the rest of a second, and drops a notice for which there is no room. A monitor may serve packets of other types
(``RunningRound.serve``), and keep their descriptors; all others are closed.
"""

from __future__ import annotations

import contextlib
import json
import select
import selectors
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from elastic_core.progress import LARGEST_STEP, Progress, check_report
from elastic_core.protocol.node_events import Notice
from elastic_core.warden.channel import close_all
from elastic_core.worker import channel as worker_end

PACKETS_MAX = 256  # per worker and window
WINDOW_SECONDS = 1.0
DRAINED_PACKETS_MAX = 4096  # per worker, when all packets are read; a socket holds some hundreds
OWN_SIGNAL_SECONDS = 1.0  # in which a SIGTERM that is sent to all processes of the job reaches the agent, too
LINGERING = 30.0  # seconds that an interpreter may take to end before that is reported; with torch it takes one or two
_INT = array("i").itemsize


@dataclass(slots=True)
class Reported:
    """Reports of a worker over its channel."""

    records: bool = False  # it records the exception that ends it
    over: bool = False  # its program has ended, by an exception or otherwise
    terminated: bool = False  # the program had handled SIGTERM before that
    step: int | None = None  # the last one that it can take without another report
    leaves: bool = False  # it stops, after a notice


@dataclass(frozen=True, slots=True)
class Report:
    """A report of the worker ``tag``, or an event of its channel."""

    tag: int


class Initialized(Report):
    """A worker, or a fork of it, reports that its process group is ready."""


class Failed(Report):
    """A worker reports that an exception has ended its program, and is recorded. Its interpreter will exit with 1."""


class Lingers(Report):
    """A worker reported ``LINGERING`` seconds ago that its program has ended; it may have exited since."""


class Terminated(Report):
    """A worker has exited with 0 after SIGTERM, ``OWN_SIGNAL_SECONDS`` ago."""


class Stepped(Report):
    """A worker has reported its first step, and so reads notices."""


@dataclass(frozen=True, slots=True)
class NotUnderstood(Report):
    """A worker has sent something else than a report, ignored because of ``why``. Reported once for each worker."""

    why: str


@dataclass(eq=False)
class _Channel:
    """The channel of one worker."""

    tag: int
    end: socket.socket
    reported: Reported
    observe: Callable[[Progress], object]
    since: float = 0.0  # when the current window began
    count: int = 0  # packets since then
    complained: bool = False  # whether it was reported that it brought something else than a report


class Reports:
    """All channels of one round.

    ``later`` delivers a report to the loop, at an instant of the clock; or calls a function there.
    """

    def __init__(self, later: Callable[[float, object], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._later, self._clock = later, clock
        self._ready = selectors.EpollSelector()
        self._channels: dict[int, _Channel] = {}  # by tag
        self.obey: Callable[[Mapping[str, Any], list[int]], bool] = lambda packet, descriptors: False
        """Passes a packet of another type to the monitor that serves it; returns False if none does."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`receive` has something to read."""
        return self._ready.fileno()

    def open(
        self, tag: int, reported: Reported | None = None, observe: Callable[[Progress], object] = lambda _: None
    ) -> socket.socket:
        """Open a channel to the worker ``tag``; return the worker's end, which the caller passes on and closes.

        Its reports are noted in ``reported``. ``observe`` is called with each progress that it reports, in
        :meth:`receive` and :meth:`drain`.

        Raises:
            OSError: No descriptor is left.
        """
        ours, theirs = socket.socketpair(*worker_end.KIND)
        ours.setblocking(False)
        self._channels[tag] = _Channel(tag, ours, reported or Reported(), observe)
        self._listen(tag)
        return theirs

    def receive(self) -> list[Report]:
        """Return the reports since the last call, at most ``PACKETS_MAX`` of each worker."""
        return [told for key, _ in self._ready.select(0) for told in self._read(key.data)]

    def tell(self, tag: int, notice: Mapping[str, Any]) -> bool:
        """Send a worker a notice; return whether there was such a worker, and room."""
        channel = self._channels.get(tag)
        return channel is not None and worker_end.send(channel.end, notice)

    def note_terminated(self, tag: int) -> None:
        """Deliver Terminated, unless the agent gets a signal of its own, for a worker that has just exited with 0."""
        self._later(self._clock() + OWN_SIGNAL_SECONDS, Terminated(tag))

    def drain(self) -> bool:
        """Read all packets that have arrived, and put the reports on the loop.

        Return False if a worker has more than DRAINED_PACKETS_MAX packets to read.
        """
        for channel in self._channels.values():
            for _ in range(DRAINED_PACKETS_MAX):
                if (told := self._next(channel)) is None:
                    break
                for report in told:
                    self._later(self._clock(), report)
            else:
                return False
        return True

    def _listen(self, tag: int) -> None:
        """Read a channel, or one that brought too much again, if it is still open."""
        if channel := self._channels.get(tag):
            self._ready.register(channel.end, selectors.EVENT_READ, channel)

    def clear(self) -> None:
        """Close all channels: the round is over."""
        for channel in self._channels.values():
            self._listen_no_more(channel)  # closing is not enough, if a fork has a copy
            channel.end.close()
        self._channels.clear()

    def close(self) -> None:
        """Close all channels."""
        self.clear()
        self._ready.close()

    def _listen_no_more(self, channel: _Channel) -> None:
        with contextlib.suppress(KeyError):  # at its end, or too talkative
            self._ready.unregister(channel.end)

    def _read(self, channel: _Channel) -> Iterator[Report]:
        now = self._clock()
        if now - channel.since >= WINDOW_SECONDS:
            channel.since, channel.count = now, 0
        while channel.count < PACKETS_MAX:
            if (told := self._next(channel)) is None:
                return
            channel.count += 1
            yield from told
        self._listen_no_more(channel)
        self._later(channel.since + WINDOW_SECONDS, partial(self._listen, channel.tag))

    def _next(self, channel: _Channel) -> Sequence[Report] | None:
        """Read the next packet of a channel; return what the loop is told of it, None if there is no packet."""
        descriptors: list[int] = []
        try:
            packet, descriptors = _received(channel.end)
            if not packet and worker_end.wait_until_ready(channel.end, select.POLLRDHUP, 0.0):
                raise EOFError  # a packet without content reads alike
            message = _parse(packet)
            return self._note(channel, message, descriptors)
        except BlockingIOError:
            return None
        except (OSError, EOFError):  # the descriptor stays open
            self._listen_no_more(channel)
            return None
        except ValueError as exc:
            complained, channel.complained = channel.complained, True
            return () if complained else (NotUnderstood(channel.tag, str(exc)),)
        finally:
            close_all(descriptors)

    def _note(self, channel: _Channel, message: Mapping[str, Any], descriptors: list[int]) -> Sequence[Report]:
        """Note a report of a worker; return what the loop is told of it. ValueError if it is not a known report."""
        tag, reported = channel.tag, channel.reported
        match message["type"]:
            case worker_end.RECORDING:
                reported.records = True
            case worker_end.INITIALIZED:
                return (Initialized(tag),)
            case worker_end.FAILED:  # its record may be missing, on a full disk: then its stderr is read
                reported.over, reported.records = True, False
                return (Failed(tag),)
            case worker_end.OVER:
                if not reported.over:
                    self._later(self._clock() + LINGERING, Lingers(tag))
                reported.over, reported.terminated = True, message.get("terminated") is True
            case worker_end.STEP | worker_end.LEAVES as name:
                if not _is_step(step := message.get("step")):
                    raise ValueError("it reports a step, but names none")
                if not _is_step(ahead := message.get("ahead", 0)):
                    raise ValueError("it reports steps ahead, but not how many")
                first, reported.step = reported.step is None, max(step + ahead, reported.step or 0)
                reported.leaves |= name == worker_end.LEAVES
                channel.observe(Progress(step=step))
                return (Stepped(tag),) if first else ()
            case worker_end.PROGRESS:
                channel.observe(check_report(message))
            case name if not self.obey(message, descriptors):
                raise ValueError(f"its type is {name[:40]!r}, which is not known here")
        return ()


def _received(end: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a packet and its descriptors: at most two, the kernel closes the others."""
    packet, ancillary, _, _ = end.recvmsg(worker_end.LONGEST + 1, socket.CMSG_SPACE(2 * _INT), socket.MSG_CMSG_CLOEXEC)
    return packet, array("i", b"".join(packed for _, _, packed in ancillary)).tolist()


def _parse(packet: bytes) -> Mapping[str, Any]:
    """Return the JSON object with a type that a packet has; ValueError if it has none."""
    if not packet:
        raise ValueError("a packet is empty")
    if len(packet) > worker_end.LONGEST:
        raise ValueError(f"it has more than {worker_end.LONGEST} bytes")
    try:
        message: Any = json.loads(packet)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("it is not a JSON object with a type")
    return message


def _is_step(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < LARGEST_STEP


def packet(notice: Notice | None) -> dict[str, object]:
    """Return the packet of a notice."""
    if notice is None:
        return {"type": worker_end.GO_ON}
    if notice.step is None:
        return {"type": worker_end.PLAN, "plan": notice.plan, "deadline": notice.deadline}
    return {"type": worker_end.STOP_AT, "plan": notice.plan, "step": notice.step, "leaving": notice.leaving}
