"""Defects in the handling of a store that loses data, of unreachable peers, and of old entries."""

from __future__ import annotations

from simulator.defect import Defect

STORE_DEFECTS: tuple[Defect, ...] = (
    # A store that loses data
    Defect(
        "a newcomer's OPEN buries a run",
        "settle",
        "theirs.round is None or theirs.closed is not None or theirs.head.run in mine.opened.former",
        "theirs.closed is not None or theirs.head.run in mine.opened.former",
        "data_loss",
        3000,
    ),
    Defect(
        "a run is resumed over one that has had a round",
        "settle",
        "theirs.round is None or theirs.closed is not None or theirs.head.run in mine.opened.former",
        "True",
        "data_loss",
        3000,
    ),
    Defect(
        "a run whose nodes are all gone takes the place of one that goes on",
        "restore",
        "theirs and living_hosts(store, theirs, me, runtime)",
        "True",
        "returned",
        1000,
    ),
    Defect(
        "a run is resumed over one that goes on",
        "restore",
        "theirs and living_hosts(store, theirs, me, runtime)",
        "False",
        "data_loss",
        3000,
    ),
    Defect(
        "nothing is put back",
        "overlap",
        "Overlap.BEHIND",
        "Overlap.INTACT",
        "data_loss",
        1000,
    ),
    Defect(
        "a RESUME begins no epoch",
        "compose",
        "head.epoch + isinstance(body, entries.Resume)",
        "head.epoch",
        "data_loss",
    ),
    Defect(
        "an offer that a lost history has used is kept",
        "_replace_history",
        "replace(_say(state, offer=None, asks=asks, answer=None), ledger=ledger, needs_offer=True, asked=0)",
        "replace(_say(state, asks=asks, answer=None), ledger=ledger, asked=0)",
        "data_loss",
        3000,
        first=2180,
    ),
    Defect(
        "a round that was stopped is started again",
        "_wanted_round",
        "current is None or current.number <= state.row.round or current.offer.id in state.started",
        "current is None or current.number <= state.row.round",
        "data_loss",
        3000,
        first=140,
    ),
    Defect(
        "rows of an older epoch are taken at their word",
        "RosterReader.read",
        "row.within(epoch)",
        "row",
        "data_loss",
        first=2_100,
    ),
    # Unreachable peers
    Defect("no node probes", "Supervisor.step", "failed is not None", "False", "isolated"),
    Defect("no node is left out", "find_unreachable", "worst[-1] if worst[0] else None", "None", "isolated"),
    Defect("the one with fewest broken connections is left out", "find_unreachable", "max", "min", "isolated", 1000),
    Defect(
        "a node that is not reached ends the job",
        "_HaltedMembers.gone",
        "out = [] if self.unreachable is None else [self.unreachable]",
        "out: list[str] = []",
        "isolated",
    ),
    Defect(
        "a node that was left out is back at once",
        "_excluded_hosts",
        "out[unreachable] = None",
        "pass",
        "isolated",
        1000,
    ),
    Defect(
        "complaints are never forgotten",
        "_is_probe_current",
        "row.probed == old.number - 1 and not stale",
        "row.probed == old.number - 1",
        "isolated",
        3000,
        first=900,
    ),
    Defect(
        "a report counts before the store has it",
        "RowWriter.publish",
        "self._row, self._revision = row, self._revision + 1",
        "self._row, self._revision = row, self._revision + 1\n"
        "if row.incident is not None and row.incident != self._reported:\n"
        "    if self._is_owed(row.incident):\n"
        "        self._state.report_sent()",
        "isolated",
        3000,
        first=3860,
    ),
    # Tombstones
    Defect(
        "what the newest entry stands on shrinks",
        "entries_to_shrink",
        "needed = [index for index in (at.round, at.latest, at.halt, at.plan) if index]",
        "needed: list[int] = []",
        "agents",
        first=900,
    ),
    Defect(
        "entries shrink before all have read them",
        "entries_to_shrink",
        "[ledger.head.index - whole + 1, *needed, *passed]",
        "[ledger.head.index - whole + 1, *needed]",
        "network",
        1000,
    ),
    # Assumptions of the rules
    Defect(
        "what a store has taken and does not show is sent as fast as it answers",
        "LeaderDriver._append",
        "self.runtime.now() + self._attempts.backoff.failed()",
        "self.runtime.now()",
        "appends",
    ),
    Defect(
        "what a store shows is compared as fast as it answers, where it shows an older state",
        "StoreReader.run",
        "seen is None",
        "False",
        "stale",
    ),
    Defect(
        "a node waits forever for an entry that no node puts back",
        "StoreReader._is_missing_too_long",
        "timing.lost_after if newest else timing.fence_after",
        "timing.lost_after if newest else 1e9",
        "holes",
    ),
    Defect("the fence leaves nothing for clocks that differ", "contact.FENCE_SHARE", "0.8", "1.0", "drift"),
)
