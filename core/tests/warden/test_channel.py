"""Messages between agent and warden over a real socket, descriptors beside them."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from elastic_core.warden.channel import Channel, Message, close_all

BIG: Message = {"text": "x" * 3_000_000}
"""More than a socket holds."""


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, Channel]]:
    """A channel, and its other end as a plain socket, for what no channel would send."""
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(theirs)
        yield ours, channel
        channel.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends; the test closes the writing one."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def packed(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def messages(received: list[tuple[Message, list[int]]]) -> list[Message]:
    """The messages, which came without descriptors."""
    assert all(descriptors == [] for _, descriptors in received)
    return [message for message, _ in received]


def is_gone(pipe: tuple[int, int]) -> bool:
    """Return True if no process holds the writing end any more."""
    return select.select([pipe[0]], [], [], 0)[0] != []


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The process can open nothing more for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # which is stdin's
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Messages ------------------------------------------------------------------------------------------------------------


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    sent: list[Message] = [{"number": 1}, {}, {"text": "ü\n\0\udcff", "list": [None, 1.5, {"a": True}]}, {"number": 2}]
    for message in sent:
        pair[0].send(message)
    assert messages(pair[1].receive()) == sent
    assert pair[1].receive() == []


def test_both_ends_send_and_receive(pair: tuple[Channel, Channel]) -> None:
    pair[0].send({"from": "agent"})
    pair[1].send({"from": "warden"})
    assert [messages(end.receive()) for end in pair] == [[{"from": "warden"}], [{"from": "agent"}]]


def test_a_message_is_received_once_its_last_byte_is_there(wire: tuple[socket.socket, Channel]) -> None:
    """Cut at every place, among them the middle of the length."""
    sock, channel = wire
    first, second = packed({"number": 1}), packed({"text": "two"})
    received = []
    for byte in first + second:
        sock.send(bytes([byte]))
        received.append(messages(channel.receive()))
    assert [(index, found) for index, found in enumerate(received, 1) if found] == [
        (len(first), [{"number": 1}]),
        (len(first + second), [{"text": "two"}]),
    ]


def test_messages_that_the_socket_does_not_take_wait_and_block_no_sender(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    ours.send(BIG)
    ours.send({"number": 2})
    assert ours.pending
    received: list[Message] = []
    while ours.pending:
        received += messages(theirs.receive())
        ours.flush()
    received += messages(theirs.receive())
    assert received == [BIG, {"number": 2}]


def test_a_socket_that_takes_everything_leaves_nothing_pending(pair: tuple[Channel, Channel]) -> None:
    pair[0].send({})
    assert not pair[0].pending


# Descriptors ---------------------------------------------------------------------------------------------------------


def send(channel: Channel, message: Message, *descriptors: int) -> None:
    """Send a message and close its descriptors at once. As the protocol has it, it says that there are some."""
    channel.send({**message, "descriptors": len(descriptors)}, descriptors)
    close_all(list(descriptors))


def test_descriptors_arrive_with_their_message_in_order(pair: tuple[Channel, Channel]) -> None:
    ends = [os.pipe() for _ in range(4)]
    send(pair[0], {"number": 1}, *(writing for _, writing in ends))
    [(message, descriptors)] = pair[1].receive()
    assert (message["number"], len(descriptors)) == (1, 4)
    for number, fd in enumerate(descriptors):
        os.write(fd, b"%d" % number)
    close_all(descriptors)
    assert [os.read(reading, 100) for reading, _ in ends] == [b"0", b"1", b"2", b"3"]
    assert [os.read(reading, 100) for reading, _ in ends] == [b""] * 4  # no process kept a copy
    close_all([reading for reading, _ in ends])


def test_each_message_has_its_own_descriptors_whatever_lies_between(pair: tuple[Channel, Channel]) -> None:
    """Many at once, of all sizes, through a socket that takes only a part of each."""
    ours, theirs = pair
    ends = {number: os.pipe() for number in range(12)}
    for number, (_, writing) in ends.items():
        ours.send({**BIG, "number": -1} if number % 3 == 0 else {"number": -1})
        send(ours, {**BIG, "number": number} if number % 4 == 0 else {"number": number}, writing)
    received: list[tuple[Message, list[int]]] = []
    while len(received) < 24:
        received += theirs.receive()
        ours.flush()
    for message, descriptors in received:
        assert len(descriptors) == (message["number"] >= 0)
        for fd in descriptors:
            os.write(fd, b"%d" % message["number"])
        close_all(descriptors)
    assert {number: os.read(reading, 100) for number, (reading, _) in ends.items()} == {n: b"%d" % n for n in ends}
    close_all([reading for reading, _ in ends.values()])


def test_received_descriptors_do_not_leak_into_workers(pair: tuple[Channel, Channel], pipe: tuple[int, int]) -> None:
    send(pair[0], {}, pipe[1])
    [(_, [fd])] = pair[1].receive()
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_descriptors_that_could_not_be_opened_are_missing_and_mix_up_nothing(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    ends = [os.pipe() for _ in range(2)]
    send(ours, {"number": 1}, ends[0][1])
    with no_descriptor_left():
        [(_, missing)] = theirs.receive()
    assert missing == []
    send(ours, {"number": 2}, ends[1][1])
    [(message, [fd])] = theirs.receive()
    os.write(fd, b"%d" % message["number"])
    os.close(fd)
    assert [os.read(reading, 100) for reading, _ in ends] == [b"", b"2"]
    close_all([reading for reading, _ in ends])


# Ends ----------------------------------------------------------------------------------------------------------------


def test_messages_sent_before_the_end_are_received(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    ours.send({"number": 1})
    ours.close()
    assert not theirs.closed
    assert messages(theirs.receive()) == [{"number": 1}]
    assert theirs.closed
    assert theirs.receive() == []


def test_a_message_that_was_cut_off_by_the_end_is_no_message(wire: tuple[socket.socket, Channel]) -> None:
    sock, channel = wire
    sock.send(packed({"number": 1}) + packed({"number": 2})[:-1])
    sock.close()
    assert messages(channel.receive()) == [{"number": 1}]
    assert channel.closed


def test_the_end_is_noticed_though_it_never_read_what_it_was_sent(pair: tuple[Channel, Channel]) -> None:
    """Then the kernel says "connection reset" instead of end-of-file."""
    ours, theirs = pair
    theirs.send({"number": 1})
    ours.send({"number": 2})
    theirs.close()
    assert messages(ours.receive()) == [{"number": 1}]
    assert ours.closed


@pytest.mark.parametrize("heard", [True, False], ids=["that the end was heard of", "that it was not"])
def test_a_message_sent_after_the_end_is_dropped_with_its_descriptors(
    pair: tuple[Channel, Channel], pipe: tuple[int, int], heard: bool
) -> None:
    ours, theirs = pair
    theirs.close()
    if heard:
        ours.receive()
    send(ours, {}, pipe[1])
    assert not ours.pending
    assert is_gone(pipe)


def test_closing_drops_what_is_pending_with_its_descriptors(
    pair: tuple[Channel, Channel], pipe: tuple[int, int]
) -> None:
    ours, _ = pair
    ours.send(BIG)
    send(ours, {}, pipe[1])
    assert not is_gone(pipe)
    ours.close()
    assert not ours.pending
    assert is_gone(pipe)
    ours.send({"too": "late"})
    assert not ours.pending


def test_an_end_that_went_away_takes_no_more_of_what_is_pending(
    pair: tuple[Channel, Channel], pipe: tuple[int, int]
) -> None:
    ours, theirs = pair
    ours.send(BIG)
    send(ours, {}, pipe[1])
    theirs.close()
    ours.flush()
    assert not ours.pending
    assert is_gone(pipe)


def test_a_caller_that_has_no_descriptor_left_is_told_so(pair: tuple[Channel, Channel], pipe: tuple[int, int]) -> None:
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        pair[0].send({"descriptors": 1}, [pipe[1]])
    os.close(pipe[1])
    assert not pair[0].pending


def test_closing_descriptors_forgets_them(pipe: tuple[int, int]) -> None:
    descriptors: list[Any] = [pipe[1]]
    close_all(descriptors)
    assert descriptors == []
    assert is_gone(pipe)
