"""A history of calls to one job's store with their answers, checked against the contract of a backend.

The calls are divided by object: the ledger is one, and so is each row, and each row's heartbeat. A call that reads
several, such as a listing of the roster, counts as a read of each. What is required of the objects is in
:class:`~elastic_core.rendezvous.backend.RendezvousBackend`, under "Several connections".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from elastic_core.rendezvous import Cursor, HeartbeatReply, Link, RosterRow
from elastic_testing.linearizability import IMPOSSIBLE, Apply, Contradiction, State, Step, contradiction

Chain: TypeAlias = tuple[tuple[str, bytes], ...]  # a ledger: the id and the data of each entry
Row: TypeAlias = tuple[int, bytes] | None  # a row's revision and value; None when there is no row


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a backend's method."""

    process: str  # who made it
    method: str  # the method's name
    arguments: tuple[Any, ...]  # what it was given
    result: Any  # what it returned; None where ``returned`` is None
    invoked: int  # when it began: CLOCK_MONOTONIC, in ns, which all processes of a host share
    returned: int | None
    """When it returned; None if it raised RendezvousConnectionError, so that its outcome is unknown."""

    def __str__(self) -> str:
        arguments = ", ".join(map(repr, self.arguments))
        outcome = "is not known" if self.returned is None else f"is {self.result!r}"
        until = "" if self.returned is None else f" to {self.returned / 1e9:.6f}"
        return f"{self.process}, from {self.invoked / 1e9:.6f}{until}: {self.method}({arguments}) {outcome}"


def check_history(calls: Sequence[Call]) -> None:
    """Fail unless the contract allows this history of one job's store, which was empty at first.

    An append, amendment or heartbeat of unknown outcome counts only if what it wrote was read. So a history should end
    with a read of every entry.

    Raises:
        AssertionError: No order explains it. The message names the call, and what was possible when it returned.
    """
    calls = sorted(calls, key=lambda call: call.invoked)
    for name, initial, steps in objects(calls):
        found = contradiction(steps, initial)
        assert found is None, _explained(name, steps, found)
    check_serials(calls)
    check_versions(calls)


def objects(calls: Sequence[Call]) -> Iterator[tuple[str, State, list[Step]]]:
    """Each object's name, its state at first, and the calls on it, which are given in the order in which they began."""
    yield "the ledger", (), list(_ledger_steps(calls))
    entered = [call.arguments[0] for call in calls if call.method == "enter"]
    listed = [row.node_id for call in calls for row in _listed(call)]
    for node_id in dict.fromkeys([*entered, *listed]):
        yield f"the row of {node_id}", None, list(_row_steps(calls, node_id))
        yield f"the heartbeat of {node_id}", None, list(_heartbeat_steps(calls, node_id))


# The ledger: entries in a chain --------------------------------------------------------------------------------------


def _ledger_steps(calls: Sequence[Call]) -> Iterator[Step]:
    seen = {call.result for call in calls if call.method == "read"}
    has_read: set[str] = set()
    for call in calls:
        known = call.process in has_read
        match call:
            case Call(method="append", arguments=(prev, entry, data), returned=returned):
                if returned is not None or data in seen:
                    yield _step(call, partial(_append, prev, entry, data, call.result))
            case Call(returned=None):
                continue
            case Call(method="read", arguments=(index,)):
                yield _step(call, partial(_read, index, call.result))
            case Call(method="heartbeat"):
                yield _step(call, partial(_head if known else _head_at_least, call.result.head))
            case Call(method="wait", arguments=(cursor, roster, *_)):
                same = call.result == cursor if roster else call.result.head == cursor.head
                yield _step(call, partial(_head if same else _head_at_least, call.result.head))
        if _shows_an_entry(call.result):
            has_read.add(call.process)


def _append(prev: Link, entry: Link, data: bytes, succeeded: bool | None, chain: Chain) -> State:
    there = chain[entry.index - 1 : entry.index]
    if there:
        return chain if succeeded is (there == ((entry.id, data),)) else IMPOSSIBLE
    can_be_written = not prev.index or [entry_id for entry_id, _ in chain[prev.index - 1 : prev.index]] == [prev.id]
    if can_be_written:
        return IMPOSSIBLE if succeeded is False else (*chain, (entry.id, data))
    return chain if succeeded is False else IMPOSSIBLE


def _read(index: int, result: bytes | None, chain: Chain) -> State:
    there = chain[index - 1][1] if 0 < index <= len(chain) else None
    return chain if there == result else IMPOSSIBLE


def _head(head: int, chain: Chain) -> State:
    return chain if len(chain) == head else IMPOSSIBLE


def _head_at_least(head: int, chain: Chain) -> State:
    return chain if len(chain) >= head else IMPOSSIBLE


def _shows_an_entry(result: object) -> bool:
    match result:
        case HeartbeatReply(head=head) | Cursor(head=head):
            return head > 0
        case bool():  # an append's
            return result
        case _:
            return isinstance(result, bytes)


# A row: a register with revisions ------------------------------------------------------------------------------------


def _row_steps(calls: Sequence[Call], node_id: str) -> Iterator[Step]:
    seen = {row.revision for call in calls for row in _listed(call) if row.node_id == node_id}
    seen |= {call.result.revision for call in _replies(calls) if call.arguments[0] == node_id}
    for call in calls:
        match call:
            case Call(method="enter", arguments=(name, value)) if name == node_id:
                yield _step(call, partial(_enter, (0, value)))
            case Call(method="amend", arguments=(name, revision, value), returned=returned) if name == node_id:
                if returned is not None or revision in seen:
                    yield _step(call, partial(_amend, revision, value))
            case Call(method="remove", arguments=(name,)) if name == node_id:
                yield _step(call, _remove)
            case Call(returned=None):
                continue
            case Call(method="heartbeat", arguments=(name, *_)) if name == node_id:
                yield _step(call, partial(_is_at, call.result.revision))
            case Call(method="roster", arguments=(ids,)) if ids is None or node_id in ids:
                rows = [(row.revision, row.value) for row in call.result if row.node_id == node_id]
                yield _step(call, partial(_is, rows[0] if rows else None))


def _enter(first: State, state: State) -> State:
    return first if state is None else state


def _amend(revision: int, value: bytes, row: Row) -> State:
    return row if row is None or row[0] >= revision else (revision, value)


def _remove(state: State) -> State:
    return None


def _is_at(revision: int | None, row: Row) -> State:
    return row if revision == (None if row is None else row[0]) else IMPOSSIBLE


def _is(seen: State, state: State) -> State:
    return state if seen == state else IMPOSSIBLE


# A heartbeat: a register ---------------------------------------------------------------------------------------------


def _heartbeat_steps(calls: Sequence[Call], node_id: str) -> Iterator[Step]:
    seen = {row.heartbeat for call in calls for row in _listed(call) if row.node_id == node_id}
    seen |= {call.result.watched for call in _replies(calls) if call.arguments[2] == node_id}
    for call in calls:
        match call:
            case Call(method="enter", arguments=(name, _)) if name == node_id:
                yield _step(call, partial(_enter, 0))
            case Call(method="remove", arguments=(name,)) if name == node_id:
                yield _step(call, _remove)
            case Call(method="heartbeat", arguments=(name, count, _), returned=returned) if name == node_id:
                if returned is not None or count in seen:
                    yield _step(call, partial(_set, count))
            case Call(returned=None):
                continue
            case Call(method="heartbeat", arguments=(_, _, watched)) if watched == node_id:
                yield _step(call, partial(_is, call.result.watched))
            case Call(method="roster", arguments=(ids,)) if ids is None or node_id in ids:
                heartbeats = [row.heartbeat for row in call.result if row.node_id == node_id]
                yield _step(call, partial(_is, heartbeats[0] if heartbeats else None))


def _set(count: int, state: State) -> State:
    return None if state is None else count


# Serials and versions ------------------------------------------------------------------------------------------------


def check_serials(calls: Sequence[Call]) -> None:
    """Fail unless each row has one serial of its own, who enters later has a greater one, and lists are in order."""
    serials: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        rows = _listed(call)
        broken = [row for row in rows if row.broken]
        assert not broken, f"a row cannot be read: {broken[0]}"
        assert [row.serial for row in rows] == sorted({row.serial for row in rows}), f"rows are not in order: {call}"
        for row in rows:
            serials[row.node_id].add(row.serial)
    entered = [call for call in calls if call.method == "enter" and call.returned is not None]
    for call in entered:
        serials[call.arguments[0]].add(call.result)
    several = {node_id: found for node_id, found in serials.items() if len(found) > 1}
    assert not several, f"rows have several serials: {several}"
    owners = {serial for found in serials.values() for serial in found}
    assert len(owners) == len(serials), f"a serial was given to several rows: {dict(serials)}"
    begun = {call.arguments[0]: call for call in reversed(calls) if call.method == "enter"}
    for before in entered:
        for after in begun.values():
            if before.returned is not None and before.returned < after.invoked and serials[after.arguments[0]]:
                assert before.result < min(serials[after.arguments[0]]), f"serials do not grow: {before}; {after}"


def check_versions(calls: Sequence[Call]) -> None:
    """Fail unless a waiter with a version of the roster gets each change that was made after that was returned.

    A change is an ``enter``, ``amend`` or ``remove`` that has returned, on a row of which none is repeated.
    """
    returned: dict[int, int] = {}
    waits = [call for call in calls if call.method == "wait" and call.returned is not None and call.arguments[1]]
    for call in waits:
        assert call.returned is not None
        returned[call.result.roster] = min(call.returned, returned.get(call.result.roster, call.returned))
    changes = [call for call in calls if call.method in ("enter", "amend", "remove")]
    repeated = {call.arguments[0] for call in changes if call.returned is None}
    for wait in waits:
        if wait.result != wait.arguments[0] or wait.result.roster not in returned:
            continue
        for change in changes:
            if change.returned is None or change.arguments[0] in repeated:
                continue
            missed = returned[wait.result.roster] < change.invoked and change.returned < wait.invoked
            assert not missed, f"a wait missed a change of the roster: {wait}; {change}"


# What they have in common --------------------------------------------------------------------------------------------


def _step(call: Call, apply: Apply) -> Step:
    return Step(call.invoked, call.returned, apply, str(call))


def _listed(call: Call) -> list[RosterRow]:
    return call.result if call.method == "roster" and call.returned is not None else []


def _replies(calls: Sequence[Call]) -> Iterator[Call]:
    return (call for call in calls if call.method == "heartbeat" and call.returned is not None)


def _explained(name: str, steps: Sequence[Step], found: Contradiction) -> str:
    before = [step for step in steps if step.returned is not None and step.returned < found.step.invoked]
    before.sort(key=lambda step: step.returned or 0)
    return "\n".join(
        [
            f"no order of the calls on {name} explains the result of one:",
            f"  {found.step.text}",
            f"when it returned, {name} can only have been:",
            *(f"  {state if not isinstance(state, tuple) else state[-3:]!r}" for state in found.states),
            "calls that may have taken effect by then, or not:",
            *(f"  {step.text}" for step in found.concurrent),
            "the last calls before it:",
            *(f"  {step.text}" for step in before[-8:]),
        ]
    )
