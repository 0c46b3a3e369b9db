"""Tracebacks of ranks that have only lost a peer are folded, and no others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from elastic_causes.plugin import CauseFinder
from elastic_causes.tracebacks import HOLD_SECONDS, FoldedTracebacks
from elastic_core.monitors import RunningRound, Shape

HEAD = b"Traceback (most recent call last):\n"
OWN = HEAD + b'  File "/job/train.py", line 3, in <module>\n    load()\nValueError: bad sample\n'
CLOSED = b"RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:8064\n"
PEERS = HEAD + b'  File "/job/train.py", line 9, in <module>\n    dist.all_reduce(x)\n' + CLOSED
CHAINED = PEERS + b"\nDuring handling of the above exception, another exception occurred:\n\n" + HEAD + CLOSED
FOLDED = b"%s (a traceback of %d lines, after the loss of a peer: %s)\n"
KEPT = b"/logs/rank_2/stderr.log has it"


class Clock:
    at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fold(clock: Clock, path: str | None = "/logs/rank_2/stderr.log") -> FoldedTracebacks:
    return FoldedTracebacks(None if path is None else Path(path), clock)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(b"epoch 1\nepoch 2", b"epoch 1\nepoch 2", id="no traceback"),
        pytest.param(b"epoch 1\n" + OWN, b"epoch 1\n" + OWN, id="the rank's own failure"),
        pytest.param(b"epoch 1\n" + PEERS, b"epoch 1\n" + FOLDED % (CLOSED[:-1], 4, KEPT), id="the loss of a peer"),
        pytest.param(CHAINED, FOLDED % (CLOSED[:-1], 9, KEPT), id="chained exceptions"),
        pytest.param(
            PEERS.replace(b"\n", b"\n[rank2]: ").join([b"[rank2]: ", b""])[: -len(b"[rank2]: ")],
            b"[rank2]: " + FOLDED % (CLOSED[:-1], 4, KEPT),
            id="with torch's prefix",
        ),
        pytest.param(
            PEERS.replace(b"RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553]", b"ConnectionError:"),
            PEERS.replace(b"RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553]", b"ConnectionError:"),
            id="a connection of the program's own",
        ),
    ],
)
@pytest.mark.parametrize("by_line", [True, False], ids=["line by line", "at once"])
def test_a_traceback_after_the_loss_of_a_peer_is_one_line(
    clock: Clock, text: bytes, shown: bytes, by_line: bool
) -> None:
    stream = fold(clock)
    pieces = text.splitlines(keepends=True) if by_line else [text]
    assert b"".join([*map(stream.feed, pieces), stream.finish()]) == shown
    assert stream.due == math.inf


def test_where_nothing_keeps_it_the_line_says_what_would(clock: Clock) -> None:
    stream = fold(clock, None)
    assert stream.feed(PEERS) == b""
    assert stream.finish() == FOLDED % (CLOSED[:-1], 4, b"--log_dir keeps it")


def test_a_program_that_goes_on_after_a_traceback_is_shown_whole(clock: Clock) -> None:
    stream = fold(clock)
    assert stream.feed(PEERS + b"trying again\n") == b""
    assert stream.due == clock.at + HOLD_SECONDS
    clock.at += HOLD_SECONDS
    assert (stream.overdue(), stream.due) == (PEERS + b"trying again\n", math.inf)
    assert stream.feed(b"epoch 2\n") == b"epoch 2\n"


def test_a_program_that_writes_much_after_a_traceback_is_not_held(clock: Clock) -> None:
    stream, more = fold(clock), b"x" * 999 + b"\n"
    shown = [stream.feed(OWN), *(stream.feed(more) for _ in range(300)), stream.finish()]
    assert b"".join(shown) == OWN + 300 * more
    assert shown[-1] == b""


def test_a_prefix_stays(clock: Clock) -> None:
    stream = fold(clock, None)
    assert stream.feed(b"".join(b"[trainer2]:" + line for line in PEERS.splitlines(keepends=True))) == b""
    assert stream.finish() == b"[trainer2]:" + FOLDED % (CLOSED[:-1], 4, b"--log_dir keeps it")


def test_the_plugin_folds_tracebacks_of_each_round() -> None:
    finder = CauseFinder()
    for number in (1, 2):
        round = RunningRound(number, "run", ["a"], Path())
        finder.elastic_round_starts(round)
        stream = round.readers.shape(Shape(), 2, Path("/logs/rank_2/stderr.log"))
        assert (stream.feed(PEERS), stream.finish()) == (b"", FOLDED % (CLOSED[:-1], 4, KEPT))
