"""JSON messages with descriptors over a stream socket: agent, warden, starter. Nothing here blocks."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence

TYPE_CHECKING = False  # typing's, which takes 0.6 MB of the warden
if TYPE_CHECKING:
    from typing import Any, TypeAlias

Message: TypeAlias = "dict[str, Any]"

_LENGTH = struct.Struct("!I")
_INT = struct.Struct("i")
MOST_DESCRIPTORS = 16  # with one message; a worker takes three standard streams, a control channel and a pipe
_ANCILLARY = socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT.size)


class Channel:
    """One end of the socket. Each JSON object comes after its length in four bytes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._outgoing: deque[tuple[memoryview, list[int]]] = deque()
        self._incoming = bytearray()
        self._descriptors: deque[list[int]] = deque()
        self.closed = False
        """The other end is closed, and all that it sent was received. What is sent from then on is dropped."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    @property
    def pending(self) -> bool:
        """True if a message waits for the socket to have room."""
        return bool(self._outgoing)

    @property
    def is_between_messages(self) -> bool:
        """True if no part of a message is left here, so that another process can go on with the socket."""
        return not (self._incoming or self._outgoing)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, now or as soon as there is room. The caller may close the descriptors at once.

        Raises:
            OSError: No descriptor is left for copies; nothing is sent.
        """
        if self.closed:
            return
        body = json.dumps(message).encode()
        copies: list[int] = []
        try:
            for fd in descriptors:
                copies.append(os.dup(fd))  # noqa: PERF401  (what was copied before one fails must be known)
        except OSError:
            close_all(copies)
            raise
        self._outgoing.append((memoryview(_LENGTH.pack(len(body)) + body), copies))
        self.flush()

    def flush(self) -> None:
        """Send as much of what is pending as there is room for."""
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            try:
                sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else self._sock.send(data)
            except BlockingIOError:
                return
            except ConnectionError:  # receive will come to the end, too
                self._discard()
                return
            close_all(descriptors)  # they went with the first byte
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], [])

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Return all whole messages that have come, each with its descriptors, which the caller has to close."""
        while not self.closed:
            try:
                # Not socket.recv_fds: before Python 3.12 it forgets its flags, and the descriptors leak into workers.
                data, ancillary, flags, _ = self._sock.recvmsg(1 << 16, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except ConnectionError:
                data, ancillary, flags = b"", [], 0
            self.closed = not data
            self._incoming += data
            # Descriptors come one message's at a time. If truncated, this process could not open all of them.
            if ancillary or flags & socket.MSG_CTRUNC:
                self._descriptors.append([fd for _, _, packed in ancillary for (fd,) in _INT.iter_unpack(packed)])
        return self._messages()

    def close(self) -> None:
        """Close the socket, and drop everything that has not been sent."""
        self.closed = True
        self._discard()
        self._sock.close()

    def _messages(self) -> list[tuple[Message, list[int]]]:
        messages: list[tuple[Message, list[int]]] = []
        start = 0
        while len(self._incoming) >= start + _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(self._incoming, start)[0]
            if len(self._incoming) < end:
                break
            message = json.loads(self._incoming[start + _LENGTH.size : end])
            messages.append((message, self._descriptors.popleft() if message.get("descriptors") else []))
            start = end
        del self._incoming[:start]
        return messages

    def _discard(self) -> None:
        for _, descriptors in self._outgoing:
            close_all(descriptors)
        self._outgoing.clear()


def close_all(descriptors: list[int]) -> None:
    """Close descriptors, and forget them."""
    while descriptors:
        os.close(descriptors.pop())
