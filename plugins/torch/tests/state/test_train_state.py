"""One worker's state: what it goes on with is what it would have had, to the last bit."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from elastic_core.errors import UsageError
from elastic_core.worker.channel import CONTROL_VARIABLE
from elastic_core.worker.error_file import ERROR_FILE
from elastic_torch.disk import CheckpointSaveError, Disk
from elastic_torch.error_file import record
from elastic_torch.memory.fd_store import held, release
from elastic_torch.memory.tier import Tier
from elastic_torch.state.train_state import TrainState
from elastic_torch.version import Place


class Training:
    """A model, what trains it, and how: with each kind of random number, and memory of its own."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6])
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        data = TensorDataset(torch.randn(22, 4))
        self.loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data))
        self.accumulate = options.pop("accumulate", 1)
        self.seen: list[list[float]] = []
        self.state = TrainState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            extra={"average": self.average},
            **options,
        )

    def run(self, epochs: int = 2) -> Iterator[int]:
        """Train; stop after each step, before it is committed."""
        for _ in self.state.epochs(epochs):
            for (x,) in self.state.batches(self.loader, accumulate=self.accumulate):
                self.seen.append(x[:, 0].tolist())
                y = self.model(x + random.random() + np.random.normal())
                y.square().mean().backward()
                if (self.state.batch + 1) % self.accumulate == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
                    self.average.update_parameters(self.model)
                yield self.state.step + 1

    def weights(self) -> list[torch.Tensor]:
        return [*self.model.state_dict().values(), *self.average.state_dict().values()]


def equal(one: Training, other: Training) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.weights(), other.weights(), strict=True))


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("lost_in", range(2, 13))
def test_it_goes_on_as_if_nothing_had_been(lost_in: int) -> None:
    alone = Training(name="alone")
    assert alone.state.restore() is None
    assert list(alone.run())[-1] == 12
    first = Training()
    for step in first.run():
        if step == lost_in:
            break
    second = Training()
    torch.rand(5)  # whatever came before is nothing to it
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.tier) == (lost_in - 1, Tier.MEMORY)
    list(second.run())
    assert equal(alone, second)
    assert first.seen[: lost_in - 1] + second.seen == alone.seen
    assert second.state.step == 12


@pytest.mark.usefixtures("agent")
def test_the_optimizer_does_not_keep_the_shared_memory() -> None:
    first = Training()
    list(first.run(1))
    second = Training()
    second.state.restore()
    before = [tensor.clone() for tensor in second.optimizer.state_dict()["state"][0].values()]
    list(first.run())  # writes to both buffers
    after = second.optimizer.state_dict()["state"][0].values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.usefixtures("agent")
def test_with_accumulation_a_commit_is_a_step_of_the_optimizer() -> None:
    alone = Training(accumulate=4, name="alone")
    list(alone.run())
    assert alone.state.step == 4, "two of each epoch, the last of fewer batches"
    first = Training(accumulate=4)
    for _ in zip(range(9), first.run(), strict=False):
        pass
    second = Training(accumulate=4)
    assert second.state.restore() is not None
    assert (second.state.step, second.state.epoch, second.state.batch) == (2, 1, 0), "the next epoch had begun"


class Rows(IterableDataset[tuple[torch.Tensor]]):
    """The rows of a dataset, whose number its loader does not know."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        return iter(self.data)


class EpochTraining(Training):
    """One in which the code after the inner loop changes the state, draws numbers, and uses a variable of the loop."""

    def __init__(self, *, sized: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler.milestones.clear()
        self.scheduler.milestones.update([1, 2])
        self.losses: list[float] = []
        if not sized:
            self.loader = DataLoader(Rows(self.loader.dataset), batch_size=4)  # type: ignore[arg-type]

    def run(self, epochs: int = 3) -> Iterator[int]:
        """Train; stop after each epoch's last batch, and once more behind the code after it."""
        for _ in self.state.epochs(epochs):
            for (x,) in self.state.batches(self.loader, accumulate=self.accumulate):
                loss = self.model(x + random.random()).square().mean()
                loss.backward()
                if self.state.sync_gradients:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            yield self.state.step
            if next(self.model.parameters()).grad is not None:  # of a stream's last step
                self.optimizer.step()
                self.optimizer.zero_grad()
            torch.rand(7)
            self.losses.append(loss.item())
            self.scheduler.step()
            yield self.state.step


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("lost_at", range(1, 7))
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize(
    ("sized", "accumulate"), [(True, 1), (True, 4), (False, 1), (False, 4)], ids=["", "steps", "stream", "stream steps"]
)
def test_code_after_the_inner_loop_belongs_to_the_last_step(
    lost_at: int, every: int, sized: bool, accumulate: int
) -> None:
    options: dict[str, Any] = {"sized": sized, "accumulate": accumulate, "snapshot_every": every}
    alone = EpochTraining(name="alone", **options)
    list(alone.run())
    first = EpochTraining(**options)
    list(itertools.islice(first.run(), lost_at))
    second = EpochTraining(**options)
    second.state.restore()
    list(second.run())
    assert equal(alone, second)
    assert alone.losses[-len(second.losses) :] == second.losses
    assert second.state.step == alone.state.step


@pytest.mark.usefixtures("agent")
def test_code_after_the_last_epoch_belongs_to_the_last_step_too() -> None:
    alone = EpochTraining(name="alone")
    list(alone.run())
    list(EpochTraining().run())
    second = EpochTraining()
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.epoch) == (17, 2)
    list(second.run())
    assert equal(alone, second)


def test_a_step_is_asked_about_once_and_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def ask(step: int) -> bool:
        asked.append(step)
        return False

    monkeypatch.setattr("elastic_torch.state.train_state.should_checkpoint", ask)
    folder = Folder()
    monkeypatch.setattr(folder, "due", lambda step, last=False: last or step % 6 == 0)
    training = EpochTraining(disk=folder)
    list(training.run(1))
    list(training.run(3))
    assert asked == list(range(1, 19))
    assert [saved.step for saved in folder.saved] == [6, 12, 18]


@pytest.mark.usefixtures("agent")
def test_a_stop_after_an_epochs_last_step_waits_for_nothing_and_an_unset_variable_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("elastic_torch.state.train_state.should_checkpoint", lambda step: step == 6)
    alone = EpochTraining(name="alone")
    list(alone.run())
    folder = Folder()
    first = EpochTraining(disk=folder)
    assert next(first.run()) == 6
    assert first.state.stopping
    assert [saved.step for saved in folder.saved] == [5, 6], "before the code after the loop"
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    second = EpochTraining()
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.epoch) == (6, 0)
    told = r"^Epoch 0 goes on after its last batch.* uses one, such as `loss`, needs a value from before the loop"
    with pytest.raises(UnboundLocalError), pytest.warns(UserWarning, match=told):
        record(lambda: list(second.run()))()
    assert "(step 6, epoch 0, batches none left: what the loop" in (tmp_path / "error.json").read_text()


class Stream(IterableDataset[torch.Tensor]):
    """Five numbers; it knows how far it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < 5:
            self.at += 1
            yield torch.tensor([float(self.at)])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def streamed(hangs: bool = False) -> Iterator[tuple[int, int, int]]:
    """Train for two epochs: the steps committed before each batch, its epoch and its number; ``hangs`` after the first
    one's last batch.
    """
    model = nn.Linear(1, 1)
    loader = StatefulDataLoader(Stream(), batch_size=1)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), per_rank={"loader": loader})
    state.restore()
    for epoch in state.epochs(2):
        for batch in state.batches(loader, accumulate=2):
            yield state.step, epoch, int(batch)
        if hangs:
            return


@pytest.mark.usefixtures("agent")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("lost_after", range(1, 6))
def test_a_stream_whose_last_step_is_short_is_read_once_in_each_epoch(lost_after: int) -> None:
    """Its length is unknown, so an epoch's last step is committed when the loader has ended."""
    first = streamed()
    committed = [batch for step, *batch in itertools.takewhile(lambda item: item[0] < lost_after, first)]
    assert [*committed, *(batch for _, *batch in streamed())] == [[e, n] for e in (0, 1) for n in range(1, 6)]


@pytest.mark.usefixtures("agent")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stream_that_is_lost_after_an_epochs_last_batch_repeats_its_last_step() -> None:
    list(streamed(hangs=True))
    assert [batch for _, *batch in streamed()] == [[0, 5], *([1, n] for n in range(1, 6))]


@pytest.mark.usefixtures("agent")
def test_generators_stay_as_they_are_without_rng() -> None:
    first = Training(rng=False)
    list(first.run())
    second = Training(rng=False)
    before = torch.get_rng_state()
    assert second.state.restore() is not None
    assert torch.equal(torch.get_rng_state(), before)


class Cursor:
    """A sampler that knows how far it is."""

    def __init__(self) -> None:
        self.epoch = self.cursor = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.cursor, 5))

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0

    def advance(self) -> None:
        self.cursor += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.cursor = state["epoch"], state["cursor"]


@pytest.mark.usefixtures("agent")
def test_a_sampler_that_knows_where_it_is_goes_on_there() -> None:
    def train(most: int) -> list[tuple[int, int]]:
        sampler = Cursor()
        state = TrainState(model=nn.Linear(1, 1), sampler=sampler)
        state.restore()
        seen = []
        for epoch in state.epochs(2):
            for sample in state.batches(sampler):
                seen.append((epoch, sample))
                if len(seen) == most:
                    return seen
        return seen

    assert train(8) + train(3) + train(9) == [
        *[(0, i) for i in range(5)],
        *[(1, 0), (1, 1), (1, 2)],
        *[(1, 2), (1, 3), (1, 4)],
        *[(1, 4)],
    ]


@dataclass
class Checkpoint:
    run_uid: str
    round: int
    step: int
    state: dict[str, Any]

    @property
    def checkpoint(self) -> Checkpoint:
        return self


class Folder:
    """A tier that keeps states as a checkpoint on disk does, every fifth."""

    def __init__(self, run: str = "") -> None:
        self.run, self.saved = run, list[Checkpoint]()

    def due(self, step: int, *, last: bool = False) -> bool:
        return last or step % 5 == 0

    def wait(self) -> None:
        """Everything is there at once."""

    def save(self, state_dict: dict[str, Any], step: int) -> None:
        file = io.BytesIO()
        torch.save(state_dict, file)
        file.seek(0)
        self.saved.append(Checkpoint(self.run, 0, step, torch.load(file, weights_only=False)))

    def newest(self, *, verify: bool = True) -> Checkpoint | None:
        return self.saved[-1] if self.saved else None

    def load(self) -> Checkpoint | None:
        return self.newest()


def until(training: Training, last: int) -> None:
    """Commit so many steps, and be lost in the next one."""
    for step in training.run():
        if step > last:
            return


def test_after_a_full_restart_a_checkpoint_is_gone_on_from_to_the_last_bit() -> None:
    alone = Training()
    list(alone.run())
    folder = Folder("another run")
    until(Training(disk=folder), 8)
    second = Training(disk=folder)
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.tier) == (5, Tier.DISK)
    list(second.run())
    assert equal(alone, second)


def test_a_checkpoint_on_disk_is_gone_on_from_to_the_last_bit(tmp_path: Path) -> None:
    alone = Training()
    list(alone.run())
    with Disk(tmp_path, interval=3) as disk:
        until(Training(disk=disk), 8)
    with Disk(tmp_path, interval=5) as disk:
        second = Training(disk=disk)
        restored = second.state.restore()
        assert restored is not None
        assert (restored.step, restored.tier) == (6, Tier.DISK)
        list(second.run())
        assert equal(alone, second)
        assert (newest := disk.newest()) is not None
        assert newest.step == 12, "the last step is saved though it is not due"
    with Disk(tmp_path, interval=5) as disk:
        third = Training(disk=disk)
        third.state.restore()
        assert list(third.run()) == []
        assert disk.wait() is None, "it is there already"


def test_a_training_that_is_over_goes_on_for_more_epochs_to_the_last_bit() -> None:
    alone = Training()
    list(alone.run(3))
    folder = Folder("another run")
    list(Training(disk=folder).run(2))
    second = Training(disk=folder)
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.epoch) == (12, 2)
    list(second.run(3))
    assert equal(alone, second)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("leaving", [True, False])
def test_where_all_ranks_stop_the_step_is_kept(monkeypatch: pytest.MonkeyPatch, leaving: bool) -> None:
    alone = Training(name="alone")
    list(alone.run())
    monkeypatch.setattr("elastic_torch.state.train_state.should_checkpoint", lambda step: step == 8)
    monkeypatch.setattr("elastic_torch.state.train_state.somebody_leaves", lambda: leaving)
    folder = Folder()
    first = Training(disk=folder, snapshot_every=5)
    assert list(first.run())[-1] == 8, "both loops end"
    assert first.state.stopping
    assert [saved.step for saved in folder.saved] == ([5, 8] if leaving else [5]), "memory is enough for newcomers"
    second = Training(snapshot_every=5)
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.epoch, restored.tier) == (8, 1, Tier.MEMORY)
    list(second.run())
    assert not second.state.stopping
    assert equal(alone, second)


@pytest.mark.usefixtures("agent")
def test_the_disk_does_not_wait_for_the_replicas_of_a_node_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_torch.state.train_state.should_checkpoint", lambda step: step == 3)
    monkeypatch.setattr("elastic_torch.state.train_state.somebody_leaves", lambda: True)
    folder, then = Folder(), list[int]()
    training = Training(disk=folder)
    monkeypatch.setattr(training.state._memory, "leave", lambda: then.extend(saved.step for saved in folder.saved))
    list(training.run())
    assert then == [saved.step for saved in folder.saved] == [3]


def test_where_there_is_no_memory_a_stop_for_newcomers_goes_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    monkeypatch.setattr("elastic_torch.state.train_state.should_checkpoint", lambda step: step == 3)
    monkeypatch.setattr("elastic_torch.state.train_state.somebody_leaves", lambda: False)
    folder = Folder()
    list(Training(disk=folder).run())
    assert [saved.step for saved in folder.saved] == [3]


def test_a_sampler_that_does_not_know_how_far_it_is_goes_on_with_as_many_ranks_only() -> None:
    first, second = Training(), Training()
    until(first, 3)
    state = first.state.state_dict()
    state["form"] = state["form"].replace('["ranks", 1]', '["ranks", 2]')
    folder = Folder("another run")
    folder.save(state, 3)
    told = r"^Epoch 0 is to go on with 1 rank\(s\) after 3 batches of 2, and the loader's position"
    second = Training(disk=folder, rng=False)
    second.state.restore()
    with pytest.raises(UsageError, match=told):
        next(second.run())
    lossy = Training(disk=folder, rng=False, exact_samples=False)
    lossy.state.restore()
    with pytest.warns(UserWarning, match=told):
        next(lossy.run())


@pytest.mark.parametrize(("stops", "epoch"), [(True, 0), (False, 1)], ids=["stopped there", "the next has begun"])
@pytest.mark.filterwarnings("ignore:Epoch 0 goes on after its last batch")
def test_an_epoch_that_is_over_needs_no_position_whatever_the_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, stops: bool, epoch: int
) -> None:
    folder = Folder("another run")
    monkeypatch.setattr("elastic_torch.state.train_state.should_checkpoint", lambda step: stops and step == 6)
    monkeypatch.setattr(folder, "due", lambda step, last=False: step == 6)
    first = Training(disk=folder)
    until(first, 6)
    [saved] = folder.saved
    saved.state["form"] = saved.state["form"].replace('["ranks", 1]', '["ranks", 2]')
    monkeypatch.undo()
    second = Training(disk=folder, rng=False)
    restored = second.state.restore()
    assert restored is not None
    assert (restored.step, restored.epoch) == (6, epoch), "after the first one's last step"
    assert list(second.run()) == [*range(7, 13)], "the next one begins"
    assert len({*map(tuple, second.seen)}) == 6


def test_a_last_step_that_is_not_on_disk_is_an_error_of_the_script() -> None:
    class Full(Folder):
        def wait(self) -> None:
            raise CheckpointSaveError("The checkpoint of step 12 was not saved in /there: No space left on device.")

    training = Training(disk=Full())
    steps = training.run()
    assert [next(steps) for _ in range(12)] == [*range(1, 13)]
    with pytest.raises(CheckpointSaveError, match="step 12 was not saved in /there"):
        next(steps)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("run", "every", "step", "tier"),
    [
        pytest.param("", 1, 8, Tier.MEMORY, id="memory is newer"),
        pytest.param("", 3, 6, Tier.MEMORY, id="memory is newer by a step"),
        pytest.param("", 7, 5, Tier.DISK, id="the checkpoint is newer"),
        pytest.param("another run", 4, 4, Tier.MEMORY, id="the checkpoint is another run's"),
    ],
)
def test_the_newer_one_of_memory_and_disk_counts(run: str, every: int, step: int, tier: Tier) -> None:
    folder = Folder(run)
    until(Training(disk=folder, snapshot_every=every), 4 if run else 6 if every == 7 else 8)
    if run:
        until(Training(disk=folder, name="other"), 5)
    restored = Training(disk=folder).state.restore()
    assert restored is not None
    assert (restored.step, restored.tier) == (step, tier)


@pytest.mark.usefixtures("agent")
def test_with_which_checkpoint_the_run_began_is_found_again_where_no_agent_remembers_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def base() -> Any:
        fd = held("train/rescue")
        assert fd is not None
        try:
            return json.loads(os.pread(fd, 4096, 0))["base"]
        finally:
            os.close(fd)

    monkeypatch.setenv("ELASTIC_RESCUE_DIR", str(tmp_path))
    folder = Folder("before")
    until(Training(disk=folder, name="other"), 5)
    training = Training(disk=folder)
    training.state.restore()
    until(training, 7)
    assert base() == ["before", 0, 5]
    assert release("train/rescue"), "as if it could not be left with the agent"
    restored = Training(disk=folder).state.restore()
    assert restored is not None
    assert (restored.step, restored.tier) == (7, Tier.MEMORY)
    assert base() == ["before", 0, 5]


@pytest.mark.usefixtures("agent")
def test_a_checkpoint_that_turns_out_damaged_is_passed_over() -> None:
    folder = Folder()
    until(Training(disk=folder, snapshot_every=4), 5)
    folder.load = lambda: None  # type: ignore[method-assign]
    restored = Training(disk=folder).state.restore()
    assert restored is not None
    assert (restored.step, restored.tier) == (4, Tier.MEMORY)


def test_an_object_without_a_state_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^extra\['steps'\] is a int, which has no state_dict\(\)"):
        TrainState(model=nn.Linear(1, 1), extra={"steps": 7})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"^snapshot_every=0: it counts steps, from 1"):
        TrainState(model=nn.Linear(1, 1), snapshot_every=0)
    with pytest.raises(ValueError, match=r"^name='the model': it has 1 to 64 letters, digits and _\.:- in it"):
        TrainState(model=nn.Linear(1, 1), name="the model")


def test_several_workers_need_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"restore\(\) needs the process group"):
        TrainState(model=nn.Linear(1, 1)).restore()


def test_a_worker_knows_its_place_under_either_launcher() -> None:
    ours = {"ELASTIC_RUN_UID": "u", "ELASTIC_ROUND": "3", "ELASTIC_LOCAL_RANK": "2", "LOCAL_RANK": "0"}
    assert Place.found(ours) == Place("u", 3, 2)
    torchs = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "1", "LOCAL_RANK": "2"}
    assert Place.found(torchs) == Place("job", 1, 2)
    assert Place.found({}) == Place("", 0, 0)


@pytest.mark.usefixtures("agent")
def test_before_a_break_out_of_the_epochs_commit_keeps_the_last_step(tmp_path: Path) -> None:
    with Disk(tmp_path, interval=6) as disk:
        training = Training(disk=disk)
        for _ in training.state.epochs(3):
            for (x,) in training.state.batches(training.loader):
                training.model(x).square().mean().backward()
                training.optimizer.step()
                training.optimizer.zero_grad()
            training.state.commit()
            break
        assert training.state.step == 6, "no further step is counted"
        disk.wait()
        assert (newest := disk.newest()) is not None
        assert newest.step == 6
