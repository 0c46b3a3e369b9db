"""A monitor with a flag of its own: ``--watch_loss=MAX`` fails a rank that prints a loss above MAX.

``elastic status`` shows the newest loss of each node. The failure has the name ``LossTooHigh``, for failure policies,
and the line that the rank has printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from elastic_core import Flag, LineReader, RunConfig, RunningRound, hookimpl
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


@hookimpl
def elastic_flags() -> Sequence[Flag[float | None]]:
    """Return the flag that :class:`WatchLoss` reads."""
    return (WATCH_LOSS,)


class WatchLoss:
    """The plugin."""

    def __init__(self) -> None:
        self._most: float | None = None

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Take the flag."""
        self._most = config.of(WATCH_LOSS)

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

        round.read_output(lambda rank: LineReader(lambda line: read(rank, line)), every_stream=True)
