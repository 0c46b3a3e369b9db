"""A monitor and a gate, with a flag each.

``--watch_loss=MAX`` fails a rank that prints a loss above MAX. ``elastic status`` shows the newest loss of each node.
The failure has the name ``LossTooHigh``, for failure policies, and the line that the rank has printed.
``--keep_out=FILE`` keeps a host out of the job while it has that file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic_core import Flag, JoinGate, LineReader, RunConfig, RunningRound, UnhealthyNodeError, hookimpl
from elastic_core.config.parse import Wrong

LOSS = re.compile(r"\bloss\W{1,3}(\d+(?:\.\d*)?(?:e[-+]?\d+)?)", re.IGNORECASE)


def number(text: str) -> float:
    """Return the number that a text stands for."""
    try:
        return float(text)
    except ValueError:
        raise Wrong("is not a number") from None


WATCH_LOSS: Flag[float | None] = Flag(
    name="watch_loss",
    text="End the round when a rank prints a loss above MAX.",
    section="Failure",
    parse=number,
    metavar="MAX",
)
KEEP_OUT: Flag[Path | None] = Flag(
    name="keep_out", text="Keep a host out while it has this file.", section="Failure", parse=Path, metavar="FILE"
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that :class:`WatchLoss` reads."""
    return (WATCH_LOSS, KEEP_OUT)


class WatchLoss:
    """The plugin."""

    def __init__(self) -> None:
        self._most: float | None = None

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Take the flag."""
        self._most = config.of(WATCH_LOSS)

    @hookimpl
    def elastic_before_join(self, gate: JoinGate) -> None:
        """Look for the file before this node joins, if the flag was given."""
        if (file := gate.config.of(KEEP_OUT)) is None:
            return

        def check() -> None:
            if file.exists():
                raise UnhealthyNodeError(f"{file} keeps this host out of the job.", hint="Remove the file.")

        gate.add(check, quick=True)

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Read every line that the workers print, if the flag was given."""
        if (most := self._most) is None:
            return

        def read(rank: int, line: str) -> None:
            if (found := LOSS.search(line)) is None:
                return
            round.note("loss", found[1])
            if float(found[1]) > most:
                round.explain(f"rank {rank} printed: {line}")
                round.fail(rank, f"the loss {found[1]} is above --watch_loss={most:g}", name="LossTooHigh")

        round.read_output(lambda rank, *_: LineReader(lambda line: read(rank, line)), every_stream=True)
