"""As much of HTTP/1.1 as it takes to ask a member of etcd, over a socket that somebody else has made.

Not the standard library's client: with that one a request takes twice the CPU time, mostly to read headers as mail, of
which two matter here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MOST_BYTES = 512 * 1024 * 1024
"""No answer is read beyond this: a roster of a thousand rows of the greatest size, in base64."""
LONGEST_LINE = 64 * 1024
"""No line of an answer's head is read beyond this."""
MOST_LINES = 128
"""No head has more."""
PIECE = 64 * 1024
"""Bytes that are read at a time where an answer does not say how many there are."""


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins.

    Attributes:
        status: Such as 200.
        length: Bytes of what follows; None where it comes in chunks, or ends with the connection.
        chunked: Whether it comes in chunks.
    """

    status: int
    length: int | None
    chunked: bool


class Wire:
    """One connection, used by one thread at a time. Every method may raise what the socket raises.

    Args:
        connected: The socket, which stays the caller's.
        host: What the member is called, with its port.
    """

    def __init__(self, connected: socket.socket, host: str) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")
        self._host = host if host.isascii() else host.encode("idna").decode()

    def close(self) -> None:
        """Let go of the socket."""
        self._file.close()

    def ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> Head:
        """Post, in one packet mostly, and read the head of the answer; :meth:`pieces` reads the rest.

        Raises:
            EOFError: The member has hung up without an answer.
            ValueError: A header cannot be sent, or what comes is not HTTP.
        """
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not all(map(str.isprintable, lines)):
            raise ValueError("a header has a line break")
        self._socket.sendall("\r\n".join([*lines, "\r\n"]).encode("latin-1") + body)
        head = self._head()
        while head.status < 200:  # it will answer
            head = self._head()
        return head

    def pieces(self, head: Head) -> Iterator[bytes]:
        """What follows a head, as it comes.

        Raises:
            ValueError: It ends too early, or is not HTTP.
        """
        if head.chunked:
            while size := int(self._line().partition(b";")[0], 16):
                yield self._exactly(size)
                self._line()
            while self._line():  # trailers
                pass
        elif head.length is not None:
            yield self._exactly(head.length)
        else:
            while piece := self._file.read1(PIECE):
                yield piece

    def _head(self) -> Head:
        first = self._file.readline(LONGEST_LINE)
        if not first:
            raise EOFError("no answer")
        version, _, status = first.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"{first[:80]!r} is not HTTP")
        length, chunked = None, False
        for _ in range(MOST_LINES):
            if not (line := self._line()):
                return Head(int(status[:3]), None if chunked else length, chunked)
            name, _, value = line.partition(b":")
            match name.lower():
                case b"content-length":
                    length = int(value)
                case b"transfer-encoding":
                    chunked = value.strip().lower() == b"chunked"
        raise ValueError("its head does not end")

    def _line(self) -> bytes:
        line = self._file.readline(LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise ValueError("it ends too early")
        return line.rstrip(b"\r\n")

    def _exactly(self, size: int) -> bytes:
        if not 0 <= size <= MOST_BYTES:
            raise ValueError(f"it announces {size} bytes")
        piece = self._file.read(size)
        if len(piece) < size:
            raise ValueError("it ends too early")
        return piece
