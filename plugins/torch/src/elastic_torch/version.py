"""What orders states: the run, the round and the step in which they were made."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass


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
    """This worker, as its launcher names it."""

    run: str
    """The run's uid; under torchrun, the job's id."""
    round: int
    """Under torchrun, the count of restarts."""
    local_rank: int
    """The number among the workers of its node, also where each of them is told that it is the first."""

    @classmethod
    def found(cls, environ: Mapping[str, str] = os.environ) -> Place:
        """From the environment; outside of a launcher, that of a run that has one worker."""
        return cls(
            run=environ.get("ELASTIC_RUN_UID") or environ.get("TORCHELASTIC_RUN_ID", ""),
            round=int(environ.get("ELASTIC_ROUND") or environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            local_rank=int(environ.get("ELASTIC_LOCAL_RANK") or environ.get("LOCAL_RANK", "0")),
        )


def digest(run: str) -> int:
    """A run's uid as a number below 2 ** 32, to be compared."""
    return zlib.crc32(run.encode())
