"""Defects in what is done about a store that forgets, peers that do not reach each other, and old entries."""

from __future__ import annotations

from simulation.mutant import Mutant, mutant as _m

REPAIRS: tuple[Mutant, ...] = (
    # A store that forgets
    _m(
        "a newcomer's OPEN buries a run",
        "history",
        "if theirs.round is None or theirs.closed is not None:",
        "if theirs.closed is not None:",
        "forgetful",
        3000,
    ),
    _m(
        "a run is resumed over one that has had a round",
        "history",
        "if theirs.round is None or theirs.closed is not None:",
        "if True:",
        "forgetful",
        3000,
    ),
    _m("nothing is put back", "history", "    return PutBack(", "    return Intact() or PutBack(", "forgetful", 1000),
    _m(
        "a RESUME begins no epoch",
        "ledger",
        "head.epoch + isinstance(body, Resume)",
        "head.epoch",
        "forgetful",
    ),
    _m(
        "an offer that a lost history has used is kept",
        "node",
        "replace(state, ledger=ledger, offer=None, spent=True)",
        "replace(state, ledger=ledger)",
        "forgetful",
        3000,
        first=2180,
    ),
    _m(
        "a round that was stopped is started again",
        "node",
        " or current.offer.id in state.ran:",
        ":",
        "forgetful",
        3000,
        first=140,
    ),
    _m(
        "rows of an older epoch are taken at their word",
        "chair",
        "current = row.within(ledger.head.epoch)",
        "current = row",
        "forgetful",
        1000,
    ),
    # Peers that do not reach each other
    _m(
        "nobody probes",
        "elastic_core.agent.supervisor",
        "        if failed is not None:",
        "        if False:",
        "lonely",
    ),
    _m("nobody is left out", "complaints", "return worst[-1] if worst[0] else None", "return None", "lonely"),
    _m(
        "the one with fewest broken connections is left out",
        "complaints",
        "    worst = max(",
        "    worst = min(",
        "lonely",
        1000,
    ),
    _m(
        "a node that is not reached ends the job",
        "decide",
        "out = [] if self.unreachable is None else [self.unreachable]",
        "out: list[str] = []",
        "lonely",
    ),
    _m(
        "who was left out is back at once",
        "books",
        "return tuple(sorted({*before, *hosts}))",
        "return before",
        "lonely",
        1000,
    ),
    _m(
        "complaints are never forgotten",
        "complaints",
        "return row.probed == old.number - 1 and not stale",
        "return row.probed == old.number - 1",
        "lonely",
        3000,
        first=900,
    ),
    _m(
        "a report counts before the store has it",
        "writer",
        "            self._row, self._revision = row, self._revision + 1\n",
        "            self._row, self._revision = row, self._revision + 1\n"
        "            if row.incident is not None and row.incident != self._reported:\n"
        "                if self._calls.is_owed(row.incident):\n                    self._calls.reported()\n",
        "lonely",
        3000,
        first=3860,
    ),
    # Tombstones
    _m(
        "what the newest entry stands on shrinks",
        "tombstones",
        "    needed = [index for index in (at.round, at.latest, at.halt, at.plan) if index]",
        "    needed: list[int] = []",
        "agents",
        first=900,
    ),
    _m(
        "entries shrink before all have read them", "tombstones", ", *needed, *passed])", ", *needed])", "network", 1000
    ),
)
