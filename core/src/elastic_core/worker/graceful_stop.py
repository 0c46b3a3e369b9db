"""Graceful stops, in a worker: it reports each step to its agent, and reads whether it is to stop.

The order is all there is to it: a worker reports its step and *then* reads its notices, and the agent writes the notice
of a PLAN and *then* takes in the reports. So a rank that could go beyond what the agent has heard of has read the PLAN,
and holds until it is told the step T at which all stop together. Nobody waits otherwise, and no collective is needed.

A report may run ahead: it names the last step that the rank can come to without another one, so that a loop of a
thousand steps a second sends ten packets and not a thousand. ``agent/worker_channels.py`` is the other end. Nothing
here needs torch.
"""

from __future__ import annotations

import json
import operator
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic_core.worker import channel as reporting
from elastic_core.worker.channel import GO_ON, LEAVES, LONGEST, PLAN, STEP, STOP_AT

PERIOD = 0.1  # seconds between two reports, about; steps that are longer are each reported
FARTHEST = 1 << 16  # steps that a report may run ahead, at most
SAYING_GOODBYE = 5.0
"""Seconds that the agent may take to make room for the word that this rank stops; it normally needs none."""
LARGEST = 2**53  # the greatest step, which every JSON reader understands


class Notices:
    """One worker's reports and notices. For one thread.

    Args:
        environ: Where the channel's number is.
        clock: Seconds, monotonic.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        self._environ, self._clock, self._process = environ, clock, os.getpid()
        self._ahead = 1
        self._horizon = -1
        """The last step that the agent has heard of."""
        self._reported, self._reported_at = 0, float("-inf")
        """The step of the last report, and when that was."""
        self._beyond = False
        """Whether an earlier call went beyond that without having been able to say so."""
        self._plan = self._ignored = 0
        self._hold_until: float | None = None
        """Where a step has yet to be named: until when to wait for that."""
        self._stop_at: int | None = None
        self._stopping = False
        self.leaving = True
        """See :func:`somebody_leaves`."""

    def should_checkpoint(self, step: int) -> bool:
        """See :func:`should_checkpoint`."""
        try:
            number = operator.index(step)  # numpy's integers, too
        except TypeError:
            number = -1
        if not 0 <= number < LARGEST:
            raise ValueError(f"step {step!r} is not a whole number from 0 to 2**53.")
        if self._stopping or os.getpid() != self._process:  # what it has forked speaks for nobody
            return self._stopping
        with reporting.channel(self._environ) as channel:
            if channel is None:
                return False
            sent = self._report(channel, number)
            self._read(channel)
            while self._hold_until is not None and (left := self._hold_until - self._clock()) > 0:
                if not (reporting.wait_until_ready(channel, select.POLLIN, left) and self._read(channel)):
                    break
            if self._hold_until is not None:  # the agent is gone, or has had its time
                self._hold_until, self._ignored = None, self._plan
            self._beyond = not sent
            if self._stop_at is None or number < self._stop_at:
                return False
            self._stopping = _send(channel, {"type": LEAVES, "step": number}, SAYING_GOODBYE)
        return self._stopping

    def _report(self, channel: socket.socket, step: int) -> bool:
        """Whether the agent will have heard of this step before it hears of anything else."""
        if step <= self._horizon:
            return True
        now, planned = self._clock(), self._hold_until is not None or self._stop_at is not None
        pace = (step - self._reported) / max(now - self._reported_at, 1e-6)
        self._ahead = 1 if planned else max(1, min(int(PERIOD * pace), 2 * self._ahead, FARTHEST))
        horizon = step + self._ahead - 1
        if not _send(channel, {"type": STEP, "step": horizon}):
            return False
        self._horizon, self._reported, self._reported_at = horizon, step, now
        return True

    def _read(self, channel: socket.socket) -> bool:
        """Take in the notices that are there; False at the end of the channel."""
        while True:
            try:
                packet = channel.recv(LONGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                packet = b""
            if not packet:
                return False
            self._obey(json.loads(packet))

    def _obey(self, notice: dict[str, Any]) -> None:
        plan = notice.get("plan", 0)
        match notice.get("type"):
            case str(kind) if kind == PLAN and self._beyond:
                self._ignored = plan  # the step will be named without regard to where this rank is
            case str(kind) if kind == PLAN:
                self._plan, self._stop_at = plan, None
                self._hold_until = self._clock() + notice["deadline"]
            case str(kind) if kind == STOP_AT and plan != self._ignored:
                self._plan, self._stop_at, self._hold_until = plan, notice["step"], None
                self.leaving = notice["leaving"]
            case str(kind) if kind == GO_ON:
                self._hold_until = None


def _send(channel: socket.socket, message: dict[str, Any], patience: float = 0.0) -> bool:
    """Whether a packet has been sent; where there is no room, by waiting for so many seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            channel.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            left = deadline - time.monotonic()
            if not patience or not reporting.wait_until_ready(channel, select.POLLOUT, left):
                return False
        except OSError:
            return False
        else:
            return True


_own: Notices | None = None


def should_checkpoint(step: int) -> bool:
    """Whether all ranks are to save and stop after this step: a node joins, leaves, or is drained.

    Call it on every rank, from one thread, once after each step; True comes after the same step on all. Then save, and
    exit with 0: the job goes on with other nodes, and the step is not lost. It costs some microseconds, and waits
    only while a stop is being agreed on, for the time that two messages take. Where no agent of ``elastic run`` is
    there, it is always False.

    Args:
        step: How many steps have been taken, counted over all of the training; it must grow.

    Raises:
        ValueError: ``step`` is no whole number from 0 on.
    """
    global _own  # a worker has one channel
    if _own is None:
        _own = Notices()
    return _own.should_checkpoint(step)


def somebody_leaves() -> bool:
    """Why :func:`should_checkpoint` was True, the same on all ranks: False where all nodes stay and others join them.

    Then memory of theirs keeps the state, and nothing has to wait for a disk. It is known when the step is named at
    which all stop: a node that decides to leave after that, with a step or so to go, is not among them.
    """
    return _own is None or _own.leaving
