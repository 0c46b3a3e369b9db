"""The flags that the plugin reads, and what it does in a round because of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.monitors import PlannedStop, RankFailed, RunningRound
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressTable
from elastic_core.protocol.node_events import Checkpointed
from elastic_progress.plugin import ProgressMonitor


class Job:
    """The plugin with some flags, in a round; and what it has posted."""

    def __init__(self, **flags: Any) -> None:
        self.posted: list[object] = []
        self.table = ProgressTable(post=self.posted.append)
        self.plugin = ProgressMonitor()
        place = flags.pop("checkpoint_path", None)
        program = Program(ProgramKind.SCRIPT, "train.py")
        self.plugin.elastic_configure(RunConfig(program=program, checkpoint_path=place, settings=flags))
        self.round = RunningRound(
            0, "run", ["a"], Path(), self.table, self.posted.append, lambda event: None, lambda: ()
        )
        self.plugin.elastic_round_starts(self.round)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "step_7.pt").write_text("weights")
    return tmp_path


@pytest.fixture
def looking(place: Path) -> Iterator[Job]:
    """A job with ``--checkpoint_path``."""
    job = Job(checkpoint_path=str(place))
    yield job
    job.plugin.elastic_run_ends()


def test_an_expression_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(UsageError, match="--progress_pattern 'step' has no named group"):
        Job(progress_pattern="step")
    with pytest.raises(UsageError, match=r"--checkpoint_pattern '\(' is not a regular expression"):
        Job(checkpoint_pattern="(")


@pytest.mark.parametrize("flag", ["progress_pattern", "checkpoint_pattern"])
def test_with_an_own_expression_the_agent_reads_all_streams(flag: str) -> None:
    assert not Job().round.readers.every_stream
    assert Job(**{flag: r"(?P<step>\d+)"}).round.readers.every_stream


def test_a_round_whose_checkpoints_are_all_noticed_says_so_when_it_begins(looking: Job) -> None:
    for job in (looking, Job(checkpoint_pattern="saved")):
        [noted] = [event for event in job.posted if isinstance(event, Checkpointed) and not event.saved]
        assert noted.round == 0
    assert Job().posted == []


def test_files_are_looked_at_once_more_when_the_workers_have_ended(looking: Job) -> None:
    files, time_to_save = looking.round.callbacks.last_looks
    assert files(PlannedStop(30.0, 5.0)) is None
    checkpoint = looking.table.last_checkpoint()
    assert checkpoint is not None
    assert checkpoint[0] == 7
    event = time_to_save(PlannedStop(30.0, 5.0, step=8, checkpoint=checkpoint))
    assert event is not None
    assert (event.name, event.fields["lost_steps"]) == ("time_to_save", 1)


def test_broken_losses_fail_a_rank_on_request_alone() -> None:
    jobs = [Job(), Job(nan_stop=1)]
    for job in jobs:
        job.table.observe(3, Progress(loss=math.nan))
    assert jobs[0].posted == []
    assert [event.rank for event in jobs[1].posted if isinstance(event, RankFailed)] == [3]
