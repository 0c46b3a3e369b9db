"""Bytes in and out: what comes back is what went in, and anything else is refused by name."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from views import entry, incident, info, live, members, offer, settings, start

from elastic_core import __version__
from elastic_core.errors import RendezvousStateError
from elastic_core.incidents import Failure
from elastic_core.protocol.codec import OversizedError, decode_entry, decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import (
    Body,
    Closed,
    Counters,
    Drain,
    Exclusion,
    Halt,
    HaltReason,
    HostLosses,
    Leader,
    Member,
    Open,
    Plan,
    Round,
    SpentRestart,
    StopAt,
)
from elastic_core.protocol.roster import NodeRow, Phase
from elastic_core.protocol.schema import SKIPPABLE, reader, writer
from elastic_core.protocol.settings import PROTOCOL
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES

UNEQUAL = (Member("a", 2, "trainer"), Member("b", 4, "reader"))
BODIES: list[Body] = [
    Open(scheduler_uid="slurm-7", settings=settings(lost_after=9.0)),
    Leader(why="no heartbeat"),
    Round(number=1, offer=offer("a"), members=members("abc"), why="the first round"),
    Round(number=1, offer=offer("a"), members=UNEQUAL),
    Round(number=1, offer=offer("a"), members=tuple(Member(f"{i:012x}", i, "many") for i in range(200))),
    Round(number=2, offer=offer("a"), same_as=1, charged=True),
    Halt(round=1, reason=HaltReason.FAILURE, why="rank 0", incident=incident("a")),
    Plan(round=1, reason=HaltReason.RESIZE, why="c joins", deadline=300.0),
    StopAt(round=1, step=2**53),
    Drain(nodes=("a", "b"), why="asked to leave"),
    Closed(success=False, why="no restart", exit_code=1, incident=incident("a"), requeue=True),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_entries_come_back_as_they_went_in(body: Body) -> None:
    failure = Failure(round=1, rank=3, host="a", exception="E", exit_code=-9, step=7)
    spent = (SpentRestart(failure=failure, age=2.5),)
    excluded = (Exclusion("x"), Exclusion("y", 90))
    counters = Counters(failures=spent, restarts=2, losses={"id": HostLosses(1, 2.5)}, worst_seen=0.5)
    counters = replace(counters, excluded=excluded)
    written = entry(live("ab"), body, at=20.0, counters=counters)
    assert decode_entry(encode_entry(written)) == written


@pytest.mark.parametrize(
    "row",
    [
        NodeRow(info=info("a")),
        NodeRow(
            info=info("a"),
            run="r",
            phase=Phase.RUNNING,
            round=3,
            head=9,
            offer=offer("a"),
            incident=incident("a"),
            progressed=True,
        ),
    ],
)
def test_rows_come_back_as_they_went_in(row: NodeRow) -> None:
    assert decode_row(encode_row(row)) == row


@pytest.mark.parametrize("roles", [("default",), ("trainer", "reader")])
def test_a_round_of_1024_nodes_costs_under_10_bytes_a_node(roles: tuple[str, ...]) -> None:
    many = tuple(Member(f"{i:012x}", 8, roles[i % len(roles)]) for i in range(1024))
    empty = encode_entry(entry(start(), Round(number=1, offer=offer("a")), at=1.0))
    data = encode_entry(entry(start(), Round(number=1, offer=offer("a"), members=many), at=1.0))
    assert (len(data) - len(empty)) / 1024 < 10
    assert decode_entry(data).body == Round(number=1, offer=offer("a"), members=many)


@pytest.mark.parametrize("odd", ["host-a", "0123456789AB", "0123 456789a", "012345678", "", "0123456789ab" * 2])
def test_an_id_that_is_no_agents_comes_back_as_it_went_in(odd: str) -> None:
    body = Round(number=1, offer=offer("a"), members=(Member("0123456789ab", 8, "default"), Member(odd, 8, "default")))
    assert decode_entry(encode_entry(entry(start(), body, at=1.0))).body == body


def test_a_field_that_is_marked_and_not_known_is_skipped() -> None:
    assert decode_entry(changed(**{"colour?": "red"})) == decode_entry(changed())


def test_a_field_that_was_added_within_a_protocol_version_is_written_with_a_mark() -> None:
    @dataclass(frozen=True)
    class Newer:
        old: int = 0
        new: int = field(default=0, metadata=SKIPPABLE)

    assert writer(Newer)(Newer(1, 2)) == {"old": 1, "new?": 2}
    assert reader(Newer)({"old": 1, "new?": 2, "newer?": []}) == Newer(1, 2)


def test_a_row_ends_with_its_last_value_that_is_not_the_default() -> None:
    excluded = (Exclusion("x"), Exclusion("y", 90))
    written = encode_entry(entry(start(), Leader(why="x"), at=1.0, counters=Counters(excluded=excluded)))
    assert json.loads(written)["counters"]["excluded"] == [["x"], ["y", 90]]
    assert decode_entry(written).counters.excluded == excluded


def changed(**change: Any) -> bytes:
    plain = json.loads(encode_entry(entry(start(), Leader(why="x"), at=1.0)))
    plain.update(change)
    return json.dumps({key: value for key, value in plain.items() if value != "DROP"}).encode()


class Planted:
    """Unpickling this would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("code from the network was run",))


@pytest.mark.parametrize(
    ("what", "data", "says"),
    [
        ("a pickle", pickle.dumps(Planted()), "not JSON"),
        ("random bytes", b"\xff\x00\x80", "not JSON"),
        ("deep nesting", b"[" * 100_000, "not JSON"),
        ("too much", b" " * (MAX_VALUE_BYTES + 1), f"has {MAX_VALUE_BYTES + 1} bytes"),
        ("no object", b"[1]", "not a JSON object"),
        (
            "another version",
            changed(v=PROTOCOL + 1),
            rf"protocol version {PROTOCOL + 1}, written by elastic-core {__version__} \(which speaks {PROTOCOL}\); "
            rf"this node speaks {PROTOCOL} "
            rf"\(elastic-core {__version__}\)",
        ),
        (
            "a later release",
            changed(v=99, by="0.9.0", speaks=[98, 99]),
            r"protocol version 99, written by elastic-core 0.9.0 \(which speaks 98 to 99\); "
            rf"this node speaks {PROTOCOL} ",
        ),
        (
            "versions that are none",
            changed(v=[9] * 99, by="\x1b[2J", speaks="all"),
            rf"protocol version \[9, 9, 9, 9, 9, 9, 9; this node speaks {PROTOCOL} ",
        ),
        ("no version", changed(v="DROP"), "protocol version None"),
        ("an unknown kind", changed(body={"kind": "HALLO"}), "of no known kind"),
        ("an unknown field", changed(colour="red"), "unknown field 'colour'"),
        ("a missing field", changed(term="DROP"), "lacks the field 'term'"),
        ("a string for a number", changed(term="1"), "entry.term is '1'"),
        ("a bool for a number", changed(term=True), "entry.term is True"),
        ("infinity", changed(elapsed=1e999), "entry.elapsed is inf"),
        ("a body without a kind", changed(body={"why": "x"}), "entry.body is of no known kind"),
        ("a body that is none", changed(body=[]), "entry.body is of no known kind"),
        ("a body of another kind", changed(body={"kind": "HALT", "why": "x"}), "entry.body lacks the field"),
        *(
            ("counters that are none", changed(counters=counters), path)
            for counters, path in (
                ({"losses": {"x": [1]}}, r"entry.counters.losses\['x'\] is \[1\]"),
                ({"losses": {"x": [1, 2.0, 3]}}, r"entry.counters.losses\['x'\] is \[1, 2.0, 3\]"),
                ({"losses": {"x": ["1", 2.0]}}, r"entry.counters.losses\['x'\]\['count'\] is '1'"),
                ({"excluded": ["x"]}, r"entry.counters.excluded\[0\] is 'x'"),
                ({"excluded": [["x", True]]}, r"entry.counters.excluded\[0\]\['until'\] is True"),
                ({"failures": [[{}, 1.0]]}, r"entry.counters.failures\[0\]\['failure'\] is {}"),
            )
        ),
        *(
            (
                "members that are none",
                changed(body={"kind": "ROUND", "number": 1, "members": packed}),
                "body.members are not",
            )
            for packed in (
                [["a"], [[1, "r"]], "00"],
                [["a", "b"], [[1, "r"]], "0/"],
                [["a"], [[1, "r"]], "b"],
                [["a"], [[1, "r"]], "!"],
                [["a"], [[1, "r"]], [-1]],
                [["a"], [[1, "r"]], [True]],
                [["a"], [["1", "r"]], ""],
                [["a"], [[True, "r"]], ""],
                [["a"], [[1]], ""],
                [["a"], [1], ""],
                [["a"], [[1, "r"], ["1", "r"]], ""],
                [["a"], [], ""],
                [[1], [[1, "r"]], ""],
                ["no base64", [[1, "r"]], ""],
                [{}, [[1, "r"]], ""],
            )
        ),
    ],
)
def test_an_impossible_entry_is_refused(what: str, data: bytes, says: str) -> None:
    with pytest.raises(RendezvousStateError, match=says):
        decode_entry(data)


def test_a_foreign_row_is_refused() -> None:
    with pytest.raises(RendezvousStateError, match=r"row\.phase is 'dancing'"):
        decode_row(encode_row(NodeRow(info=info("a"), run="r", phase=Phase.RUNNING)).replace(b"running", b"dancing"))


def test_nothing_oversized_is_written() -> None:
    with pytest.raises(OversizedError, match="at most"):
        encode_row(NodeRow(info=info("a"), run="r" * MAX_VALUE_BYTES))
