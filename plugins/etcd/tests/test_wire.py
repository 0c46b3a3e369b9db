"""What a member answers is read to its end, however it says where that is; anything else is an error."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from elastic_rdzv_etcd.wire import Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    wire = Wire(ours, "etcd0:2379")
    with ours, theirs:
        yield wire, theirs
        wire.close()


def answered(ends: tuple[Wire, socket.socket], *answer: bytes, hang_up: bool = True) -> tuple[int, bytes]:
    wire, member = ends
    member.sendall(b"\r\n".join(answer))
    if hang_up:
        member.shutdown(socket.SHUT_WR)
    head = wire.ask("/v3/kv/range", b"{}", {})
    return head.status, b"".join(wire.pieces(head))


def test_a_request_is_what_a_server_expects(ends: tuple[Wire, socket.socket]) -> None:
    wire, member = ends
    member.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    wire.ask("/v3/kv/range", b'{"key": "AA=="}', {"Authorization": "token"})
    assert member.recv(65536) == (
        b"POST /v3/kv/range HTTP/1.1\r\nHost: etcd0:2379\r\nContent-Length: 15\r\nAuthorization: token\r\n\r\n"
        b'{"key": "AA=="}'
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([b"HTTP/1.1 200 OK", b"content-length: 4", b"", b"{}\r\n"], b"{}\r\n"),
        (
            [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"", b"2", b"{}", b"1;x=y", b"\n", b"0", b"", b""],
            b"{}\n",
        ),
        ([b"HTTP/1.1 100 Continue", b"", b"HTTP/1.1 200 OK", b"Content-Length: 2", b"", b"{}"], b"{}"),
        ([b"HTTP/1.0 200 OK", b"", b"{}"], b"{}"),
    ],
)
def test_an_answer_ends_where_it_says(ends: tuple[Wire, socket.socket], answer: list[bytes], text: bytes) -> None:
    assert answered(ends, *answer) == (200, text)


def test_one_answer_after_another_is_read_from_one_connection(ends: tuple[Wire, socket.socket]) -> None:
    chunked = [b"HTTP/1.1 503 Busy", b"Transfer-Encoding: chunked", b"", b"2", b"{}", b"0", b"", b""]
    assert answered(ends, *chunked, hang_up=False) == (503, b"{}")
    assert answered(ends, b"HTTP/1.1 200 OK", b"Content-Length: 2", b"", b"[]") == (200, b"[]")


@pytest.mark.parametrize(
    "answer",
    [
        [b"SSH-2.0-OpenSSH_9.2", b""],
        [b"HTTP/1.1 fine", b"", b""],
        [b"HTTP/1.1 200 OK", b"Content-Length: 2"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 3", b"", b"{}"],
        [b"HTTP/1.1 200 OK", b"Content-Length: -3", b"", b"{}"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 99999999999999", b"", b"{}"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"", b"2", b"{}"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"", b"-1", b"{}", b"0", b"", b""],
        [b"HTTP/1.1 200 OK", *[b"X: y"] * 1000, b"", b""],
        [b"HTTP/1.1 200 OK", b"X: " + b"y" * 100_000, b"", b""],
    ],
)
def test_what_is_no_answer_is_an_error(ends: tuple[Wire, socket.socket], answer: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        answered(ends, *answer)


def test_a_member_that_hangs_up_and_a_header_that_cannot_be_sent_are_errors(ends: tuple[Wire, socket.socket]) -> None:
    wire, _ = ends
    with pytest.raises(ValueError, match="line break"):
        wire.ask("/", b"", {"Authorization": "a\r\nb"})
    with pytest.raises(EOFError):
        answered(ends)
