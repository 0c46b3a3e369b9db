"""One-line descriptions of ledger entries, for timelines."""

from __future__ import annotations

from elastic_core.protocol.entries import (
    Answers,
    Closed,
    Drain,
    Entry,
    Halt,
    Leader,
    Open,
    Over,
    Plan,
    Question,
    Resume,
    Round,
    StopAt,
)


def describe(entry: Entry) -> str:
    """Return a one-line description of an entry."""
    match entry.body:
        case Open(scheduler_uid=uid):
            return f"OPEN of run {entry.run}, scheduler's uid {uid}"
        case Leader(why=why):
            return f"LEADER {entry.leader}: {why}"
        case Round() as body:
            who = f"as in {body.same_as}" if body.same_as else ", ".join(member.node_id for member in body.members)
            return f"ROUND {body.number} of {who}; restarts {entry.counters.restarts}: {body.why}"
        case Halt() as body:
            return f"HALT {body.round}, {body.reason.value}: {body.why}"
        case Plan() as body:
            return f"PLAN {body.round}, {body.reason.value}, within {body.deadline:g} s: {body.why}"
        case StopAt() as body:
            why = "somebody leaves" if body.leaving else "all stay"
            return f"STOP_AT {body.step} of round {body.round}, {why}"
        case Over() as body:
            return f"OVER {body.round}; left: {', '.join(body.left) or 'nobody'}"
        case Drain() as body:
            return f"DRAIN {', '.join(body.nodes)}: {body.why}"
        case Question() as body:
            return f"QUESTION {body.name} of {body.asked_by}"
        case Answers() as body:
            return f"ANSWERS to {body.question}: {body.report}"
        case Closed() as body:
            return f"CLOSED with {body.exit_code}: {body.why}"
        case Resume() as body:
            what = "halted" if body.halt is not None else "live"
            return f"RESUME of run {entry.run} with round {body.round.number}, {what}, epoch {entry.epoch}: {body.why}"
    raise AssertionError(entry)


def kind_of(why: str) -> str:
    """Return the kind of a LEADER entry, by its reason."""
    for sign, kind in (
        ("leaves", "by the one that leaves"),
        ("no heartbeat", "after silence"),
        ("answer", "unanswered"),
    ):
        if sign in why:
            return kind
    return "of an abandoned run"
