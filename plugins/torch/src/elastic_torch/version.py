"""The order of states: the run, the round and the step in which they were made (rule S5).

A :class:`Stamp` orders the states of one run. A :class:`Position` orders the checkpoints of a directory, to which
several runs have saved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_FOLDER = re.compile(r"run-(\d{4,})_round-(\d{5,})_step-(\d{9,})(?:-[0-9a-f]+)*")


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """When a state was made; of one run, the greater one is the newer.

    A later round comes first, whatever its step: it went on from what all of its members had agreed upon, and what an
    earlier one reached beyond that is not known to others (rule S5).
    """

    round: int
    step: int


@dataclass(frozen=True, slots=True)
class Place:
    """A worker, as its launcher names it."""

    run: str  # the run's uid; under torchrun, the job's id
    round: int  # under torchrun, the count of restarts
    local_rank: int  # the number among the workers of its node, also where each of them is told that it is the first

    @classmethod
    def found(cls, environ: Mapping[str, str] = os.environ) -> Place:
        """Return the place in the environment; outside of a launcher, that of a run of one worker."""
        return cls(
            run=environ.get("ELASTIC_RUN_UID") or environ.get("TORCHELASTIC_RUN_ID", ""),
            round=int(environ.get("ELASTIC_ROUND") or environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            local_rank=int(environ.get("ELASTIC_LOCAL_RANK") or environ.get("LOCAL_RANK", "0")),
        )


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position of a checkpoint in the life of a job. Later ones compare greater."""

    run: int  # the run's number in this checkpoint directory, from 1: runs are numbered as they begin to save there
    round: int  # the round's number within the run
    step: int  # the training step, whatever the script counts

    def __str__(self) -> str:
        return f"run-{self.run:04}_round-{self.round:05}_step-{self.step:09}"

    @property
    def turn(self) -> tuple[int, int]:
        """Run and round: what the fence is made of."""
        return (self.run, self.round)


def parse(folder: str) -> Position | None:
    """Return the position in a folder's name (on URLs a random suffix follows it); None for any other name."""
    found = _FOLDER.fullmatch(folder)
    return None if found is None else Position(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint."""

    position: Position  # its place in the order of all checkpoints of the directory
    run_uid: str  # the uid of the run that saved it
    folder: str  # its folder's name in the checkpoint directory
    where: str  # the same as a whole path or URL; ``torch.distributed.checkpoint`` can read it as it is
    size: int  # bytes of all its files

    @property
    def step(self) -> int:
        """The training step."""
        return self.position.step

    @property
    def round(self) -> int:
        """The round within the run."""
        return self.position.round
