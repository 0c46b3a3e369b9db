"""Everything that was ever written, on whichever server: what stands on what, and where one history became two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry, Halt, Member, Open, Resume, Round
from elastic_core.protocol.settings import Command

if TYPE_CHECKING:
    from simulator.replica import Replica


@dataclass
class Histories:
    """The entries by their ids, and the rounds by the ids of their offers, which serve one round each on one server."""

    written: dict[str, Entry] = field(default_factory=dict)
    rounds: dict[str, Round] = field(default_factory=dict)
    """With their members spelled out; where two masters each gave one place to a round of theirs, the later one."""
    resolved: dict[str, Round] = field(default_factory=dict)
    """The same by the ids of the entries, each of which has one round."""
    followed: dict[str, str] = field(default_factory=dict)
    """The round before each one, in its own history."""
    forked: set[str] = field(default_factory=set)
    """Runs of which there are two histories, since a store has forgotten one."""
    uids: dict[str, str | None] = field(default_factory=dict)
    """The scheduler's uid of each run."""
    commands: dict[str, Command] = field(default_factory=dict)
    """What the opener of each run runs."""
    _after: dict[str, str] = field(default_factory=dict)
    """What was first built upon each entry."""
    _written_rounds: set[tuple[str, int, tuple[Member, ...]]] = field(default_factory=set)
    _begun: set[str] = field(default_factory=set)
    _newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How far each run has come on any server."""

    def add(self, replica: Replica, entry: Entry) -> Entry | None:
        """Take note of the newest entry of a server; the one before it there."""
        self.written[entry.id] = entry
        if isinstance(entry.body, Open):
            self.uids[entry.run] = entry.body.scheduler_uid
            self.commands[entry.run] = entry.body.settings.command
        body, newest = entry.body, self._newest.get(entry.run, (0, 0))
        if entry.prev and self._after.setdefault(entry.prev, entry.id) != entry.id:
            self.forked.add(entry.run)
        if (isinstance(body, Resume) and (body.epoch, body.index) < newest) or entry.epoch < newest[0]:
            self.forked.add(entry.run)
        self._newest[entry.run] = max(newest, (entry.epoch, entry.index))
        return self.written[entry.prev] if entry.prev else None

    def add_round(self, entry: Entry, body: Round, earlier: Round | None) -> Round:
        """Take note of a round; what it is, spelled out."""
        members = body.members or (earlier.members if earlier is not None else ())
        spelled = Round(number=body.number, offer=body.offer, members=members)
        self.rounds[body.offer.id] = self.resolved[entry.id] = spelled
        self._written_rounds.add((body.offer.id, body.number, members))
        self._begun.add(entry.run)
        if earlier is not None:
            self.followed[body.offer.id] = earlier.offer.id
        return spelled

    def was_written(self, current: Round) -> bool:
        """Whether this very round was written; two masters may each have given one place to a round of theirs."""
        return (current.offer.id, current.number, current.members) in self._written_rounds

    def has_round(self, run: str) -> bool:
        """Whether a run ever had one, on any server."""
        return run in self._begun

    def newest(self, replica: Replica) -> Entry | None:
        """Return the newest entry by a node on a server."""
        ids = (entry_id for entry_id, _ in reversed(replica.entries))
        return next((self.written[entry_id] for entry_id in ids if entry_id in self.written), None)

    def newest_round(self, replica: Replica, run: str, *, skip: int = 0) -> Round | None:
        """Return a run's newest round on a server, while that run is the newest there; without the last entries."""
        for place in range(len(replica.entries) - 1 - skip, -1, -1):
            entry = self.written.get(replica.entries[place][0])
            if entry is None:  # by a stranger
                continue
            if entry.run != run:
                return None
            if isinstance(entry.body, Round):
                return self.resolved[entry.id]
            if isinstance(entry.body, Resume):
                return entry.body.round
        return None

    def halt_before(self, entry: Entry) -> Halt | None:
        """Return the HALT that stood when an entry was written, even if another node leads since; None without one."""
        while (before := self.written.get(entry.prev)) is not None:
            if isinstance(before.body, Halt):
                return before.body
            if isinstance(before.body, Resume):
                return before.body.halt
            if isinstance(before.body, Open | Round):
                return None
            entry = before
        return None

    def halted_for(self, entry: Entry) -> float:
        """Seconds for which that HALT had stood."""
        seconds = entry.elapsed
        while (before := self.written.get(entry.prev)) is not None and not isinstance(before.body, Halt):
            entry, seconds = before, seconds + before.elapsed
        return seconds

    def follows(self, later: Round, round: Round) -> bool:
        """Whether one round is in the history of another."""
        at = later.offer.id
        while (before := self.followed.get(at)) is not None:
            if before == round.offer.id:
                return True
            at = before
        return False
