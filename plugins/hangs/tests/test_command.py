"""The lines of ``elastic stacks``."""

from __future__ import annotations

from elastic_hangs.judgement import Report
from elastic_hangs.lookup import Located, describe

REPORT = Report(round=2, why="by hand", report="rank 1 is in f (train.py:3)\nrank 0 is in g (train.py:4)")


def test_where_the_ranks_are() -> None:
    assert list(describe(Located(REPORT, {}), full=False)) == [
        "round 2: where the ranks are:\n  rank 1 is in f (train.py:3)\n  rank 0 is in g (train.py:4)"
    ]


def test_the_whole_stacks_follow_rank_by_rank() -> None:
    _, *lines = describe(Located(REPORT, {0: "one\ntwo\n", 1: "three"}), full=True)
    assert lines == ["\nrank 0", "  one", "  two", "\nrank 1", "  three"]


def test_whole_stacks_that_are_missing_are_said_to_be() -> None:
    assert list(describe(Located(REPORT, {}), full=True))[-1].startswith("\nThe whole stacks did not arrive")
