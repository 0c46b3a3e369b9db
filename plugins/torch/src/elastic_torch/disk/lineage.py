"""Which checkpoints of a directory belong to one training, so that no other ones are removed for being old.

A lineage is a random name in every manifest. A training that goes on from the newest checkpoint continues its lineage.
One that begins anew, or goes back behind a newer checkpoint that could not be read, begins a lineage of its own: what
other trainings have saved stays.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Sequence

from elastic_torch.disk import catalog
from elastic_torch.disk.catalog import Holding
from elastic_torch.disk.collective import Collective
from elastic_torch.disk.fence import FOLDER
from elastic_torch.disk.storage import Storage

logger = logging.getLogger("elastic_torch.disk")
Turn = tuple[int, int]
_NOTE = re.compile(r"run-(\d{4,})_round-(\d{5,})_lineage-([0-9a-f]+)")


def last(found: Sequence[Holding], notes: Iterable[tuple[Turn, str]], run: int) -> tuple[Turn, str] | None:
    """Return the lineage that a run has had last, and when; None where it has had none. Pure."""
    saved = [(holding.position.turn, holding.manifest.lineage) for holding in found]
    return max((item for item in [*notes, *saved] if item[0][0] == run), key=lambda item: item[0], default=None)


def continued(collective: Collective, storage: Storage, first: bool, run: int) -> str:
    """Return the lineage of a run that has loaded nothing, as it goes on from memory: its last one, or a new one.
    Collective; ``first`` says whether this rank is the first of those that see the directory.

    Raises:
        PeerFailedError: A directory cannot be read.
    """
    lasts = collective.agree(lambda: last(catalog.holdings(storage)[0], _notes(storage), run) if first else None)
    known = [item for item in lasts if item is not None]
    return max(known)[1] if known else begun(collective)


def begun(collective: Collective) -> str:
    """Return a new lineage. Collective."""
    return collective.lead(lambda: secrets.token_hex(8))


def note(storage: Storage, turn: Turn, name: str) -> None:
    """Leave a note of a turn's lineage for the later rounds of the run, which may go on from memory."""
    try:
        storage.make(FOLDER)
        storage.put(f"{FOLDER}/run-{turn[0]:04}_round-{turn[1]:05}_lineage-{name}", b"")
    except OSError as error:
        logger.warning("%s has no note of the lineage %s of its checkpoints: %s", storage.root, name, error)


def _notes(storage: Storage) -> list[tuple[Turn, str]]:
    matches = [match for name in storage.names(FOLDER) if (match := _NOTE.fullmatch(name)) is not None]
    return [((int(match[1]), int(match[2])), match[3]) for match in matches]
