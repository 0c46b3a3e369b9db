"""The order of checkpoints: by run, then round, then step (rule S5 of the design); how a directory's name says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"run-(\d{4,})_round-(\d{5,})_step-(\d{9,})")
_FOLDER = re.compile(rf"(?P<name>{_NAME.pattern})(?:-[0-9a-f]+)*")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where in the life of a job a checkpoint is from. Later ones compare greater.

    Attributes:
        run: The run's number in this checkpoint directory, from 1: runs are numbered as they begin to save there.
        round: The round's number within the run.
        step: The training step, whatever the script counts.
    """

    run: int
    round: int
    step: int

    def __str__(self) -> str:
        return f"run-{self.run:04}_round-{self.round:05}_step-{self.step:09}"

    @property
    def turn(self) -> tuple[int, int]:
        """Run and round: what the fence is made of."""
        return (self.run, self.round)


def parse(folder: str) -> Position | None:
    """The position that a folder's name says (on URLs a random suffix follows it), or None for any other name."""
    found = _FOLDER.fullmatch(folder)
    return None if found is None else Position(*(int(found[i]) for i in (2, 3, 4)))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint.

    Attributes:
        position: Its place in the order of all checkpoints of the directory.
        run_uid: The uid of the run that saved it.
        folder: Its folder's name in the checkpoint directory.
        where: The same as a whole path or URL; ``torch.distributed.checkpoint`` can read it as it is.
        size: Bytes of all its files.
    """

    position: Position
    run_uid: str
    folder: str
    where: str
    size: int

    @property
    def step(self) -> int:
        """The training step."""
        return self.position.step

    @property
    def round(self) -> int:
        """The round within the run."""
        return self.position.round
