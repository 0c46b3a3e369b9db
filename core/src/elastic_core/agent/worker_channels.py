"""The agent's side of the worker channels. Packets are untrusted input: malformed ones are dropped and reported once.

A channel is a socketpair of packets, whose other end the worker and its forks inherit. So end-of-file means nothing.
Packets are short JSON objects of known types. The agent never blocks on a channel: it stops reading one that sends too
much for the rest of a second, and drops a notice for which there is no room. Descriptors in a packet are closed, except
those that the fd store keeps.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from elastic_core.agent.failure_cause import Reported
from elastic_core.agent.fd_store import FdStore
from elastic_core.progress import LARGEST_STEP, Progress, check_report
from elastic_core.protocol.node_events import Notice
from elastic_core.warden.channel import close_all
from elastic_core.worker.channel import (
    FAILED,
    GO_ON,
    INITIALIZED,
    KIND,
    LEAVES,
    LONGEST,
    OVER,
    PLAN,
    PROGRESS,
    RECORDING,
    STEP,
    STOP_AT,
)

PACKETS_MAX = 256  # per worker and window
WINDOW_SECONDS = 1.0
DRAINED_PACKETS_MAX = 4096  # per worker, when all packets are read; a socket holds some hundreds
OWN_SIGNAL_SECONDS = 1.0  # in which a SIGTERM that is sent to all processes of the job reaches the agent, too
LINGERING = 30.0  # seconds that an interpreter may take to end before that is reported; with torch it takes one or two
_INT = array("i").itemsize


@dataclass(frozen=True, slots=True)
class Initialized:
    """A worker, or a fork of it, reports that its process group is ready."""

    tag: int


@dataclass(frozen=True, slots=True)
class Records:
    """A worker records the exception that ends it. Its agent notes that, and is told no more."""

    tag: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker reports that an exception has ended its program, and is recorded. Its interpreter will exit with 1."""

    tag: int


@dataclass(frozen=True, slots=True)
class Lingers:
    """A worker reported ``LINGERING`` seconds ago that its program has ended; it may have exited since."""

    tag: int
    terminated: bool = False  # whether the program handled SIGTERM before it ended


@dataclass(frozen=True, slots=True)
class Terminated:
    """A worker has exited with 0 after SIGTERM, ``OWN_SIGNAL_SECONDS`` ago."""

    tag: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A worker has taken a step, and can take ``ahead`` more without another report; or it stops after this step."""

    tag: int
    step: int
    ahead: int = 0
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Advanced:
    """A worker's script reports how far it has come (``elastic.report``)."""

    tag: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A worker has sent something else than a report, ignored because of ``why``. Reported once for each worker."""

    tag: int
    why: str


@dataclass(frozen=True, slots=True)
class ListenAgain:
    """The second in which a channel brought too much is over."""

    channel: object


Report: TypeAlias = "Initialized | Failed | Lingers | Terminated | Stepped | Advanced | NotUnderstood | ListenAgain"

_MEANINGS: dict[str, type[Records | Initialized | Failed | Lingers]]
_MEANINGS = {RECORDING: Records, INITIALIZED: Initialized, FAILED: Failed, OVER: Lingers}


class _Served:
    """The packet needs no further treatment: it was for the fd store, its report comes later, or it is noted."""


@dataclass(eq=False)
class _Channel:
    """The channel of one worker."""

    tag: int
    end: socket.socket
    reported: Reported
    since: float = 0.0  # when the current window began
    count: int = 0  # packets since then
    complained: bool = False  # whether it was reported that it brought something else than a report
    newest: Stepped | None = None
    advanced: Advanced | None = None  # the newest


class Reports:
    """All channels of one round.

    Args:
        later: Delivers a report to the loop, at an instant of the clock.
        clock: Seconds, monotonic.
    """

    def __init__(self, later: Callable[[float, Report], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._later = later
        self._clock = clock
        self._ready = select.epoll()
        self._channels: dict[int, _Channel] = {}
        self.fd_store = FdStore()  # kept over rounds

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`receive` has something to read."""
        return self._ready.fileno()

    def open(self, tag: int, reported: Reported | None = None) -> socket.socket:
        """Open a channel to the worker ``tag``; return the worker's end, which the caller passes on and closes.

        Args:
            tag: The worker.
            reported: What it reports of its end is written here.

        Raises:
            OSError: No descriptor is left.
        """
        ours, theirs = socket.socketpair(*KIND)
        ours.setblocking(False)
        self._channels[ours.fileno()] = _Channel(tag, ours, reported or Reported())
        self._ready.register(ours, select.EPOLLIN)
        return theirs

    def receive(self) -> list[Report]:
        """Return the reports since the last call, at most ``PACKETS_MAX`` of each worker."""
        ready = [self._channels[fd] for fd, _ in self._ready.poll(0) if fd in self._channels]
        return [told for channel in ready for told in self._read(channel)]

    def tell(self, tag: int, notice: Mapping[str, Any]) -> bool:
        """Send a worker a notice; return whether there was such a worker, and room."""
        data, flags = json.dumps(notice).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        for channel in self._channels.values():
            if channel.tag == tag:
                with contextlib.suppress(OSError):
                    return channel.end.send(data, flags) == len(data)
        return False

    def note_terminated(self, tag: int) -> None:
        """Deliver Terminated, unless the agent gets a signal of its own, for a worker that has just exited with 0."""
        self._later(self._clock() + OWN_SIGNAL_SECONDS, Terminated(tag))

    def drain(self) -> list[Stepped | Advanced] | None:
        """Read all reports that have arrived, and return the newest progress of each worker.

        Progress that was read before counts too, since the loop may not have handled it yet. Reports of other kinds
        are put on the loop. Return None if a worker has more than DRAINED_PACKETS_MAX reports to read.
        """
        steps: list[Stepped | Advanced] = []
        for channel in self._channels.values():
            told: Report | _Served | None = None
            for _ in range(DRAINED_PACKETS_MAX):
                if (told := self._next(channel)) is None:
                    break
                if not isinstance(told, (Stepped, Advanced, NotUnderstood, _Served)):
                    self._later(self._clock(), told)
            if told is not None:
                return None
            steps += filter(None, (channel.advanced, channel.newest))
        return steps

    def listen_again(self, event: ListenAgain) -> None:
        """Read a channel again, if it is still open."""
        if isinstance(channel := event.channel, _Channel) and channel in self._channels.values():
            self._ready.register(channel.end, select.EPOLLIN)

    def clear(self) -> None:
        """Close all channels: the round is over."""
        for channel in self._channels.values():
            with contextlib.suppress(FileNotFoundError):  # already unregistered: at its end, or too talkative
                self._ready.unregister(channel.end)  # closing does not, if a fork has a copy
            channel.end.close()
        self._channels.clear()

    def close(self) -> None:
        """Close all channels and the fd store, whose files are gone."""
        self.clear()
        self.fd_store.close()
        self._ready.close()

    def _read(self, channel: _Channel) -> Iterator[Report]:
        now = self._clock()
        if now - channel.since >= WINDOW_SECONDS:
            channel.since, channel.count = now, 0
        while channel.count < PACKETS_MAX:
            if (told := self._next(channel)) is None:
                return
            channel.count += 1
            if isinstance(told, _Served) or (isinstance(told, NotUnderstood) and channel.complained):
                continue
            channel.complained |= isinstance(told, NotUnderstood)
            yield told
        self._ready.unregister(channel.end)
        self._later(channel.since + WINDOW_SECONDS, ListenAgain(channel))

    def _next(self, channel: _Channel) -> Report | _Served | None:
        """Read the next packet of a channel; None if there is none."""
        try:
            packet, descriptors = _received(channel.end)
        except BlockingIOError:
            return None
        except OSError:
            packet, descriptors = b"", []
        if not packet and not descriptors and not _has_ended(channel.end):
            return NotUnderstood(channel.tag, "a packet is empty")
        if not packet:  # at its end; the descriptor stays open
            with contextlib.suppress(FileNotFoundError):
                self._ready.unregister(channel.end)
            close_all(descriptors)
            return None
        try:
            if descriptors and self.fd_store.obey(packet, descriptors):
                return _Served()
            told = parse_packet(packet, channel.tag)
        except ValueError as exc:
            return NotUnderstood(channel.tag, str(exc))
        if isinstance(told, Records):
            channel.reported.records = True
            return _Served()
        if isinstance(told, Lingers):
            if not channel.reported.over:
                self._later(self._clock() + LINGERING, told)
            channel.reported.over, channel.reported.terminated = True, told.terminated
            return _Served()
        if isinstance(told, Failed):  # its record may be missing, on a full disk: then its stderr is read
            channel.reported.over, channel.reported.records = True, False
        if isinstance(told, Stepped):
            channel.newest = told
        if isinstance(told, Advanced):
            channel.advanced = told
        return told


def _has_ended(end: socket.socket) -> bool:
    """Whether the other end of a channel is closed, or broken. A packet without content reads like its end."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    return bool(poll.poll(0))


def _received(end: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a packet and its descriptors: at most two, the kernel closes the others."""
    packet, ancillary, _, _ = end.recvmsg(LONGEST + 1, socket.CMSG_SPACE(2 * _INT), socket.MSG_CMSG_CLOEXEC)
    return packet, array("i", b"".join(packed for _, _, packed in ancillary)).tolist()


def packet(notice: Notice | None) -> dict[str, object]:
    """Return the packet of a notice."""
    if notice is None:
        return {"type": GO_ON}
    if notice.step is None:
        return {"type": PLAN, "plan": notice.plan, "deadline": notice.deadline}
    return {"type": STOP_AT, "plan": notice.plan, "step": notice.step, "leaving": notice.leaving}


def parse_packet(packet: bytes, tag: int) -> Records | Initialized | Failed | Lingers | Stepped | Advanced:
    """Return the report of the worker ``tag`` that a packet stands for.

    Raises:
        ValueError: It is not a known report.
    """
    if len(packet) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} bytes")
    try:
        message: Any = json.loads(packet)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    match message:
        case {"type": str(name), "terminated": True} if name == OVER:
            return Lingers(tag, terminated=True)
        case {"type": str(name)} if name in _MEANINGS:
            return _MEANINGS[name](tag)
        case {"type": str(name), "step": int(step)} if name in (STEP, LEAVES) and 0 <= step < LARGEST_STEP:
            if not isinstance(ahead := message.get("ahead", 0), int) or not 0 <= ahead < LARGEST_STEP:
                raise ValueError("it reports steps ahead, but not how many")
            return Stepped(tag, step, ahead, leaves=name == LEAVES)
        case {"type": str(name)} if name in (STEP, LEAVES):
            raise ValueError("it reports a step, but names none")
        case {"type": str(name)} if name == PROGRESS:
            return Advanced(tag, check_report(message))
        case {"type": str(name)}:
            raise ValueError(f"its type is {name[:40]!r}, which is not known here")
    raise ValueError("it is not a JSON object with a type")
