"""Decisions that touch no file, as tables."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_core.errors import UsageError
from elastic_torch.disk.catalog import Damage, Holding, holdings, stale, superfluous
from elastic_torch.disk.collective import Collective, PeerFailedError, SharedDirs, discover, shared_dirs_of
from elastic_torch.disk.disk import snapshot
from elastic_torch.disk.errors import CheckpointRefusedError
from elastic_torch.disk.fence import Claim, Identity, identity, number
from elastic_torch.disk.loader import assemble
from elastic_torch.disk.manifest import Counters, DamagedError, FileSum, Manifest, decode, encode
from elastic_torch.disk.schedule import Schedule, daly_interval, mean_time_between_failures, next_look
from elastic_torch.disk.storage import LocalStorage
from elastic_torch.version import Position, parse

FILES = {"a": FileSum(1, "aa"), "b": FileSum(2, "bb")}


def manifest(step: int = 1, save_id: str = "s", *, scattered: bool = False) -> Manifest:
    return Manifest(Position(1, 1, step), "uid", save_id, "who", "line", scattered, FILES, Counters(2, 3.5))


@pytest.mark.parametrize("position", [Position(1, 0, 0), Position(12345, 123456, 1234567890)])
def test_a_name_says_the_position(position: Position) -> None:
    assert parse(str(position)) == parse(f"{position}-0a1b") == position


@pytest.mark.parametrize("name", ["latest", ".saving-run-0001_round-00001_step-000000001", "run-1_round-1_step-1", ""])
def test_other_names_say_none(name: str) -> None:
    assert parse(name) is None


def test_runs_go_before_rounds_and_rounds_before_steps() -> None:
    ordered = [Position(1, 1, 9), Position(1, 2, 3), Position(1, 2, 4), Position(2, 0, 0)]
    assert sorted(ordered[i] for i in (2, 0, 3, 1)) == ordered


def test_the_identity_of_a_saver_comes_from_the_environment() -> None:
    mine = identity({"ELASTIC_RUN_UID": "abc", "ELASTIC_ROUND": "4", "TORCHELASTIC_RUN_ID": "job42"})
    assert (mine.uid, mine.round) == ("abc", 4)
    assert mine.who.startswith("job 'job42' on ")
    assert identity({}).uid != identity({}).uid, "without Elastic each start is a run of its own"


@pytest.mark.parametrize(
    ("claims", "uid", "round", "expected"),
    [
        pytest.param([], "a", 3, 1, id="the first run"),
        pytest.param([(1, 3, "a")], "a", 3, 1, id="the same round"),
        pytest.param([(1, 3, "a")], "a", 4, 1, id="the next round"),
        pytest.param([(1, 3, "a")], "a", 2, None, id="an older round"),
        pytest.param([(1, 3, "a")], "b", 0, 2, id="the next run"),
        pytest.param([(1, 3, "a"), (2, 1, "b")], "a", 9, None, id="an older run"),
        pytest.param([(1, 3, "a"), (2, 1, "b")], "b", 2, 2, id="the later run goes on"),
        pytest.param([(7, 3, "")], "b", 1, 8, id="only checkpoints are left of an earlier run"),
    ],
)
def test_runs_are_numbered_as_they_come(
    claims: list[tuple[int, int, str]], uid: str, round: int, expected: int | None
) -> None:
    known, me = [Claim(*claim, "somebody") for claim in claims], Identity(uid, round, "me")
    if expected is None:
        with pytest.raises(CheckpointRefusedError, match="has taken over"):
            number(known, me, "/checkpoints")
    else:
        assert number(known, me, "/checkpoints") == expected


@pytest.mark.parametrize(
    ("steps", "damaged", "keep", "expected"),
    [
        ([3, 2, 1], [], 3, []),
        ([4, 3, 2, 1], [], 3, [1]),
        ([4, 3, 2, 1], [3], 3, []),
        ([4, 3, 2, 1], [3], 2, [1]),
        ([4, 3, 2, 1], [1], 2, [2, 1]),
        ([4, 3, 2], [4, 3, 2], 1, []),
        ([2, 1], [2], 1, []),
        ([], [], 1, []),
    ],
)
def test_the_last_good_ones_stay(steps: list[int], damaged: list[int], keep: int, expected: list[int]) -> None:
    fault = (Damage("folder", "bad"),)
    found = [Holding(str(s), manifest(s), frozenset(), fault if s in damaged else ()) for s in steps]
    assert [holding.folder for holding in superfluous(found, keep, "line")] == [str(step) for step in expected]
    assert superfluous(found, keep, "another") == [], "nobody has gone on from them"


def test_of_a_scattered_checkpoint_another_nodes_files_are_neither_here_nor_missing(tmp_path: Path) -> None:
    kept = manifest(scattered=True)
    (tmp_path / str(kept.position)).mkdir()
    (tmp_path / str(kept.position) / "manifest.json").write_bytes(encode(kept))
    (tmp_path / str(kept.position) / "a").write_bytes(b"1")
    [found], damage = holdings(LocalStorage(tmp_path))
    assert found.intact == frozenset("a")
    assert not found.faults
    assert not damage


def test_only_earlier_turns_are_swept_up() -> None:
    mine, older = Position(2, 3, 1), Position(2, 2, 9)
    folders = [f".saving-{mine}-ab", f".saving-{older}-ab", f".removing-{mine}-ab", f"{mine}-ab", f"{older}-ab"]
    assert stale(folders, mine.turn) == [f".saving-{older}-ab", f".removing-{mine}-ab", f"{older}-ab"]


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode(encode(manifest())) == manifest()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff", encode(manifest())[:-1], encode(manifest()) + b" "]
)
def test_anything_else_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(data)


def test_a_manifest_does_not_lead_out_of_its_folder() -> None:
    evil = Manifest(Position(1, 1, 1), "u", "s", "w", "l", False, {"../x": FileSum(1, "")})
    with pytest.raises(DamagedError, match=r"lists '\.\./x'"):
        decode(encode(evil))


def holding(names: str, save_id: str = "s") -> Holding:
    return Holding("folder", manifest(save_id=save_id), frozenset(names))


@pytest.mark.parametrize(
    ("holdings", "sends", "needs"),
    [
        pytest.param({0: holding("ab")}, (), {}, id="one has all"),
        pytest.param({1: holding("ab")}, (("a", 1), ("b", 1)), {0: {"a", "b"}}, id="one has nothing"),
        pytest.param({0: holding("a"), 1: holding("b")}, (("a", 0), ("b", 1)), {0: {"b"}, 1: {"a"}}, id="parts"),
        pytest.param({0: holding("a"), 1: holding("ab")}, (("b", 1),), {0: {"b"}}, id="one is damaged"),
        pytest.param({0: holding("ab", "x"), 1: holding("ab", "y")}, (), {}, id="each has its own"),
        pytest.param(
            {0: holding("a", "x"), 1: holding("ab", "y")}, (("a", 1), ("b", 1)), {0: {"a", "b"}}, id="not mixed"
        ),
    ],
)
def test_everybody_gets_what_anybody_has(
    holdings: dict[int, Holding], sends: tuple[tuple[str, int], ...], needs: dict[int, set[str]]
) -> None:
    found = assemble(holdings, max([1, *holdings]) + 1 if needs else len(holdings))
    assert found is not None
    assert found.sends == sends
    assert {directory: {*names} for directory, names in found.needs.items()} == needs


@pytest.mark.parametrize("holdings", [{}, {0: holding("a")}, {0: holding("a", "x"), 1: holding("b", "y")}])
def test_a_state_that_is_nowhere_whole_cannot_be_assembled(holdings: dict[int, Holding]) -> None:
    assert assemble(holdings, 2) is None


def test_ranks_that_see_the_same_files_share_a_directory() -> None:
    assert shared_dirs_of([0, 0, 2, 0, 2], 4).directories == ((0, 1, 3), (2, 4))
    assert (
        shared_dirs_of([0, 0, 2], 2).mine,
        shared_dirs_of([0, 0, 2], 2).first,
        shared_dirs_of([0, 0, 2], 1).first,
    ) == (1, True, False)


def test_where_nothing_can_be_written_readers_count_as_seeing_what_is_their_own(tmp_path: Path) -> None:
    (tmp_path / ".probe").write_text("no folder")
    collective, storage = Collective([0, 1], None, 1), LocalStorage(tmp_path)

    def both(mine: object) -> list[object]:
        """The other rank, the first, finds the same, and sees itself."""
        return [0 if mine == collective.place and not isinstance(mine, bool) else mine, mine]

    collective.lead = lambda act: act()  # type: ignore[method-assign]
    collective.gather = both  # type: ignore[assignment,method-assign]
    assert discover(collective, storage, read_only=True) == SharedDirs(((0,), (1,)), 1, True)
    with pytest.raises(PeerFailedError, match=r"rank 0: .*Not a directory"):
        discover(collective, storage)


@pytest.mark.parametrize(("cost", "mtbf"), [(1, 100_000), (60, 86_400), (300, 3600), (30, 600)])
def test_dalys_interval_is_near_the_best_there_is(cost: float, mtbf: float) -> None:
    """Against the exact expectation of his model (equation 20, restart free), by trying."""

    def wasted(interval: float) -> float:
        return mtbf * (math.exp((interval + cost) / mtbf) - 1) / interval

    best = min(wasted(cost * k / 20) for k in range(1, 40_000))
    assert wasted(daly_interval(cost, mtbf)) <= best * 1.001


def test_a_checkpoint_that_costs_more_than_failures_leave_is_taken_as_seldom_as_they_come() -> None:
    assert daly_interval(500, 200) == 200
    assert daly_interval(0, 200) == 0
    with pytest.raises(ValueError, match="not -1 and 5"):
        daly_interval(-1, 5)


def test_observed_failures_outweigh_the_assumed_rate() -> None:
    assert mean_time_between_failures(1000, 0, 0) == 1000
    assert mean_time_between_failures(1000, 99, 9000) == 100


@pytest.mark.parametrize(
    ("elapsed", "wanted", "step", "expected"),
    [
        (0, 100, 1, 50),
        (99, 100, 1, 1),
        (99.6, 100, 1, 0),
        (150, 100, 1, 0),
        (0, 100, 300, 0),
        (0, 1e12, 1e-6, 1_000_000),
        (0, 5, 0, 1),
    ],
)
def test_a_checkpoint_is_due_when_its_time_is_nearest(
    elapsed: float, wanted: float, step: float, expected: int
) -> None:
    assert next_look(elapsed, wanted, step) == expected


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_automatic_intervals_come_from_what_was_measured() -> None:
    clock, due = Clock(), []
    schedule = Schedule("auto", 20_000, Collective([0], None, 0), clock)
    for step in range(1, 1000):
        clock.now += 1  # a second a step
        if schedule.due(step):
            due.append(step)
            clock.now += 1
            schedule.saved(1.0)
            schedule.written(5.0)
    assert due[0] == 12
    gaps = [b - a for a, b in pairwise(due)]
    assert all(daly_interval(1, 20_000) - 3 < gap < daly_interval(1, 21_000) + 3 for gap in gaps)


def test_nothing_is_due_more_often_than_it_can_be_written() -> None:
    clock, due = Clock(), []
    schedule = Schedule("auto", 100, Collective([0], None, 0), clock)
    for step in range(1, 500):
        clock.now += 1
        if schedule.due(step):
            due.append(step)
            schedule.saved(0.0001)
            schedule.written(50.0)
    assert all(b - a >= 49 for a, b in pairwise(due))


def test_after_a_save_that_failed_the_next_one_is_due_as_usual() -> None:
    clock, due = Clock(), []
    schedule = Schedule("auto", 20_000, Collective([0], None, 0), clock)
    for step in range(1, 500):
        clock.now += 1
        if schedule.due(step):
            due.append(step)
            schedule.saved(1.0)
            if len(due) == 1:
                schedule.failed(3.0)
            else:
                schedule.written(5.0)
    assert due[1] - due[0] == pytest.approx(daly_interval(1, 20_000), abs=3)


def test_a_time_between_checkpoints_is_kept_as_steps_change() -> None:
    clock, due = Clock(), []
    schedule = Schedule(timedelta(seconds=60), 1, Collective([0], None, 0), clock)
    for step in range(1, 400):
        clock.now += 1 if step < 200 else 2
        if schedule.due(step):
            due.append(clock.now)
            schedule.saved(0)
    assert all(58 <= b - a <= 62 for a, b in pairwise(due))


@pytest.mark.parametrize("interval", [0, -1, True, "often", 2.5, timedelta()])
def test_intervals_that_are_none_are_refused(interval: object) -> None:
    with pytest.raises(UsageError, match="but must be a number of steps"):
        Schedule(interval, 1, Collective([0], None, 0), Clock())  # type: ignore[arg-type]  # that is the point


def test_a_snapshot_is_written_over_an_earlier_one_where_it_fits() -> None:
    first = snapshot({"a": torch.ones(4), "b": [torch.zeros(2), 1], "c": torch.ones(3)})
    second = snapshot({"a": torch.full((4,), 2.0), "b": [torch.ones(2), 2], "c": torch.ones(5)}, first)
    assert second["a"] is first["a"]
    assert second["b"][0] is first["b"][0]
    assert second["c"].shape == (5,)
    assert (second["a"].tolist(), second["b"][1]) == ([2.0] * 4, 2)


def test_a_snapshot_shares_nothing_with_training() -> None:
    live: dict[str, Any] = {
        "w": torch.ones(2, requires_grad=True),
        "o": {"list": [1]},
        "t": torch.arange(6).reshape(2, 3).t(),
    }
    copied = snapshot(live)
    live["o"]["list"].append(2)
    assert copied["o"] == {"list": [1]}
    assert not copied["w"].requires_grad
    assert torch.equal(copied["t"], live["t"])
    assert copied["t"].data_ptr() != live["t"].data_ptr()
