from __future__ import annotations

import json
import random
from collections.abc import Sized
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, TensorDataset

from elastic_torch import ElasticDistributedSampler

PATIENCE = 600
"""Seconds after which a test that takes a few on an idle core gives up."""


def sampler(length: int, world_size: int = 1, rank: int = 0, **given: Any) -> ElasticDistributedSampler:
    dataset: Sized = range(length)
    return ElasticDistributedSampler(dataset, world_size, rank, **given)


def team(length: int, world_size: int, **given: Any) -> list[ElasticDistributedSampler]:
    return [sampler(length, world_size, rank, **given) for rank in range(world_size)]


# Exactly once --------------------------------------------------------------------------------------------------------


def live(ranks: list[ElasticDistributedSampler], steps: int, ahead: int) -> list[list[int]]:
    """Train ``steps`` steps at most, each rank's loader being ``ahead`` of that; return what each took."""
    plain = ahead % 2  # both ways in which a loader reads
    fetched: list[list[list[int]]] = []
    for rank in ranks:
        if plain:
            flat = iter(rank)
            batches = iter(lambda flat=flat, rank=rank: _next(flat, rank.batch_size), [])  # type: ignore[misc]
        else:
            batches = iter(rank.batches())
        fetched.append([batch for batch, _ in zip(batches, range(steps + ahead), strict=False)])
    assert len({len(batches) for batches in fetched}) == 1  # no rank waits in a collective for ever
    taken = []
    for step in range(min(steps, len(fetched[0]))):
        weights = [rank.loss_weight() for rank in ranks]
        assert sum(weights) / len(ranks) == pytest.approx(1)
        taken.append([s for rank, batches in zip(ranks, fetched, strict=True) for s in batches[step][: rank.share]])
        for rank in ranks:
            rank.advance()
    return taken


def _next(samples: Any, count: int) -> list[int]:
    return [sample for _, sample in zip(range(count), samples, strict=False)]


@pytest.mark.filterwarnings("ignore:global_batch_size=")
@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("thousand", range(10))
def test_any_resizes_use_every_sample_exactly_once(thousand: int) -> None:
    for sequence in range(1000):
        lots = random.Random(1000 * thousand + sequence)
        given: dict[str, Any] = {
            "global_batch_size": lots.randrange(1, 24),
            "shuffle": lots.random() < 0.02,
            "drop_last": lots.random() < 0.5,
            "seed": lots.randrange(3),
        }
        length = lots.randrange(given["global_batch_size"], 80)
        alone = live([sampler(length, **given)], length, 0)
        steps: list[list[int]] = []
        state, over = sampler(length, **given).state_dict(), False
        while not over:
            ranks = team(length, lots.choice((1, 2, 3, 4, 7)), **given)
            for rank in ranks:
                rank.load_state_dict(json.loads(json.dumps(state)))
            for _ in range(lots.randrange(1, 3)):  # a second iteration in the same process, too
                steps += live(ranks, lots.randrange(8), lots.randrange(5)) if not ranks[0].epoch_is_over else []
            assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
            state, over = ranks[0].state_dict(), ranks[0].epoch_is_over
        used = [sample for step in steps for sample in step]
        whole = length - length % given["global_batch_size"] if given["drop_last"] else length
        assert len(used) == len(set(used)) == whole
        assert set(used) <= set(range(length))
        assert steps == alone  # and every step is that of one process


def test_a_batch_size_per_rank_changes_the_step_and_still_uses_every_sample_once() -> None:
    used: list[int] = []
    state = None
    for world_size, steps in ((1, 2), (4, 2), (2, 99)):
        ranks = team(50, world_size, batch_size=3)
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        used += [sample for step in live(ranks, steps, 2) for sample in step]
        state = ranks[0].state_dict()
    assert sorted(used) == list(range(50))
    assert state is not None
    assert (state["cursor"], state["step"]) == (50, 2 + 2 + 4)


def test_a_rank_without_a_sample_gets_a_stand_in_that_counts_for_nothing() -> None:
    ranks = team(9, 3, global_batch_size=8, shuffle=False)
    batches = [list(rank.batches()) for rank in ranks]
    assert batches == [[[0, 1, 2], [8]], [[3, 4, 5], [8]], [[6, 7], [8]]]
    assert [rank.loss_weight() for rank in ranks] == [9 / 8, 9 / 8, 6 / 8]
    assert [rank.loss_weight("sum") for rank in ranks] == [3 / 8] * 3
    for rank in ranks:
        rank.advance()
    assert [rank.share for rank in ranks] == [1, 0, 0]
    assert [rank.loss_weight() for rank in ranks] == [3, 0, 0]
    assert [rank.loss_weight("sum") for rank in ranks] == [3, 0, 0]


def test_more_ranks_than_samples_in_a_step_are_said_once_and_go_on() -> None:
    with pytest.warns(UserWarning, match="global_batch_size=2 for 3 ranks leaves 1 of them idle"):
        idle = sampler(4, 3, 2, global_batch_size=2, shuffle=False)
    assert list(idle) == [0, 2]
    assert idle.loss_weight() == 0


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [20, 21, 22, 23])
def test_a_length_is_that_of_the_whole_epoch_wherever_in_it_we_are(length: int, drop_last: bool) -> None:
    for rank in team(length, 3, global_batch_size=10, drop_last=drop_last):
        indices, steps = len(list(rank)), len(list(rank.batches()))
        again = sampler(length, 3, rank.rank, global_batch_size=10, drop_last=drop_last)
        for done in range(2):
            assert rank.steps_left == rank.batches().steps_left == len(list(rank.batches())) == steps - done
            rank.advance()
            again.load_state_dict(rank.state_dict())
            for each in (rank, again):
                assert len(each) == indices
                assert len(each.batches()) == steps


def test_a_loader_that_goes_on_within_an_epoch_has_the_epochs_length() -> None:
    before = sampler(48, 2, 0, global_batch_size=4)
    for _ in zip(range(7), before.batches(), strict=False):
        before.advance()
    ours = sampler(48, 2, 0, global_batch_size=4)
    ours.load_state_dict(before.state_dict())
    dataset = TensorDataset(torch.arange(48))
    forms: list[dict[str, Any]] = [{"batch_sampler": ours.batches()}, {"sampler": ours, "batch_size": 2}]
    for form in forms:
        loader = DataLoader(dataset, **form)
        assert (len(loader), len(list(loader))) == (12, 5)


def test_steps_are_a_batch_sampler_to_frameworks() -> None:
    steps = sampler(20, 2, 1, global_batch_size=8, drop_last=True).batches()
    assert isinstance(steps, BatchSampler)
    assert (steps.batch_size, steps.drop_last) == (4, True)


# Loaders -------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(PATIENCE)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # a loader's workers
@pytest.mark.parametrize("by_batch", [True, False])
def test_samples_that_a_loader_has_fetched_ahead_do_not_count(by_batch: bool) -> None:
    dataset = TensorDataset(torch.arange(100))
    used: list[int] = []
    state = None
    for world_size, steps in ((1, 3), (2, 2), (1, 99)):
        ranks = [
            ElasticDistributedSampler(dataset, world_size, rank, global_batch_size=7) for rank in range(world_size)
        ]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
            how: dict[str, Any] = (
                {"batch_sampler": rank.batches()} if by_batch else {"sampler": rank, "batch_size": rank.batch_size}
            )
            loader = DataLoader(dataset, num_workers=2, prefetch_factor=3, **how)
            for _, (x,) in zip(range(steps), loader, strict=False):
                used += x[: rank.share].tolist()
                rank.advance()
        state = ranks[0].state_dict()
    assert sorted(used) == list(range(100))


def test_the_next_iteration_of_a_loader_begins_after_the_last_committed_step() -> None:
    dataset = TensorDataset(torch.arange(10))
    ours = ElasticDistributedSampler(dataset, 1, 0, shuffle=False, global_batch_size=2)
    loader = DataLoader(dataset, batch_sampler=ours.batches())
    for (x,) in loader:
        if x[0] == 4:
            break  # fetched, not trained on
        ours.advance()
    assert [x.tolist() for (x,) in loader] == [[4, 5], [6, 7], [8, 9]]


# Epochs --------------------------------------------------------------------------------------------------------------


def train(ours: ElasticDistributedSampler) -> list[int]:
    taken = []
    for batch in ours.batches():
        taken += batch
        ours.advance()
    return taken


def test_each_epoch_has_an_order_of_its_own_which_any_number_of_ranks_knows() -> None:
    ours = sampler(40, global_batch_size=8)
    epochs = []
    for epoch in range(3):
        ours.set_epoch(epoch)
        epochs.append(train(ours))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = team(40, 4, global_batch_size=8)
    for rank in again:
        rank.set_epoch(2)
    assert [s for step in zip(*(rank.batches() for rank in again), strict=True) for b in step for s in b] == epochs[2]


def test_setting_the_epoch_in_progress_keeps_the_place() -> None:
    ours = sampler(6, global_batch_size=2, shuffle=False)
    batches = iter(ours.batches())
    next(batches)
    ours.advance()
    ours.set_epoch(0)
    assert list(ours) == [2, 3, 4, 5]


def test_an_epoch_that_was_over_when_it_was_saved_has_nothing_left() -> None:
    before = sampler(6, global_batch_size=2)
    train(before)
    after = sampler(6, 3, 1, global_batch_size=2 * 3)
    after.load_state_dict(before.state_dict())
    after.set_epoch(0)
    assert list(after) == []
    after.set_epoch(1)
    assert len(list(after)) == 2


def test_training_on_without_setting_the_next_epoch_is_an_error() -> None:
    ours = sampler(6, global_batch_size=2)
    train(ours)
    with pytest.raises(RuntimeError, match=r"Epoch 0 is over: call set_epoch\(1\) to go on\."):
        iter(ours)


def test_steps_that_were_never_committed_are_said() -> None:
    ours = sampler(6, global_batch_size=2)
    assert len(list(ours.batches())) == 3
    with pytest.warns(
        UserWarning, match=r"Epoch 0 was read to its end, but its last 3 steps .*: call advance\(\) after each"
    ):
        ours.set_epoch(1)
    assert ours.step == 0


def test_committing_more_than_was_taken_is_an_error() -> None:
    ours = sampler(6, global_batch_size=2)
    with pytest.raises(RuntimeError, match=r"advance\(\) was called more often than batches of epoch 0 were taken"):
        ours.advance()
    next(iter(ours))
    ours.advance()
    with pytest.raises(RuntimeError, match=r"needs batch_size=sampler\.batch_size"):
        ours.advance()


def test_an_old_iteration_cannot_vouch_for_a_new_place() -> None:
    ours = sampler(6, global_batch_size=2)
    old = iter(ours.batches())
    ours.load_state_dict(ours.state_dict())
    next(old)
    with pytest.raises(RuntimeError, match="called more often"):
        ours.advance()


def test_no_step_is_left_to_weight_a_loss_of_after_the_epoch() -> None:
    ours = sampler(2, global_batch_size=2)
    train(ours)
    with pytest.raises(RuntimeError, match="Epoch 0 has no step left"):
        ours.loss_weight()


# States --------------------------------------------------------------------------------------------------------------


def test_a_state_is_the_same_on_all_ranks_and_json() -> None:
    ranks = team(10, 3, global_batch_size=4)
    for rank in ranks:
        next(iter(rank))
        rank.advance()
    states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
    assert states[0] == states[1] == states[2]
    assert {name: states[0][name] for name in ("epoch", "cursor", "step")} == {"epoch": 0, "cursor": 4, "step": 1}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "saved with seed=0, and the sampler has seed=1: its position would mean other samples"),
        ({"shuffle": False}, "saved with order='feistel-1', and the sampler has order='sequential'"),
    ],
)
def test_a_state_of_another_order_is_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler(10, global_batch_size=2, **other).load_state_dict(sampler(10, global_batch_size=2).state_dict())


def test_a_state_of_another_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="saved with length=11, and the sampler has length=10"):
        sampler(10, global_batch_size=2).load_state_dict(sampler(11, global_batch_size=2).state_dict())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"version": 2}, "no state of this version of the sampler: version=2"),
        ({"cursor": 11}, r"no state of a sampler: epoch, cursor and step are \(0, 11, 0\)"),
        ({"step": -1}, "no state of a sampler"),
        ({"epoch": "0"}, "no state of a sampler"),
        ({"previous": {"step": 1}}, "epoch is None"),
    ],
)
def test_a_state_that_is_none_is_refused(broken: dict[str, Any], message: str) -> None:
    ours = sampler(10, global_batch_size=2)
    with pytest.raises(ValueError, match=message):
        ours.load_state_dict({**ours.state_dict(), **broken})
    assert ours.state_dict() == sampler(10, global_batch_size=2).state_dict()


# Without a size: torchelastic's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_of_any_batch_size_gets_the_epoch_as_from_torchs_sampler(drop_last: bool) -> None:
    dataset = TensorDataset(torch.arange(23))
    given: dict[str, Any] = {"num_replicas": 3, "shuffle": False, "drop_last": drop_last}
    theirs: list[Sampler[int]] = [DistributedSampler(dataset, rank=rank, **given) for rank in range(3)]
    ours = team(23, 3, shuffle=False, drop_last=drop_last)
    for rank in range(3):
        mine, wanted = list(ours[rank]), list(theirs[rank])
        assert len(mine) == len(wanted) == len(ours[rank])
        assert mine[:7] == wanted[:7]  # they fill the tail with other samples
        batches = DataLoader(dataset, batch_size=5, sampler=ours[rank])
        assert [sample for (batch,) in batches for sample in batch.tolist()] == mine
        assert len(batches) == 2


def test_epochs_differ_and_nothing_asks_for_steps(recwarn: pytest.WarningsRecorder) -> None:
    epochs = []
    ranks = team(20, 2)
    for epoch in range(3):
        for rank in ranks:
            rank.set_epoch(epoch)
        epochs.append([sample for rank in ranks for sample in rank])
    assert [sorted(samples) for samples in epochs] == [list(range(20))] * 3
    assert len({tuple(samples) for samples in epochs}) == 3
    assert not recwarn
    for method in ("advance", "loss_weight"):
        with pytest.raises(RuntimeError, match=rf"{method}\(\) is about steps, and this sampler does not know"):
            getattr(ranks[0], method)()


def test_a_restarted_script_begins_where_it_says_with_any_number_of_ranks() -> None:
    def rest(world_size: int, **given: Any) -> list[int]:
        return sorted(sample for rank in team(20, world_size, **given) for sample in rank)

    before = team(20, 2)
    used = [sample for rank in before for sample in list(rank)[:4]]
    assert rest(4, start_index=8) == sorted(set(range(20)) - set(used))
    (again,) = team(20, 1, start_index=8)
    again.set_epoch(3)  # the epoch that was in progress
    third = list(again)
    again.set_epoch(4)
    assert (len(third), len(list(again))) == (12, 20)
    again.set_epoch(3, 8)
    assert list(again) == third
    again.set_epoch(3)
    assert list(again) == third
    again.set_epoch(3, start_index=0)
    assert list(again)[8:] == third
    for used_up in (20, 24):  # a count of whole batches has the fillers of the last one in it
        again.set_epoch(3, used_up)
        assert (len(again), list(again)) == (20, [])


def test_a_start_is_a_place_for_steps_too() -> None:
    (ours,) = team(20, 1, global_batch_size=4, start_index=6, shuffle=False)
    assert list(ours.batches()) == [[6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    ours.batches().set_epoch(0, 16)
    assert list(ours.batches()) == [[16, 17, 18, 19]]


def test_torchelastics_fourth_argument_is_not_taken_for_another() -> None:
    with pytest.raises(TypeError, match=r"shuffle=100 is neither True nor False\. Give start_index by its name\."):
        ElasticDistributedSampler(range(1000), 2, 0, 100)  # type: ignore[arg-type]  # as users write it


# Arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start_index": -1}, "start_index=-1: the samples of an epoch count from 0"),
        ({"audit_log": "audit.jsonl"}, "An audit log is of steps: give global_batch_size or batch_size"),
        ({"global_batch_size": 2, "batch_size": 2}, "Given are 2 and 2"),
        ({"global_batch_size": 0}, "global_batch_size=0: a step takes at least one sample"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"batch_size": 1, "rank": 2, "num_replicas": 2}, "rank=2 of num_replicas=2"),
        ({"batch_size": 1, "num_replicas": 0}, "num_replicas=0"),
        ({"global_batch_size": 11, "drop_last": True}, "10 samples are fewer than a step of 11, and drop_last leaves"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElasticDistributedSampler(range(10), **given)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match=r"There is nothing to train on: 0 samples\."):
        sampler(0, global_batch_size=1)


def test_before_there_is_a_process_group_the_launcher_s_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    ours = ElasticDistributedSampler(range(10), global_batch_size=8)
    assert (ours.num_replicas, ours.rank) == (4, 3)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    ours = ElasticDistributedSampler(range(10), global_batch_size=8)
    assert (ours.num_replicas, ours.rank) == (1, 0)
