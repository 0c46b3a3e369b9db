"""The benchmark's arithmetic: what becomes of the times that it has measured."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from benchmarks import checkpointing, rendezvous, snapshots
from benchmarks.idle import CPU, RSS_AGENT, RSS_WARDEN
from benchmarks.jobs import FRESH, TORCHRUN, TUNED, WARM, newest
from benchmarks.launchers import BEGIN, END, PAGE, book, hopeless
from benchmarks.meetings import C10D, EVENTS, FORM, REDIS, RESTART, TORCH, Sample
from benchmarks.processes import cpu_seconds, pss, rss
from benchmarks.scenes import KILLED_ONE, KILLED_REST, LAUNCH, LOST, STORIES, TIMES, WEIGHT, Scene, longest_pause
from benchmarks.states import FEW, KINDS, MANY, shapes, training
from benchmarks.tables import Samples, cell, figures, median, megabytes, paragraphs, ratio, replaced, seconds, table
from benchmarks.targets import ratios, targets
from pace import Pace, PaceKeeper, read
from rig import Report


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0, 1.0, 2.0], 2.0),
        ([3.0, None, 1.0], 3.0),
        ([None, 1.0, None], math.inf),
        ([1.0, None], math.inf),  # between a time and never there is nothing halfway
        ([], math.inf),
    ],
)
def test_the_median_counts_never_as_longer_than_anything(samples: Samples, expected: float) -> None:
    assert median(samples) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0624, "62 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.994, "9.99 s"),
        (33.33, "33.3 s"),
        (math.inf, "never"),
    ],
)
def test_a_duration_is_told_in_a_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([2.0, 1.5, 3.25], "2.00 s (1.50 s..3.25 s)"),
        ([2.0, None, 1.0], "2.00 s (1.00 s..2.00 s); 1 of 3 never"),
        ([None, None, 1.0], "never (1.00 s..1.00 s); 2 of 3 never"),
        ([None, None], "never"),
        ([], "-"),
    ],
)
def test_a_cell_has_the_spread_and_counts_the_nevers(samples: Samples, text: str) -> None:
    assert cell(samples) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0.1, 2.5, "1/25.0"), (3.0, 2.0, "1.5"), (2.0, 2.0, "1.0"), (0.1, math.inf, "-"), (math.inf, 1.0, "-")],
)
def test_a_ratio_says_how_often_one_goes_into_the_other(part: float, whole: float, text: str) -> None:
    assert ratio(part, whole) == text


def test_a_cell_tells_when_there_were_too_few_runs() -> None:
    assert cell([2.0, 1.0, 3.0], runs=5) == "2.00 s (1.00 s..3.00 s); 3 runs"
    assert cell([2.0, 1.0, 3.0], runs=3) == "2.00 s (1.00 s..3.00 s)"


def test_a_table_leaves_out_rows_of_which_nothing_was_measured() -> None:
    measured = {"weight": {"b": [1.5e6]}}
    assert figures("", ("time", "weight"), ("a", "b"), measured, megabytes) == [
        "|  | a | b |",
        "| --- | --- | --- |",
        "| weight | - | 1.5 MB (1.5 MB..1.5 MB) |",
    ]
    assert figures("", ("time",), ("a",), measured) == []


def test_paragraphs_are_parted_by_one_empty_line() -> None:
    assert paragraphs(["a"], [], ["b", "c"]) == ["a", "", "b", "c"]
    assert paragraphs([]) == []


def test_only_the_written_section_of_a_page_is_replaced() -> None:
    assert replaced("text\n<b>\nold\n<e>\nmore\n", "<b>", "<e>", ["new"]) == "text\n<b>\n\nnew\n\n<e>\nmore\n"


@pytest.mark.parametrize("page", ["<b>", "<e>", "<e><b>", "<b><b><e>", "<b><e><e>"])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        replaced(page, "<b>", "<e>", [])


def test_the_page_has_its_marks() -> None:
    assert replaced(PAGE.read_text(), BEGIN, END, table(["a"], [])).count("| a |") == 1


@pytest.mark.parametrize(
    ("default", "tuned", "alike", "expected"),
    [
        ([None], [], False, False),
        ([None, None], [], False, True),
        ([None, None, 1.0], [], False, True),
        ([None, 1.0, 1.0, None], [], False, False),
        ([], [], True, False),
        ([None], [None], False, False),
        ([None], [None], True, True),
        ([None, None], [1.0, 1.0], True, False),
    ],
)
def test_a_scene_that_mostly_never_ends_is_given_up(
    default: list[float | None], tuned: list[float | None], alike: bool, expected: bool
) -> None:
    record = book()
    record["it"].update({TORCHRUN.name: default, TUNED.name: tuned, WARM.name: [1.0]})
    scene = Scene(("it",), 0, lambda job: (None,), alike=alike)
    assert hopeless(scene, TORCHRUN, record) is expected


def pace(local_rank: int, first: float, last: float, *silences: tuple[float, float]) -> Pace:
    return Pace(local_rank, 0, first, last, silences)


@pytest.mark.parametrize(
    ("paces", "expected"),
    [
        ([pace(0, 1, 20)], 0),
        ([pace(0, 1, 20, (5, 9), (12, 14))], 2),  # the longer one was over before
        ([pace(0, 15, 20), pace(0, 1, 12)], 3),  # from one process to the next
        ([pace(0, 15, 20), pace(0, 1, 12), pace(1, 14, 20), pace(1, 1, 13)], 3),  # each rank has its own row
        ([pace(0, 1, 2), pace(0, 3, 5), pace(0, 12, 20)], 7),
    ],
)
def test_the_pause_is_the_longest_time_without_a_step(paces: list[Pace], expected: float) -> None:
    assert longest_pause(paces, since=10) == expected


def test_the_pace_of_a_worker_can_be_read_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 1.001, 3.5, 3.502])
    monkeypatch.setenv("LOCAL_RANK", "3")
    keeper = PaceKeeper(tmp_path, lambda: next(ticks))
    [file] = tmp_path.iterdir()
    assert read(file) is None
    keeper.step()
    keeper.step()
    assert read(file) == Pace(3, os.getpid(), 1.0, 1.001, ())
    keeper.step()
    keeper.step()
    assert read(file) == Pace(3, os.getpid(), 1.0, 3.502, ((1.001, 3.5),))


def test_a_rank_counts_with_its_newest_report() -> None:
    reports = [Report("training", rank, {"at": at}) for rank, at in [(0, 1.0), (1, 5.0), (0, 4.0), (0, 6.0)]]
    found = newest(reports, since=3.0)
    assert {rank: report["at"] for rank, report in found.items()} == {0: 6.0, 1: 5.0}


def test_ratios_name_the_better_of_the_two_that_torchrun_has() -> None:
    times = {KILLED_ONE: {TORCHRUN.name: [2.0], TUNED.name: [4.0], WARM.name: [0.1]}, LAUNCH: {FRESH.name: [2.0]}}
    assert ratios(times, {KILLED_ONE: 0.05}) == [[KILLED_ONE, "1/20.0", "1/20.0", "1/40.0", "2.0"]]


def test_targets_are_judged_by_medians() -> None:
    times: dict[str, dict[str, Samples]] = {
        KILLED_ONE: {TORCHRUN.name: [3.0], TUNED.name: [2.4], WARM.name: [0.1, 0.15, 9.0]},
        KILLED_REST: {TORCHRUN.name: [30.0], TUNED.name: [5.0], WARM.name: [0.25]},
        LOST: {WARM.name: [None, None, 1.0]},
        LAUNCH: {TORCHRUN.name: [None], WARM.name: [2.0]},
    }
    memory: dict[str, dict[str, Samples]] = {WEIGHT: {FRESH.name: [3e8], WARM.name: [2e8]}}
    idle: dict[str, dict[str, Samples]] = {
        "elastic, `local`": {CPU: [2.0], RSS_AGENT: [30e6], RSS_WARDEN: [16e6]},
        "elastic, `file`": {CPU: [4.1], RSS_AGENT: [30e6], RSS_WARDEN: [12e6]},
        "torchrun, `c10d`": {CPU: [12.0, 9.0, 90.0], RSS_AGENT: [300e6]},
    }
    assert [(target.value, target.met) for target in targets(times, memory, idle)] == [
        (0.15, True),  # 1/15 of 2.4 s, the better one
        (0.25, True),
        (0.25, False),
        (2.0, True),  # anything is less than never
        (math.inf, False),
        (46e6, False),
        (2.0, True),
        (42e6, True),
        (4.1, False),  # a third of 12.0
        (2e8, True),
    ]


def test_every_time_has_one_scene() -> None:
    measured = [figure for _, scenes in STORIES for scene in scenes for figure in scene.figures]
    assert len(measured) == len(set(measured))
    assert set(TIMES) <= set(measured)


def test_a_process_is_seen_to_use_cpu_and_memory() -> None:
    before = cpu_seconds(os.getpid())
    sum(range(100_000))
    assert cpu_seconds(os.getpid()) > before
    assert 0 < pss(os.getpid()) <= rss(os.getpid())


# Rendezvous of many nodes --------------------------------------------------------------------------------------------


def sample(seconds: float | None, requests: float = 5.0, leader: float = 17.0, size: float = 6100.0) -> Sample:
    return Sample(seconds, seconds, requests, leader, size)


def test_the_requests_of_a_node_are_those_of_jobs_that_came_to_an_end() -> None:
    assert rendezvous.cost([sample(0.1), sample(None, 900.0), sample(0.2)]) == "5.0 requests (leader 17), 6.1 kB"
    assert rendezvous.cost([sample(1.0, leader=math.nan)]) == "5.0 requests, 6.1 kB"
    assert rendezvous.cost([sample(None)]) == rendezvous.cost([]) == "-"


def test_a_peer_is_given_up_at_the_size_where_it_never_ended_and_beyond() -> None:
    record: rendezvous.Book = defaultdict(list)
    record[FORM, 64, TORCH] = [sample(None), sample(None)]
    record[FORM, 16, TORCH] = [sample(None), sample(2.0)]
    assert [rendezvous.hopeless(TORCH, size, record) for size in (16, 64, 256)] == [False, True, True]
    assert not rendezvous.hopeless(REDIS, 256, record)


def test_targets_of_many_nodes_are_judged_by_medians() -> None:
    record: rendezvous.Book = defaultdict(list)
    record[FORM, 64, C10D], record[FORM, 64, TORCH] = [sample(0.1), sample(0.9), sample(0.2)], [sample(None)]
    record[RESTART, 64, C10D], record[RESTART, 64, TORCH] = [sample(0.2)], [sample(3.0)]
    record[RESTART, 1024, REDIS], record[RESTART, 16, REDIS] = [sample(0.9, 6.1)], [sample(0.1, 5.0)]
    assert [(target.value, target.met) for target in rendezvous.targets(record)] == [
        (0.2, True),  # anything is less than never
        (0.2, False),
        (0.9, True),
        (6.1, False),
    ]


def test_a_few_agents_form_fail_leave_and_join_and_the_table_says_so(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{rendezvous.BEGIN}\n{rendezvous.END}\n")
    command = [sys.executable, "-m", "benchmarks.rendezvous", "--sizes=3", "--peers=c10d", "--runs=1", f"--page={page}"]
    root = PAGE.parents[1]
    subprocess.run(
        command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": f"{root}/tests/harness:{root}/tests/workers"}
    )
    found = [line.split(" | ")[0] for line in page.read_text().splitlines()]
    rows = [f"| {event}, 3 agents" for event in EVENTS]
    assert [line for line in found if line in rows] == [*rows, f"| {FORM}, 3 agents", *rows]
    assert "never" not in page.read_text().partition("| --- |")[2]


@pytest.mark.parametrize("marks", [(rendezvous.BEGIN, rendezvous.END), *map(snapshots.marks, snapshots.PARTS)])
def test_the_page_has_the_marks_of_all(marks: tuple[str, str]) -> None:
    assert replaced(PAGE.read_text(), *marks, []).count(marks[0]) == 1


# Snapshots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_states_have_the_same_size_and_know_how_far_they_are(kind: str) -> None:
    trained = training(kind, 3 << 20)
    trained.begin()
    assert sum(tensor.nbytes for tensor in trained.tensors()) == pytest.approx(3 << 20, rel=1e-5)
    assert f"{len(trained.tensors())} tensors" in KINDS[kind]
    for _ in range(3):
        trained.step()
    assert trained.has_done(3)
    assert not trained.has_done(2)


def test_a_transformers_embedding_takes_what_its_layers_leave() -> None:
    found = shapes(MANY, (1 << 30) // 4)
    assert sum(math.prod(shape) for shape in found) == 1 << 28
    assert all(math.prod(shape) > 0 for shape in found)
    assert shapes(FEW, 40) == [(10,)] * 4


def test_targets_of_snapshots_are_judged_by_the_medians_of_ratios() -> None:
    record = snapshots.Record()
    for copy, later, restore in ((0.1, 0.12, 0.3), (0.2, 0.28, 0.3), (0.1, 0.13, 0.19)):
        record.add(MANY, [copy], {snapshots.LATER_ONES: later})
        record.add(MANY, [9.0, copy, 0.0], {snapshots.RESTORE: restore})
    found = {
        target.what.split(",")[0]: (round(target.value, 2), target.met) for target in snapshots.targets(record.shares)
    }
    assert found == {snapshots.LATER_ONES: (1.3, True), snapshots.RESTORE: (1.9, True)}


def test_a_small_state_is_kept_in_memory_and_the_table_says_so(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(snapshots.marks(snapshots.MEMORY)))
    root = PAGE.parents[1]
    options = ["--only=memory", f"--kinds={FEW}", "--size=1", "--runs=1", f"--page={page}"]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.snapshots", *options],
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}/tests/harness:{root}/tests/workers"},
    )
    found = {line.split(" | ")[0].removeprefix("| ") for line in page.read_text().splitlines()}
    assert {*snapshots.WAITS[snapshots.MEMORY], snapshots.COMMITS} <= found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_small_state_is_kept_on_the_disk_and_nothing_is_left_there(tmp_path: Path) -> None:
    found = checkpointing.measured(FEW, 1 << 16, tmp_path)
    assert found["seconds"].keys() == {*checkpointing.SAVES, *checkpointing.LATER, *checkpointing.LOADS}
    assert found["memory"].keys() == found["seconds"].keys() - {*checkpointing.LATER}
    assert list(tmp_path.iterdir()) == []
