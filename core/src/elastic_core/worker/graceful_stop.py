"""Graceful stops, in a worker: it reports each step to its agent, and reads whether it must stop.

A worker reports its step and *then* reads its notices; the agent writes the notice of a PLAN and *then* reads the
reports. So a rank that goes beyond its last report has read the PLAN, and holds until it is told the step at which all
ranks stop. No rank waits otherwise, and no collective is needed. A report names the step, and how many steps after it
the rank takes without another report, so a loop of a thousand steps a second sends ten packets.
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

from elastic_core.worker import channel

PERIOD = 0.1  # seconds between two reports, about; steps that are longer are each reported
FARTHEST = 1 << 16  # steps that a report may run ahead, at most
LEAVES_MAX_SECONDS = 5.0  # that the agent may take to make room for the report that this rank stops
LARGEST = 2**53  # the greatest step, which every JSON reader understands


class Notices:
    """One worker's reports and notices, over the channel that ``environ`` names. For one thread."""

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        self._environ, self._clock, self._process = environ, clock, os.getpid()
        self._ahead = 1
        self._horizon = -1  # the last step that the agent has heard of
        self._reported, self._reported_at = 0, float("-inf")  # the step of the last report, and its time
        self._beyond = False  # whether an earlier call went beyond the horizon and could not report it
        self._plan = self._ignored = 0
        self._hold_until: float | None = None  # while the step of a plan is not known: how long to wait for it
        self._stop_at: int | None = None
        self._stopping = False
        self.leaving = True  # see :func:`somebody_leaves`

    def should_checkpoint(self, step: int) -> bool:
        """See :func:`should_checkpoint`."""
        try:
            number = operator.index(step)  # numpy's integers, too
        except TypeError:
            number = -1
        if not 0 <= number < LARGEST:
            raise ValueError(f"step {step!r} is not a whole number from 0 to 2**53.")
        if self._stopping or os.getpid() != self._process:  # a fork of the worker is no rank
            return self._stopping
        with channel.open_channel(self._environ) as agent:
            if agent is None:
                return False
            sent = self._report(agent, number)
            self._read(agent)
            while self._hold_until is not None and (left := self._hold_until - self._clock()) > 0:
                if not (channel.wait_until_ready(agent, select.POLLIN, left) and self._read(agent)):
                    break
            if self._hold_until is not None:  # the agent is gone, or has had its time
                self._hold_until, self._ignored = None, self._plan
            self._beyond = not sent
            if self._stop_at is None or number < self._stop_at:
                return False
            self._stopping = channel.send(agent, {"type": channel.LEAVES, "step": number}, LEAVES_MAX_SECONDS)
        return self._stopping

    def _report(self, agent: socket.socket, step: int) -> bool:
        """Report a step if it is beyond the horizon; whether the agent hears of it before later reports."""
        if step <= self._horizon:
            return True
        now, planned = self._clock(), self._hold_until is not None or self._stop_at is not None
        pace = (step - self._reported) / max(now - self._reported_at, 1e-6)
        self._ahead = 1 if planned else max(1, min(int(PERIOD * pace), 2 * self._ahead, FARTHEST))
        if not channel.send(agent, {"type": channel.STEP, "step": step, "ahead": self._ahead - 1}):
            return False
        self._horizon, self._reported, self._reported_at = step + self._ahead - 1, step, now
        return True

    def _read(self, agent: socket.socket) -> bool:
        """Read and handle the notices that have come; False at the end of the channel."""
        while True:
            try:
                packet = agent.recv(channel.LONGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                packet = b""
            if not packet:
                return False
            self._handle(json.loads(packet))

    def _handle(self, notice: dict[str, Any]) -> None:
        plan = notice.get("plan", 0)
        match notice.get("type"):
            case channel.PLAN if self._beyond:
                self._ignored = plan  # the agent names its step without regard to this rank
            case channel.PLAN:
                self._plan, self._stop_at = plan, None
                self._hold_until = self._clock() + notice["deadline"]
            case channel.STOP_AT if plan != self._ignored:
                self._plan, self._stop_at, self._hold_until = plan, notice["step"], None
                self.leaving = notice["leaving"]
            case channel.GO_ON:
                self._hold_until = None


_own: Notices | None = None


def should_checkpoint(step: int) -> bool:
    """Return True if all ranks are to save and stop after this step: a node joins, leaves, or is drained.

    Call it on every rank, from one thread, once after each step; True comes after the same step on all. Then save, and
    exit with 0: the job goes on with other nodes, and the step is not lost. It costs some microseconds, and waits
    only while a stop is being agreed on, for the time that two messages take. Without an agent of ``elastic run`` it is
    always False.

    Args:
        step: How many steps have been taken, counted over all of the training; it must grow.

    Raises:
        ValueError: ``step`` is no whole number from 0 to 2**53.
    """
    global _own  # a worker has one channel
    if _own is None:
        _own = Notices()
    return _own.should_checkpoint(step)


def somebody_leaves() -> bool:
    """Why :func:`should_checkpoint` was True, alike on all ranks: False if all nodes stay and others join them.

    Then their memory keeps the state, and no rank has to wait for a disk. It is decided with the step at which all
    ranks stop: a node that decides to leave after that, with a step or so to go, does not count.
    """
    return _own is None or _own.leaving
