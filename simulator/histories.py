"""All entries ever written, on all servers: their order, and the forks of a run's history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry, Halt, Member, Open, Resume, Round
from elastic_core.protocol.settings import Command

if TYPE_CHECKING:
    from simulator.replica import Replica


@dataclass
class Histories:
    """Entries by their ids, and rounds by the ids of their offers, each of which serves one round on one server."""

    written: dict[str, Entry] = field(default_factory=dict)
    rounds: dict[str, Round] = field(default_factory=dict)
    """Rounds with their members resolved; if two masters gave one offer to a round each, the later one."""
    resolved: dict[str, Round] = field(default_factory=dict)
    """The rounds by the ids of their entries."""
    followed: dict[str, str] = field(default_factory=dict)
    """The round before each round, in its own history."""
    forked: set[str] = field(default_factory=set)
    """Runs with two histories, since a store has lost one."""
    opens: dict[str, Entry] = field(default_factory=dict)
    """The OPEN of each run."""
    uids: dict[str, str | None] = field(default_factory=dict)
    """The scheduler's uid of each run."""
    commands: dict[str, Command] = field(default_factory=dict)
    """The program of each run's opener."""
    _after: dict[str, str] = field(default_factory=dict)
    """The first successor of each entry."""
    _written_rounds: set[tuple[str, int, tuple[Member, ...]]] = field(default_factory=set)
    _begun: set[str] = field(default_factory=set)
    _newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The newest epoch and index of each run on any server."""

    def add(self, replica: Replica, entry: Entry) -> Entry | None:
        """Record the newest entry of a server; return the one before it there."""
        self.written[entry.id] = entry
        if isinstance(entry.body, Open):
            self.opens[entry.run] = entry
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
        """Record a round; return it with its members resolved."""
        members = body.members or (earlier.members if earlier is not None else ())
        spelled = Round(number=body.number, offer=body.offer, members=members)
        self.rounds[body.offer.id] = self.resolved[entry.id] = spelled
        self._written_rounds.add((body.offer.id, body.number, members))
        self._begun.add(entry.run)
        if earlier is not None:
            self.followed[body.offer.id] = earlier.offer.id
        return spelled

    def was_written(self, current: Round) -> bool:
        """Return True if this very round was written; two masters may each have given one offer to a round."""
        return (current.offer.id, current.number, current.members) in self._written_rounds

    def has_round(self, run: str) -> bool:
        """Return True if a run has had a round, on any server."""
        return run in self._begun

    def came_before(self, former: str, run: str) -> bool:
        """Return True if a run was opened upon another one, or upon one that was."""
        entry: Entry | None = self.opens.get(run)
        while entry is not None and entry.run != former:
            entry = self.written.get(entry.prev)
        return entry is not None

    def newest(self, replica: Replica) -> Entry | None:
        """Return the newest entry on a server that a node wrote."""
        ids = (entry_id for entry_id, _ in reversed(replica.entries))
        return next((self.written[entry_id] for entry_id in ids if entry_id in self.written), None)

    def newest_round(self, replica: Replica, run: str, *, skip: int = 0) -> Round | None:
        """Return a run's newest round on a server, if that run is the newest there; ``skip`` entries are left out."""
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
        """Return the HALT in effect when an entry was written, even under another leader; None without one."""
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
        """Return the seconds for which that HALT had been in effect."""
        seconds = entry.elapsed
        while (before := self.written.get(entry.prev)) is not None and not isinstance(before.body, Halt):
            entry, seconds = before, seconds + before.elapsed
        return seconds

    def follows(self, later: Round, round: Round) -> bool:
        """Return True if ``round`` precedes ``later`` in its history."""
        at = later.offer.id
        while (before := self.followed.get(at)) is not None:
            if before == round.offer.id:
                return True
            at = before
        return False
