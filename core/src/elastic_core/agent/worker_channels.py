"""The agent's ends of its workers' channels: what they report, taken for what it is, the word of a stranger.

Each is a socketpair of packets; the other end is inherited by the worker, whatever it is, and by what the worker forks.
So the end of a channel means nothing. Packets are short JSON objects of known types, and whatever else comes is ignored
and said once. Nothing is ever waited for, and who sends too much is not listened to for the rest of a second: then its
packets fill its own socket. Down go notices, which find room or are not sent. Descriptors that come along are closed,
but for those that the fd store keeps.
"""

from __future__ import annotations

import contextlib
import functools
import json
import select
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from elastic_core.agent.fd_store import FdStore
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
    STEP,
    STOP_AT,
)

MOST = 256
"""Packets of one worker that are read in a second."""
WINDOW = 1.0
"""That second."""
MOST_DRAINED = 4096
"""Packets of one worker that are read where all are wanted; its socket holds some hundreds."""
LINGERING = 30.0
"""Seconds that an interpreter may take for its end before somebody hears of it; with torch it takes one or two."""
_INT = array("i").itemsize


@dataclass(frozen=True, slots=True)
class Initialized:
    """A worker, or what it has forked, says that its process group is there."""

    tag: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker says that an exception has ended its program. It will exit with 1, when it has done with itself."""

    tag: int


@dataclass(frozen=True, slots=True)
class Lingers:
    """A worker has said that its program is over, ``LINGERING`` seconds ago, whether it has exited since or not."""

    tag: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A worker says to which step it can come without another report, or that it stops after this one."""

    tag: int
    step: int
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A worker has sent something else than a report, and why it was ignored; said once for each."""

    tag: int
    why: str


@dataclass(frozen=True, slots=True)
class ListenAgain:
    """The second is over in which a channel brought too much."""

    channel: object


Report: TypeAlias = "Initialized | Failed | Lingers | Stepped | NotUnderstood | ListenAgain"

LARGEST_STEP = 2**53
"""Steps are smaller."""
_MEANINGS: Mapping[str, type[Initialized | Failed | Lingers]] = {
    INITIALIZED: Initialized,
    FAILED: Failed,
    OVER: Lingers,
}


class _Served:
    """The packet was a request to the fd store, or is for later, and has been dealt with."""


class _Channel:
    """One worker's."""

    def __init__(self, tag: int, end: socket.socket) -> None:
        self.tag = tag
        self.end = end
        self.since = 0.0
        self.count = 0
        """Packets since then."""
        self.complained = self.over = False
        self.newest: Stepped | None = None


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
        self.fd_store = FdStore()
        """Outlives the rounds."""

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`receive` is to be called."""
        return self._ready.fileno()

    def open(self, tag: int) -> socket.socket:
        """A channel to the worker ``tag``: the worker's end, for the caller to pass on and close.

        Raises:
            OSError: No descriptor is left.
        """
        ours, theirs = socket.socketpair(*KIND)
        ours.setblocking(False)
        self._channels[ours.fileno()] = _Channel(tag, ours)
        self._ready.register(ours, select.EPOLLIN)
        return theirs

    def receive(self) -> list[Report]:
        """What has come since the last call, of nobody more than ``MOST`` packets."""
        ready = [self._channels[fd] for fd, _ in self._ready.poll(0) if fd in self._channels]
        return [told for channel in ready for told in self._read(channel)]

    def tell(self, tag: int, notice: Mapping[str, Any]) -> bool:
        """Send a worker a notice; whether there was room for it, and a worker."""
        data, flags = json.dumps(notice).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        for channel in self._channels.values():
            if channel.tag == tag:
                with contextlib.suppress(OSError):
                    return channel.end.send(data, flags) == len(data)
        return False

    def drain(self) -> list[Stepped] | None:
        """Each worker's newest step of all that have been reported, however many; None if there is no end to them.

        Those that were received before count as well: they may still wait for their turn on the loop. What else has
        come is delivered as if it came now.
        """
        steps = []
        for channel in self._channels.values():
            told: Report | _Served | None = None
            for _ in range(MOST_DRAINED):
                if (told := self._next(channel)) is None:
                    break
                if not isinstance(told, (Stepped, NotUnderstood, _Served)):
                    self._later(self._clock(), told)
            if told is not None:
                return None
            if channel.newest is not None:
                steps.append(channel.newest)
        return steps

    def listen_again(self, event: ListenAgain) -> None:
        """Go on with a channel, if it is still there."""
        if isinstance(channel := event.channel, _Channel) and channel in self._channels.values():
            self._ready.register(channel.end, select.EPOLLIN)

    def clear(self) -> None:
        """Close all channels: the round is over."""
        for channel in self._channels.values():
            with contextlib.suppress(FileNotFoundError):  # it was at an end, or had said too much
                self._ready.unregister(channel.end)  # closing does not, if somebody has forked meanwhile
            channel.end.close()
        self._channels.clear()

    def close(self) -> None:
        """Close all, and be of no use any more; what workers have left here is gone."""
        self.clear()
        self.fd_store.close()
        self._ready.close()

    def _read(self, channel: _Channel) -> Iterator[Report]:
        now = self._clock()
        if now - channel.since >= WINDOW:
            channel.since, channel.count = now, 0
        while channel.count < MOST:
            if (told := self._next(channel)) is None:
                return
            channel.count += 1
            if isinstance(told, _Served) or (isinstance(told, NotUnderstood) and channel.complained):
                continue
            channel.complained |= isinstance(told, NotUnderstood)
            yield told
        self._ready.unregister(channel.end)
        self._later(channel.since + WINDOW, ListenAgain(channel))

    def _next(self, channel: _Channel) -> Report | _Served | None:
        """The next packet of a channel; None where there is none."""
        try:
            packet, descriptors = _received(channel.end)
        except BlockingIOError:
            return None
        except OSError:
            packet, descriptors = b"", []
        if not packet:  # nobody has the other end, or says that; it may be at an end, but its number is not free
            with contextlib.suppress(FileNotFoundError):
                self._ready.unregister(channel.end)
            close_all(descriptors)
            return None
        try:
            if descriptors and self.fd_store.obey(packet, descriptors):
                return _Served()
            told = understood(packet)(channel.tag)
        except ValueError as exc:
            return NotUnderstood(channel.tag, str(exc))
        if isinstance(told, Lingers):
            if not channel.over:
                self._later(self._clock() + LINGERING, told)
            channel.over = True
            return _Served()
        if isinstance(told, Stepped):
            channel.newest = told
        return told


def _received(end: socket.socket) -> tuple[bytes, list[int]]:
    """A packet, and the descriptors that came along: two are enough for all that is asked; more the kernel closes."""
    packet, ancillary, _, _ = end.recvmsg(LONGEST + 1, socket.CMSG_SPACE(2 * _INT), socket.MSG_CMSG_CLOEXEC)
    return packet, array("i", b"".join(packed for _, _, packed in ancillary)).tolist()


def packet(notice: Notice | None) -> dict[str, object]:
    """What a worker is told."""
    if notice is None:
        return {"type": GO_ON}
    if notice.step is None:
        return {"type": PLAN, "plan": notice.plan, "deadline": notice.deadline}
    return {"type": STOP_AT, "plan": notice.plan, "step": notice.step, "leaving": notice.leaving}


def understood(packet: bytes) -> Callable[[int], Report]:
    """What a packet says, to be told of whoever sent it.

    Raises:
        ValueError: It is not a report that is known here.
    """
    if len(packet) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} bytes")
    try:
        message: Any = json.loads(packet)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    match message:
        case {"type": str(name)} if name in _MEANINGS:
            return _MEANINGS[name]
        case {"type": str(name), "step": int(step)} if name in (STEP, LEAVES) and 0 <= step < LARGEST_STEP:
            return functools.partial(Stepped, step=step, leaves=name == LEAVES)
        case {"type": str(name)} if name in (STEP, LEAVES):
            raise ValueError("it reports a step, but names none")
        case {"type": str(name)}:
            raise ValueError(f"its type is {name[:40]!r}, which is not known here")
    raise ValueError("it is not a JSON object with a type")
