"""Questions to all nodes of a live round (rule L14): who is asked what, and when the answers are summed up.

A node that asks has the question in its row. The leader takes it in a QUESTION, each member answers in its row, and
the leader enters what the plugins make of the answers as ANSWERS, which every node reads. No decision depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Answers, Question, Round, place
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader_entries import Append, SumUp
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.limits import MAX_ASKS, MAX_QUESTION_NAMES
from elastic_core.protocol.roster import Ask, NodeRow, Phase
from elastic_core.questions import NAME_MAX_CHARACTERS, VALUE_MAX_BYTES, AskedQuestion, NodeAnswer

ANSWER_WAIT_SECONDS = 5.0  # how long the leader waits for the answers of members that live
QUESTION_PAUSE_SECONDS = 0.5  # the time between two questions is at least this long
SUMMARY_LOOK_SECONDS = 0.1  # the interval at which it looks whether the plugins have summed them up


def ask_or_report(view: LeaderView, current: Round, finished: Collection[str]) -> Append | SumUp | float | None:
    """Return what is due in a live round: a QUESTION, a summary or ANSWERS; else when it may be, and None for never."""
    questions = view.ledger.questions
    if (asked := questions.open) is None:
        return _ask(view, current)
    due = questions.read_at + ANSWER_WAIT_SECONDS
    if view.now < due and _unanswered(view, current, finished):
        return due
    if view.report is None:
        return SumUp(*_collect(view, current, asked))
    if not view.report:
        return view.now + SUMMARY_LOOK_SECONDS
    return Append(Answers(round=current.number, name=asked.name, question=questions.index, report=view.report))


def describe_others(view: LeaderView, old: Round, first: Incident) -> str:
    """Return what monitors said of workers before these were stopped, where ``first`` follows from a loss; '' for none.

    They were asked after the HALT.
    """
    if not first.follows_peer:
        return ""
    found = [_answer(view, node.row, view.ledger.head.anchors.halt) for node in view.node_views(old)]
    return "; ".join(dict.fromkeys(filter(None, found)))


def _ask(view: LeaderView, current: Round) -> Append | float | None:
    """Return a QUESTION if a member or a command asks, or when it may be asked; several that ask the same are one.

    Of several names the one that was answered the longest ago comes first, so that none is kept waiting for ever.
    """
    ledger, number = view.ledger, current.number
    if view.members_behind(current, ledger.head.anchors.latest):
        return None  # a member has not begun; its row will call `decide` again
    running = (Phase.RUNNING, number)
    members = [node for node in view.node_views(current) if (node.row.phase, node.row.round) == running]
    requests = [node for node in view.watch.nodes.values() if node.row.is_request]
    open_asks = [*_open_asks(view, members, MAX_QUESTION_NAMES), *_open_asks(view, requests, MAX_QUESTION_NAMES // 2)]
    if not open_asks:
        return None
    if ledger.questions.index and view.now < (due := ledger.questions.read_at + QUESTION_PAUSE_SECONDS):
        return due
    _, first = min(open_asks, key=lambda found: ledger.questions.answered_at(found[1].name))
    by = view.describe_nodes(node.node_id for node, ask in open_asks if ask.name == first.name)
    return Append(Question(round=number, name=first.name, value=first.value, asked_by=by))


def _open_asks(view: LeaderView, nodes: Collection[NodeView], most: int) -> list[tuple[NodeView, Ask]]:
    """Return the open questions in the rows of nodes; only such as had an answer once the round has ``most`` names."""
    found = [(node, ask) for node in nodes for ask in node.row.asks[:MAX_ASKS] if _is_open(view, ask)]
    is_full = len(view.ledger.questions.reports) >= most
    return [(node, ask) for node, ask in found if not is_full or ask.name in view.ledger.questions.reports]


def _is_open(view: LeaderView, ask: Ask) -> bool:
    """Return True if no answer has come that is newer than what the node that asks has read."""
    fits = 0 < len(ask.name) <= NAME_MAX_CHARACTERS and len(ask.value) <= VALUE_MAX_BYTES
    return fits and view.ledger.questions.answered_at(ask.name) <= ask.known <= view.ledger.head.index


def _answer(view: LeaderView, row: NodeRow, question: int) -> str | None:
    """Return a row's answer to the question at an index; None if it has none."""
    found = row.answer
    return found.text if found is not None and row.epoch == view.ledger.head.epoch and found.to == question else None


def _unanswered(view: LeaderView, current: Round, finished: Collection[str]) -> list[str]:
    """Return the members that have yet to answer, without those that have finished, are lost or cannot be asked."""
    index = view.ledger.questions.index
    nodes = {node.node_id: node for node in view.node_views(current)}
    answered = {i for i, one in nodes.items() if not one.row.info.host_id or _answer(view, one.row, index) is not None}
    return [i for i in current.group_ranks if i not in answered and i not in finished and not view.is_lost(i)]


def _collect(view: LeaderView, current: Round, asked: Question) -> tuple[AskedQuestion, tuple[NodeAnswer, ...]]:
    """Return the question and the answers of the members in rank order, without those that cannot be asked."""
    found = []
    for member in current.members:
        node, mine = view.get(member.node_id), place(current.members, member.node_id)
        if node is not None and not node.row.info.host_id:
            continue
        text = None if node is None else _answer(view, node.row, view.ledger.questions.index)
        finished = view.has_finished(current, member.node_id)
        answer = NodeAnswer(
            node=view.describe_nodes([member.node_id]),
            ranks=range(mine.first_rank, mine.first_rank + member.local_world_size),
            value=None if text is None or finished else decode(text),
            finished=finished,
            silent=text is None and not finished,
        )
        found.append(answer)
    value = decode(asked.value)
    return AskedQuestion(round=asked.round, name=asked.name, value=value, asked_by=asked.asked_by), tuple(found)


def decode(text: str) -> Any:
    """Return the value of JSON from a store; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
