"""Knows when SIGTERM last reached the program of a worker, as far as the worker's wake-up descriptor tells.

``worker/outside_signals.py`` is the worker's side. A worker that exits with 0 soon after a SIGTERM that is not this
agent's has saved, and ended, but has not finished.
"""

from __future__ import annotations

import json
import math
import signal
import socket
import struct
from array import array
from dataclasses import dataclass

from elastic_core.warden.channel import close_all
from elastic_core.worker.channel import KIND, SIGNALS

SAVES_WITHIN_SECONDS = 600.0
"""A program that exits with 0 later than this after SIGTERM has not ended because of it."""
OWN_SIGNAL_SECONDS = 1.0
"""In which a SIGTERM that was sent to all processes of the job has reached the agent, too."""
_MOST = 1024  # signals that are read at once; the socket holds fewer
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_SIGTERM = bytes([signal.SIGTERM])


@dataclass(eq=False)
class SignalRecord:
    """The signals of one worker, ``pid``. Its forks write to the same socket, as untrusted as the worker's channel."""

    end: socket.socket
    pid: int
    terminated_at: float = -math.inf  # when SIGTERM was last read, on the agent's clock
    at_end: bool = False  # whether no process can write any more

    def read(self, now: float) -> None:
        """Read the signals that have come."""
        for _ in range(_MOST):
            try:
                data, ancillary, _, _ = self.end.recvmsg(
                    1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                return
            for _, type_, packed in ancillary:
                if type_ == socket.SCM_RIGHTS:
                    close_all(array("i", packed).tolist())
                elif data == _SIGTERM and _CREDENTIALS.unpack(packed)[0] == self.pid:
                    self.terminated_at = now
            if not data:
                self.at_end = True
                return


def parse_record(packet: bytes, descriptors: list[int]) -> SignalRecord | None:
    """Return the record that a packet with a descriptor brings, and take the descriptor; None for any other packet."""
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        return None
    match message:
        case {"type": str(name), "pid": int(pid)} if name == SIGNALS and len(descriptors) == 1:
            pass
        case _:
            return None
    try:
        end = socket.socket(fileno=descriptors[0])
    except OSError:  # it is no socket
        return None
    if (end.family, end.type) != KIND:
        end.detach()
        return None
    descriptors.clear()
    return SignalRecord(end, pid)
