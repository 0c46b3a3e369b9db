from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from elastic_torch import ElasticDistributedSampler
from elastic_torch.data import partition
from elastic_torch.data.audit import Step
from elastic_torch.data.audit_command import Record, Report, audit, read, run_order


def step(number: int, start: int, stop: int, **changed: Any) -> Step:
    facts: dict[str, Any] = {
        "epoch": 0,
        "world_size": 1,
        "global_batch_size": 4,
        "drop_last": False,
        "length": 12,
        "seed": 0,
        "order": "feistel-1",
    }
    return Step(step=number, start=start, stop=stop, **{**facts, **changed})


def record(round: int | None, *where: Any, rank: int = 0, run: str = "r", **changed: Any) -> Record:
    done = step(*where, **changed)
    own = partition.share(done.start, done.stop, rank=rank, world_size=done.world_size)
    return Record(run=run, round=round, rank=rank, step=done, own=(own.start, own.stop))


def resumed(round: int | None, before: Step | None, *, rank: int = 0, run: str = "r") -> Record:
    return Record(run=run, round=round, rank=rank, step=before)


def found(report: Report) -> list[tuple[str, int, int, int]]:
    return [(finding.kind, finding.epoch, finding.start, finding.stop) for finding in report.findings]


WHOLE = [record(0, 0, 0, 4), record(0, 1, 4, 8), record(0, 2, 8, 12)]


def test_an_epoch_in_which_each_sample_came_once_is_proved() -> None:
    report = audit([WHOLE], finished=True)
    assert found(report) == []
    (epoch,) = report.epochs
    assert (epoch.used, epoch.length, epoch.steps, epoch.world_sizes, epoch.over) == (12, 12, 3, (1,), True)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(WHOLE[1:], [("skipped", 0, 0, 4)], id="at the beginning"),
        pytest.param([WHOLE[0], WHOLE[2]], [("skipped", 0, 4, 8)], id="in the middle"),
        pytest.param(WHOLE[:2], [("skipped", 0, 8, 12)], id="at the end"),
        pytest.param([*WHOLE[:2], record(0, 2, 9, 12)], [("skipped", 0, 8, 9)], id="one sample"),
        pytest.param(
            [*WHOLE[:2], record(0, 2, 6, 10), record(0, 3, 10, 12)], [("repeated", 0, 6, 8)], id="overlapping steps"
        ),
        pytest.param([*WHOLE, record(0, 3, 4, 8)], [("repeated", 0, 4, 8)], id="an old step again"),
        pytest.param([*WHOLE, record(0, 3, 0, 12, epoch=2)], [("skipped", 1, 0, 12)], id="an epoch"),
        pytest.param(
            [*WHOLE[:2], record(0, 2, 8, 12, seed=1)], [("order", 0, 8, 12)], id="another seed within an epoch"
        ),
    ],
)
def test_the_first_offending_samples_are_named(log: list[Record], expected: list[tuple[str, int, int, int]]) -> None:
    assert found(audit([log], finished=True)) == expected


def test_the_last_epoch_may_be_in_progress_and_earlier_ones_not() -> None:
    assert found(audit([WHOLE[:2]])) == []
    assert found(audit([[*WHOLE[:2], record(0, 2, 0, 4, epoch=1)]])) == [("skipped", 0, 8, 12)]


def test_a_dropped_tail_is_no_skip_but_more_than_a_tail_is() -> None:
    log = [
        record(0, 0, 0, 5, global_batch_size=5, drop_last=True),
        record(0, 1, 5, 10, global_batch_size=5, drop_last=True),
    ]
    report = audit([log], finished=True)
    assert found(report) == []
    assert report.epochs[0].dropped == 2
    assert found(audit([log[:1]], finished=True)) == [("skipped", 0, 5, 12)]


def test_a_later_round_takes_back_what_it_does_again() -> None:
    log = [*WHOLE[:2], resumed(1, step(0, 0, 4)), record(1, 1, 4, 8, world_size=2), record(1, 2, 8, 12, world_size=2)]
    report = audit([log], finished=True)
    assert found(report) == []
    assert report.taken_back == 1
    assert report.epochs[0].world_sizes == (1, 2)


def test_a_late_record_of_an_earlier_round_is_still_taken_back() -> None:
    log = [WHOLE[0], record(1, 1, 4, 8), WHOLE[1], record(1, 2, 8, 12)]
    assert found(audit([log], finished=True)) == []


def test_without_rounds_the_file_s_order_counts() -> None:
    log = [record(None, 0, 0, 4), record(None, 1, 4, 8), resumed(None, step(0, 0, 4)), record(None, 1, 4, 8)]
    report = audit([log])
    assert found(report) == []
    assert report.taken_back == 1
    with pytest.raises(ValueError, match="without a round's number, as under torchrun, cannot be ordered over several"):
        audit([log, WHOLE])


def test_loading_twice_takes_nothing_back() -> None:
    log = [*WHOLE[:2], resumed(1, step(0, 0, 4)), resumed(1, step(1, 4, 8)), record(1, 2, 8, 12)]
    report = audit([log], finished=True)
    assert found(report) == []
    assert report.taken_back == 0


def test_the_step_that_only_the_state_knows_counts() -> None:
    log = [WHOLE[0], resumed(1, step(1, 4, 8)), record(1, 2, 8, 12)]
    assert found(audit([log], finished=True)) == []
    log = [*WHOLE[:2], resumed(1, step(2, 8, 12))]  # killed at the very end, and nothing was left to do
    assert found(audit([log], finished=True)) == []


def test_a_round_that_has_lost_more_than_that_is_found() -> None:
    log = [WHOLE[0], resumed(1, step(2, 8, 12)), record(1, 3, 0, 4, epoch=1)]
    assert found(audit([log])) == [("skipped", 0, 4, 8)]


def test_ranks_that_disagree_are_found() -> None:
    one = [record(0, 0, 0, 4, world_size=2), record(0, 1, 4, 8, world_size=2)]
    other = [record(0, 0, 0, 4, world_size=2, rank=1), record(0, 1, 5, 9, world_size=2, rank=1)]
    report = audit([one, other])
    assert found(report) == [("disagreement", 0, 5, 9)]
    assert report.findings[0].message == (
        "rank 0 recorded samples [4, 8) of epoch 0 with 2 workers as step 1, "
        "rank 1 [5, 9) of epoch 0 with 2, in round 0"
    )


def test_a_share_that_is_not_the_rank_s_is_found() -> None:
    taken = step(0, 0, 4, world_size=2)
    wrong = Record(run="r", round=0, rank=1, step=taken, own=(0, 2))
    assert audit([[wrong]]).findings[0].message == "rank 1 took [0, 2) of step 0, [0, 4) of epoch 0, in round 0"


def test_runs_come_in_the_order_of_the_files() -> None:
    first, second = [record(5, 0, 0, 4, run="b")], [record(0, 1, 4, 8, run="a")]
    assert run_order([first, second]) == ["b", "a"]
    assert found(audit([first, second])) == []
    with pytest.raises(ValueError, match="In one file run 'a' comes before run 'b', in another after it"):
        run_order([[*first, *second], [*second, *first]])


def test_an_empty_log_proves_nothing_and_finds_nothing() -> None:
    assert audit([[]]).epochs == ()


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:global_batch_size=")
@pytest.mark.parametrize("own", [False, True])
def test_kills_at_any_moment_leave_a_log_that_proves_what_was_trained(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(60):
        lots = random.Random(sequence)
        room = tmp_path / str(sequence)
        name = room / ("{rank}.jsonl" if own else "log.jsonl")
        trained = _killed_again_and_again(lots, name, monkeypatch)
        report = audit([read(path)[0] for path in sorted(room.iterdir())], finished=True)
        assert found(report) == [], sequence
        assert [epoch.used for epoch in report.epochs] == [len(epoch) for epoch in trained]
        assert all(len(set(epoch)) == len(epoch) for epoch in trained)


def _killed_again_and_again(lots: random.Random, name: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Train two epochs in many rounds; what the final state has been trained on, by epoch.

    A round ends when its ranks are killed, some before and some after they have committed the step. The next one goes
    on from the newest state that any of them had, or from an older one, which was saved at some time.
    """
    length, size, drop_last = lots.randrange(20, 60), lots.randrange(1, 13), lots.random() < 0.5
    saved: list[tuple[dict[str, Any] | None, list[list[int]]]] = [(None, [[], []])]
    for number in range(1000):
        monkeypatch.setenv("ELASTIC_ROUND", str(number))
        state, known = lots.choice(saved[-3:]) if lots.random() < 0.3 else saved[-1]
        trained = [list(epoch) for epoch in known]
        world_size = lots.randrange(1, 5)
        ranks = [
            ElasticDistributedSampler(
                range(length), world_size, rank, global_batch_size=size, drop_last=drop_last, audit_log=name
            )
            for rank in range(world_size)
        ]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        saved.append((state, known))
        for epoch in range(ranks[0].epoch, 2):
            for rank in ranks:
                rank.set_epoch(epoch)
            for batches in zip(*(rank.batches() for rank in ranks), strict=True):
                dies = lots.random() < 0.15
                if dies and lots.random() < 0.5:
                    break  # before the gradients were averaged
                for rank, batch in zip(ranks, batches, strict=True):
                    trained[epoch] += batch[: rank.share]
                survivors = lots.sample(ranks, lots.randrange(1, world_size + 1)) if dies else ranks
                for rank in survivors:
                    rank.advance()
                saved.append((survivors[0].state_dict(), [list(part) for part in trained]))
                if dies:
                    break
            else:
                continue
            break
        else:
            return trained
    raise AssertionError("it never came to an end")
