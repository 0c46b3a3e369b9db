"""Rows: whose they are, and the times at which nodes say how far their workers are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import seen

from elastic_core.protocol.roster import SPREAD_ABOVE_MEMBERS, Ask, NodeRow, seconds_to_workers_row

ROW = replace(seen("a").row, run="")
ASKS = (Ask("load", "7", 0),)


@pytest.mark.parametrize(
    ("row", "is_request"),
    [
        pytest.param(ROW, False, id="a node that only looks"),
        pytest.param(replace(ROW, drain=("b",)), True, id="nodes are to leave"),
        pytest.param(replace(ROW, release=("b",)), True, id="nodes are gone"),
        pytest.param(replace(ROW, asks=ASKS), True, id="a command asks"),
        pytest.param(replace(ROW, asks=ASKS, run="run1"), False, id="a node of the run asks"),
    ],
)
def test_a_request_is_known_by_what_it_asks_for(row: NodeRow, is_request: bool) -> None:
    assert row.is_request is is_request


@pytest.mark.parametrize(
    ("age", "members", "seconds"),
    [
        pytest.param(11.0, 2, 4.0, id="every 5 s"),
        pytest.param(14.5, 2, 5.5, id="not within the first second"),
        pytest.param(14.0, 2, 1.0, id="but right after it"),
        pytest.param(15.0, 2, 5.0, id="just now"),
        pytest.param(11.0, SPREAD_ABOVE_MEMBERS, 4.0, id="as many as still say it together"),
    ],
)
def test_a_small_round_says_it_every_five_seconds(age: float, members: int, seconds: float) -> None:
    assert seconds_to_workers_row(age, members, "a") == pytest.approx(seconds)


def test_the_members_of_a_large_round_say_it_seldom_and_within_one_second() -> None:
    found = [61.0 + seconds_to_workers_row(61.0, 1000, f"n{i}") for i in range(1000)]
    assert 90.0 <= min(found) < 90.1
    assert 90.9 < max(found) <= 91.0
    assert SPREAD_ABOVE_MEMBERS < 1000
