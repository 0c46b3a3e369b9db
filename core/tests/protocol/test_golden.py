"""The bytes of entries and rows that nodes of this protocol version exchange: no change of them goes unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from views import entry, incident, info, members, offer, settings, start

from elastic_core import __version__
from elastic_core.incidents import Explanation, Failure, FailureClass
from elastic_core.protocol.codec import decode_entry, decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import (
    Answers,
    Body,
    Closed,
    Counters,
    Drain,
    Halt,
    HaltReason,
    Leader,
    Open,
    Over,
    Plan,
    Question,
    Resume,
    Round,
    SpentRestart,
    StopAt,
)
from elastic_core.protocol.roster import Answer, Ask, NodeRow, Phase, Reached, Slots
from elastic_core.protocol.settings import PROTOCOL

GOLDEN = Path(__file__).with_name("golden") / f"protocol-{PROTOCOL}.jsonl"
ROUND = Round(number=1, offer=offer("a"), members=members("ab"), hosts=("host-a", "host-b"), why="the first round")
FOLLOWER = replace(
    incident("b"),
    message="RuntimeError: Connection closed by peer",
    exception="RuntimeError",
    follows_peer=True,
    explanation=Explanation(
        failure_class=FailureClass.PEER, name="the peer is gone", advice="Look for it.", hosts_fault=True
    ),
    checkpoint="/ckpt/7",
)
HALT = Halt(round=1, reason=HaltReason.FAILURE, why="rank 0 failed", incident=incident("a"))
OVER = Over(round=1, left=("b",))
BODIES: tuple[Body, ...] = (
    Open(scheduler_uid="s1", settings=settings()),
    Leader(why="a leaves"),
    ROUND,
    HALT,
    Plan(round=1, reason=HaltReason.RESIZE, why="c joins", deadline=300.0),
    StopAt(round=1, step=7),
    OVER,
    Drain(nodes=("a",), why="drained"),
    Question(round=1, name="load", value="7", asked_by="host-a"),
    Answers(round=1, name="load", question=9, report="[7]"),
    Closed(success=False, why="no restart is left", exit_code=1, incident=incident("a")),
    Resume(
        opened=Open(scheduler_uid=None, settings=settings()),
        round=ROUND,
        halt=HALT,
        over=OVER,
        epoch=1,
        index=9,
        why="lost",
    ),
)
ROWS = (
    NodeRow(info=info("a")),
    NodeRow(
        info=info("b"),
        run="run1",
        phase=Phase.STOPPED,
        round=1,
        head=3,
        offer=offer("b"),
        incident=FOLLOWER,
        leaving=True,
        grace=30.0,
        probed=1,
        unreachable=("a",),
        unread=("x",),
        slots=Slots(2, (1,)),
    ),
    NodeRow(
        info=info("c"),
        asks=(Ask("load", "7", 9),),
        answer=Answer(9, "[1]"),
    ),
    NodeRow(info=info("d"), reached=Reached(7, step=900, moved=True, saved=True)),
)
FAILURE = Failure(
    round=1,
    rank=0,
    host="host-a",
    exception="KeyError",
    exit_code=1,
    step=900,
    new_checkpoint=True,
    place="train.py:41 in step",
    digest="0123abcd",
    after=8.5,
    moved=True,
    checkpoint="step-900.pt",
    failure_class=FailureClass.SCRIPT,
    hosts_fault=True,
)
COUNTERS = Counters(restarts=1, failures=(SpentRestart(failure=FAILURE, age=9.5),))
CHANGED = f"""The bytes that nodes exchange have changed, and earlier releases of protocol {PROTOCOL} have to read them.
- A field was added: give it a default and metadata=SKIPPABLE (protocol.schema), so that they skip it.
- Anything else: raise PROTOCOL (protocol.settings).
Then write the golden file anew: python core/tests/protocol/test_golden.py"""


def encoded() -> list[str]:
    """Each value with its release left open."""
    values = [encode_entry(entry(start(), body, at=1.0)) for body in BODIES] + [encode_row(row) for row in ROWS]
    values.append(encode_entry(entry(start(), HALT, at=1.0, counters=COUNTERS)))
    return [value.decode().replace(f'"by":"{__version__}"', '"by":"RELEASE"') for value in values]


def test_encoded_entries_and_rows_are_those_of_this_protocol_version() -> None:
    assert encoded() == GOLDEN.read_text().splitlines(), CHANGED


@pytest.mark.parametrize("line", GOLDEN.read_text().splitlines() if GOLDEN.exists() else [])
def test_entries_and_rows_of_another_release_of_this_protocol_version_are_read(line: str) -> None:
    plain = json.loads(line)
    data = json.dumps({**plain, "by": "9.9.9", "of_another_release?": {"a": [1]}}).encode()
    if "body" in plain:
        assert encode_entry(decode_entry(data)) == encode_entry(decode_entry(line.encode()))
    else:
        assert encode_row(decode_row(data)) == encode_row(decode_row(line.encode()))


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("".join(f"{line}\n" for line in encoded()))
