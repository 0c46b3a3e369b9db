"""The check that no two rounds are alive at once, on signs of life that no job should ever leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_rounds import Life, live_spans, lives, two_alive


def ranks(number: int, *spans: tuple[float, float]) -> list[Life]:
    """A round in which rank 0 was alive from when until when, rank 1, and so on."""
    return [Life(number, rank, len(spans), *span) for rank, span in enumerate(spans)]


def test_two_rounds_that_are_whole_at_the_same_time_are_found() -> None:
    found = [*ranks(1, (0, 10), (0, 9)), *ranks(2, (8, 12))]
    assert two_alive(found) == [(1, 2)]


def test_an_earlier_round_that_is_whole_after_a_later_one_is_found() -> None:
    assert two_alive([*ranks(1, (20, 30)), *ranks(2, (0, 10)), *ranks(3, (40, 50))]) == [(1, 2)]


def test_every_two_rounds_are_compared_not_only_neighbours() -> None:
    found = [*ranks(1, (0, 10)), *ranks(2, (3, 4), (5, 6)), *ranks(3, (9, 12))]
    assert two_alive(found) == [(1, 3)], "round 2 was never whole"


def test_a_round_that_has_lost_a_rank_is_over_whatever_its_others_do() -> None:
    found = [*ranks(1, (0, 5), (0, 100)), *ranks(2, (6, 12), (6, 13))]
    assert two_alive(found) == []
    assert live_spans(found) == {1: (0, 5), 2: (6, 12)}


def test_a_round_that_still_lacks_a_rank_is_not_alive_yet() -> None:
    lone = [Life(2, 0, 2, 1, 100)]
    assert two_alive([*ranks(1, (0, 10)), *lone]) == []
    assert two_alive([*ranks(1, (0, 10)), *lone, Life(2, 1, 2, 9, 100)]) == [(1, 2)]


def test_a_rank_of_which_there_are_two_is_found() -> None:
    with pytest.raises(AssertionError, match="rank 1 of round 3 was started twice"):
        live_spans([Life(3, 1, 2, 0, 1), Life(3, 1, 2, 5, 6)])


def test_a_life_lasts_from_the_first_sign_to_the_last_whole_one(tmp_path: Path) -> None:
    signs = [json.dumps({"round": 4, "rank": 1, "world_size": 3, "at": at}) + "\n" for at in (1.5, 2.5, 3.5)]
    (tmp_path / "4-1-77").write_text("".join(signs)[:-3])  # the last one was cut short by SIGKILL
    (tmp_path / "4-2-78").touch()  # killed before it wrote anything
    assert lives(tmp_path) == [Life(4, 1, 3, 1.5, 2.5)]
