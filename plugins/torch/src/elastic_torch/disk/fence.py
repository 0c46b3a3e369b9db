"""The fence: files in the checkpoint directory that say which run and round may save there.

Uids of runs have no order, so the directory numbers them: a run that begins to save there creates ``run-NNNN.json``,
which only one can, and each of its rounds leaves ``run-NNNN_round-NNNNN.json``. A process that finds a claim or a
checkpoint of a later turn is a straggler, and refused. A new run does not take over while rank 0 of the last one is
alive: that is shown by a lock which dies with its process.

Notes of *lineages* are there too. A lineage is a random name in every manifest: it says which checkpoints belong to one
training, so that no other ones are removed for being old. A training that goes on from the newest checkpoint continues
its lineage. One that begins anew, or goes back behind a newer checkpoint that could not be read, begins a lineage of
its own: what other trainings have saved stays.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic_torch.disk import catalog
from elastic_torch.disk.collective import Collective
from elastic_torch.disk.errors import CheckpointRefusedError
from elastic_torch.disk.storage import Storage
from elastic_torch.version import Position, parse

logger = logging.getLogger("elastic_torch.disk")
FOLDER = ".claims"
Turn = tuple[int, int]  # run and round
_CLAIM = re.compile(r"run-(\d{4,})(?:_round-(\d{5,}))?\.json")
_NOTE = re.compile(r"run-(\d{4,})_round-(\d{5,})_lineage-([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a process that saves."""

    uid: str  # the run's own random id
    round: int  # the round's number within the run
    who: str  # the process for people: job, host and pid


def identity(environ: Mapping[str, str] = os.environ) -> Identity:
    """Return the identity of this process, from ``ELASTIC_RUN_UID`` and ``ELASTIC_ROUND``.

    Elsewhere (torchrun, a plain script) each start of the workers counts as a run of its own, under a random uid:
    runs are ordered by when they begin to save, so that comes to the same.
    """
    job = environ.get("TORCHELASTIC_RUN_ID")
    who = f"{f'job {job!r} on ' if job else ''}{socket.gethostname()}, pid {os.getpid()}"
    if "ELASTIC_RUN_UID" in environ:
        return Identity(environ["ELASTIC_RUN_UID"], int(environ.get("ELASTIC_ROUND", "0")), who)
    return Identity(secrets.token_hex(6), 0, who)


@dataclass(frozen=True, slots=True)
class Claim:
    """That this round (-1: any) of the run with this number may save, and whose run it is; an unknown uid is ''."""

    run: int
    round: int
    uid: str
    who: str

    @property
    def turn(self) -> tuple[int, int]:
        """The key by which claims are ordered."""
        return (self.run, self.round)


def number(claims: Iterable[Claim], me: Identity, root: str) -> int:
    """Return my run's number here, or a new one; raise CheckpointRefusedError if a later turn is there. Pure."""
    known = list(claims)
    newest = max(known, key=lambda claim: claim.turn, default=None)
    if newest is None:
        return 1
    mine = max((claim.run for claim in known if claim.uid == me.uid), default=None)
    if mine is None:
        return newest.run + 1
    if newest.turn > (mine, me.round):
        raise refusal(root, (mine, me.round), newest)
    return mine


def refusal(root: str, turn: tuple[int, int], newer: Claim) -> CheckpointRefusedError:
    """Return the error for a straggler."""
    who = newer.who or "another user"
    what = f"a later run, {newer.uid or newer.run}," if newer.run > turn[0] else f"a later round, {newer.round},"
    return CheckpointRefusedError(
        f"Nothing can be saved in {root} any more: {what} of {who} has taken over; this is round {turn[1]}.",
        hint="Processes of a job that goes on elsewhere end. Two jobs need two directories.",
    )


def read_claims(storage: Storage) -> list[Claim]:
    """Return every run's newest claim, and those that checkpoints' names imply, which count without claims too.

    A run has a claim for each of its rounds, and they are thousands: one is read, the newest that is not damaged.
    """
    files = _files(storage)
    found: dict[int, Claim] = {}
    for run, round in sorted(files, reverse=True):
        known = found.get(run)
        if known is None or not known.uid:
            uid, who = _content(storage, files[run, round])
            found[run] = Claim(run, round if known is None else known.round, uid, who)
    return [*found.values(), *(Claim(run, round, "", "") for run, round in sorted(_saved(storage) - {*files}))]


def _files(storage: Storage) -> dict[tuple[int, int], str]:
    """Return the claims' files, by their turns, as far as names tell."""
    matches = map(_CLAIM.fullmatch, storage.names(FOLDER))
    return {(int(m[1]), -1 if m[2] is None else int(m[2])): f"{FOLDER}/{m[0]}" for m in matches if m is not None}


def _saved(storage: Storage) -> set[tuple[int, int]]:
    """Return the turns that there are checkpoints of."""
    return {position.turn for folder in storage.folders() if (position := parse(folder)) is not None}


def refuse_beside_the_living(storage: Storage, newest: Claim) -> None:
    """Refuse, by a CheckpointRefusedError that names it, to take over from another run that is alive."""
    if storage.held(f"{FOLDER}/run-{newest.run:04}.lock"):
        raise CheckpointRefusedError(
            f"Another run saves in {storage.root}: {newest.uid} of {newest.who or 'another user'}, and it is alive.",
            hint="Give this job a directory of its own, or stop that run.",
        )


def claim(storage: Storage, run: int, me: Identity) -> None:
    """Take this turn; raise CheckpointRefusedError if another run has taken the number meanwhile."""
    storage.make(FOLDER)
    content = json.dumps({"uid": me.uid, "who": me.who}).encode()
    path = f"{FOLDER}/run-{run:04}.json"
    if not storage.put(path, content):
        uid, who = _content(storage, path)
        if uid != me.uid:
            raise refusal(storage.root, (run - 1, me.round), Claim(run, -1, uid, who))
    storage.put(f"{FOLDER}/run-{run:04}_round-{me.round:05}.json", content)


def check_turn(storage: Storage, position: Position) -> None:
    """Raise CheckpointRefusedError if a later turn has begun; it looks at names, so that it costs little."""
    files = _files(storage)
    newest = max({*files, *_saved(storage)}, default=position.turn)
    if newest > position.turn:
        uid = who = ""
        with contextlib.suppress(OSError):  # its name is enough
            uid, who = _content(storage, files[newest]) if newest in files else ("", "")
        raise refusal(storage.root, position.turn, Claim(*newest, uid, who))


def _content(storage: Storage, path: str) -> tuple[str, str]:
    """Return the uid and the name in a claim; empty ones if it was damaged or is gone: its name still counts.

    Raises:
        OSError: It cannot be read. To take it for another run's would be to go on under another number.
    """
    try:
        with storage.read(path) as file:
            body = json.loads(file.read(1 << 16))
        return str(body["uid"]), str(body["who"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return "", ""


def continued_lineage(collective: Collective, storage: Storage, first: bool, run: int) -> str:
    """Return the lineage of a run that has loaded nothing, as it goes on from memory: its last one, or a new one.

    Collective; ``first`` says whether this rank is the first of those that see the directory. Raises PeerFailedError
    where a directory cannot be read.
    """

    def last() -> tuple[Turn, str] | None:
        saved = [(holding.position.turn, holding.manifest.lineage) for holding in catalog.holdings(storage)[0]]
        notes = [((int(m[1]), int(m[2])), m[3]) for m in map(_NOTE.fullmatch, storage.names(FOLDER)) if m is not None]
        return max((item for item in [*notes, *saved] if item[0][0] == run), key=lambda item: item[0], default=None)

    known = [item for item in collective.agree(lambda: last() if first else None) if item is not None]
    return max(known)[1] if known else begin_lineage(collective)


def begin_lineage(collective: Collective) -> str:
    """Return a new lineage. Collective."""
    return collective.lead(lambda: secrets.token_hex(8))


def note_lineage(storage: Storage, turn: Turn, name: str) -> None:
    """Leave a note of a turn's lineage for the later rounds of the run, which may go on from memory."""
    try:
        storage.make(FOLDER)
        storage.put(f"{FOLDER}/run-{turn[0]:04}_round-{turn[1]:05}_lineage-{name}", b"")
    except OSError as error:
        logger.warning("%s has no note of the lineage %s of its checkpoints: %s", storage.root, name, error)
