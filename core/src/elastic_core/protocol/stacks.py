"""Where the ranks of a round are: the question to all nodes, their answers, and the report (rule L14).

The leader asks when a node sees no progress, or when ``elastic stacks`` has entered a request. Each member answers in
its row; the leader sums the answers up in a second STACKS, which every node prints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Round, Stacks
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader_entries import Append
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_REQUESTS, REPORT_BYTES, UNREAD_ID_LENGTH, clip
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import LocalStacks, NodeRow, Phase

ANSWER_WAIT_SECONDS = 5.0  # how long the leader waits for the answers of members that live
BRIEF, FULL = "brief", "full"  # what a request wants: places, or the whole stacks as well
FINISHED = "finished"  # the place of a rank whose program has ended
_ENDED = FINISHED, "the process is gone"
NO_STACK = "no Python stack"  # the beginning of the place of a process that does not answer
_COLLECTIVE = "(torch/distributed/"  # in the place of a rank that waits for its peers
_DEVICE_WAITS = "(torch/autograd/", "(torch/cuda/", "(torch/_tensor.py"  # where NCCL's collectives are often waited for
_STANDS_OUT = f"{NO_STACK}: stopped", "the process"  # the beginning of the place of a process that cannot go on
MOST_DOUBLINGS = 3  # of the time between two questions
LOOKS = 3  # in a row that find a hang unchanged, before a rank is ended
LOOKS_PER_WINDOW = 4  # while that is found out


def ask_or_report(view: LeaderView, current: Round, finished: Collection[str]) -> Append | float | None:
    """Return the STACKS that is due in a live round; else when one may be due, and None if none is expected."""
    asked, asked_at = view.ledger.stacks, view.ledger.stacks_at
    if asked is not None and not asked.answers:
        due = asked_at + ANSWER_WAIT_SECONDS
        if view.now < due and _unanswered(view, current, finished):
            return due
        return Append(_report(view, current, asked), view.ledger.counters)
    if view.members_behind(current, view.ledger.head.anchors.latest):
        return None  # a member has not begun; its row will call `decide` again
    requests = _requests(view)
    hung = [node for node in view.node_views(current) if node.row.hung and _has_workers(node, current)]
    window = max((node.row.hung for node in hung), default=0.0)
    ask_at = _may_ask_at(view.ledger, window) if hung else None
    suspected = ask_at is not None and view.now >= ask_at
    if not requests and not suspected:
        return ask_at
    last = view.ledger.suspected
    body = Stacks(
        round=current.number,
        why=_why(view, hung if suspected else [], requests),
        requests=tuple(node.node_id for node in requests),
        full=any(node.row.wants_stacks == FULL for node in requests),
        window=window if suspected else 0.0,
        nth=(0 if last is None else last.nth) + 1 if suspected else 0,
    )
    return Append(body, view.ledger.counters)


def summarize(places: Mapping[int, str], *, requested: bool = False) -> list[str]:
    """Return one line for each place, from where each rank is. The rank that the others wait for comes first.

    That is one outside of torch's collectives; among several places, the one with the fewest ranks. Where that leaves
    several ranks, the first line says so, unless the places were only ``requested``: the job need not hang.
    """
    order = _by_suspicion(places)
    lines = [_describe(where, ranks) for where, ranks in order]
    if len(order) < 2 or _suspicion(order[0])[:-1] != _suspicion(order[1])[:-1]:
        return lines
    if waits_for_peers(order[0][0]):
        return ["the ranks wait in different collectives:", *lines]
    return lines if requested else ["it cannot be told which rank the others wait for:", *lines]


def waits_for_peers(where: str) -> bool:
    """Whether a rank at this place waits for others, or for a device on which collectives run."""
    return any(place in where for place in (_COLLECTIVE, *_DEVICE_WAITS))


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return sorted ranks as ranges, ``0-2, 4-7``."""
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], rank
        else:
            spans.append((rank, rank))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def is_still(answers: Iterable[LocalStacks]) -> bool:
    """Whether there is an answer, and every stack stayed as it was."""
    every = list(answers)
    return bool(every) and not any(answer.moved for answer in every)


def is_hang(answers: Sequence[LocalStacks], before: Stacks | None, places: Mapping[int, str]) -> bool:
    """Whether nothing moves; ``before`` is the last report of a suspicion in this round, ``places`` are all ranks'.

    A rank that uses a CPU, or moves data, may be working in one line for long. So it counts as hanging only if it was
    found in the same state a window ago: at the same step, or at the same place while all others wait for it.
    """
    if not is_still(answers) or not any(answer.busy for answer in answers):
        return is_still(answers)
    if before is None or not before.still:
        return False
    if (step := newest_step(answers)) is not None:
        return before.step == step
    others = sum(not waits_for_peers(where) for where in places.values())
    return others == 1 < len(places) and before.report == _fit_lines(summarize(places))


def is_news(found: Stacks, last: Stacks | None) -> bool:
    """Return whether people have not read this report of a hang yet; ``last`` is the newest one of the same round."""
    return found.hang and (last is None or (last.report, last.step) != (found.report, found.step))


def newest_step(answers: Iterable[LocalStacks]) -> int | None:
    """Return the newest step that any rank is known to have reached; None if none is known."""
    return max((answer.step for answer in answers if answer.step is not None), default=None)


def report_alone(answer: LocalStacks, number: int) -> Stacks:
    """Return the report of a host whose ranks are all that can be asked."""
    places = {rank: where for where, ranks in answer.places.items() for rank in ranks}
    asked = Stacks(round=number, why="requested by elastic stacks")
    return _judge(asked, [answer], places, {}, None, complete=bool(places))


def next_question_at(last: Stacks | None, at: float, window: float) -> float:
    """Return when ranks may be asked again after the report ``last`` at an instant.

    Until a hang is found unchanged often enough for a rank to be ended, that is soon; else each time twice as late.
    """
    if last is None:
        return at
    soon = last.hang and last.looks < LOOKS
    return at + max(window, last.window) * (1 / LOOKS_PER_WINDOW if soon else 2.0 ** min(last.nth - 1, MOST_DOUBLINGS))


def describe_others(view: LeaderView, old: Round, first: Incident) -> str:
    """Return where the ranks were that may be what ``first``, a consequence, waited for; '' for none, or otherwise.

    They were asked before they were stopped, after the HALT. A rank in a collective waited as well.
    """
    halt, epoch = view.ledger.head.anchors.halt, view.ledger.head.epoch
    rows = [node.row for node in view.node_views(old)] if first.follows_peer else []
    current = [row.stacks for row in rows if row.epoch == epoch and row.stacks is not None]
    return describe_absent(found for found in current if found.answers == halt)


def describe_absent(answers: Iterable[LocalStacks]) -> str:
    """Return where the ranks are that wait for no other, in one line; '' for none."""
    places = {rank: where for found in answers for where, ranks in found.places.items() for rank in ranks}
    places = {rank: where for rank, where in places.items() if not waits_for_peers(where) and where not in _ENDED}
    return "; ".join(_describe(where, ranks) for where, ranks in _by_suspicion(places))


def with_report(incident: Incident, found: Stacks | None) -> Incident:
    """Return the incident with the newest report of a hang, if it is of its round."""
    if found is None or not found.hang or found.round != incident.round or found.report in incident.detail:
        return incident
    return replace(incident, detail="\n".join(filter(None, [incident.detail.rstrip(), describe_hang(found)])))


def describe_hang(report: Stacks) -> str:
    """Return the message of a report for people, several lines."""
    since = "" if report.step is None else f", since step {report.step}"
    what = f"no progress for {report.window:g} s{since}" if report.hang else f"where the ranks are{since}"
    return "\n".join([f"round {report.round}: {what}:", *(f"  {line}" for line in report.report.splitlines())])


def _suspicion(item: tuple[str, list[int]]) -> tuple[bool, bool, bool, int, bool, int]:
    where, ranks = item
    waits = any(place in where for place in _DEVICE_WAITS)
    return where == FINISHED, _COLLECTIVE in where, waits, len(ranks), not where.startswith(_STANDS_OUT), ranks[0]


def _describe(where: str, ranks: Sequence[int]) -> str:
    verb, who = ("is", f"rank {ranks[0]}") if len(ranks) == 1 else ("are", f"ranks {describe_ranks(ranks)}")
    if where == FINISHED:
        return f"{who} {'has' if len(ranks) == 1 else 'have'} finished"
    return f"{who}: {where}" if where.startswith((NO_STACK, "the process")) else f"{who} {verb} {where}"


def _has_workers(node: NodeView, current: Round) -> bool:
    return node.row.phase is Phase.RUNNING and node.row.round == current.number


def _may_ask_at(ledger: Ledger, window: float) -> float:
    """Return when members may be asked again after a suspicion: after the window, each time twice as late."""
    last = ledger.suspected
    return next_question_at(last, ledger.round_at if last is None else ledger.suspected_at, window)


def _requests(view: LeaderView) -> list[NodeView]:
    """Return the requests that no report has served yet."""
    nodes = view.watch.nodes.values()
    wanted = [node for node in nodes if node.row.wants_stacks and node.node_id not in view.ledger.served]
    return [node for node in wanted if len(node.node_id) <= UNREAD_ID_LENGTH][:MAX_REQUESTS]


def _why(view: LeaderView, hung: Sequence[NodeView], requests: Sequence[NodeView]) -> str:
    if not hung:
        return f"requested by elastic stacks on {requests[0].row.info.host}"
    return f"no progress for {hung[0].row.hung:g} s on {view.describe_nodes(node.node_id for node in hung)}"


def _answer(view: LeaderView, row: NodeRow) -> LocalStacks | None:
    """Return a row's answer to the open question; None if it has none."""
    found, ledger = row.stacks, view.ledger
    answered = found is not None and row.epoch == ledger.head.epoch and found.answers == ledger.stacks_index
    return found if answered else None


def _unanswered(view: LeaderView, current: Round, finished: Collection[str]) -> list[str]:
    """Return the members that have yet to answer, without those that have finished or are lost."""
    nodes = view.node_views(current)
    answered = {node.node_id for node in nodes if not node.row.info.host_id or _answer(view, node.row) is not None}
    return [i for i in current.group_ranks if i not in answered and i not in finished and not view.is_lost(i)]


def _report(view: LeaderView, current: Round, asked: Stacks) -> Stacks:
    places: dict[int, str] = {}
    behind: dict[int, int] = {}
    answers, silent = [], []
    for member in current.members:
        node, mine = view.get(member.node_id), place(current.members, member.node_id)
        ranks = range(mine.first_rank, mine.first_rank + member.local_world_size)
        if view.has_finished(current, member.node_id):
            places |= dict.fromkeys(ranks, FINISHED)
        elif node is not None and not node.row.info.host_id:
            continue
        elif node is None or (answer := _answer(view, node.row)) is None:
            silent.append((member.node_id, ranks))
        else:
            answers.append(answer)
            behind |= _behind(answer, ranks)
            places |= {rank: where for where, found in answer.places.items() for rank in found if rank in ranks}
    late = [f"{view.describe_nodes([i])} (ranks {describe_ranks(ranks)}) has not answered" for i, ranks in silent]
    complete = not silent and all(answer.places for answer in answers)  # a node that is late may be the one that works
    found = _judge(asked, answers, places, behind, view.ledger.suspected, late, complete=complete)
    return replace(found, answers=view.ledger.stacks_index)


def _judge(
    asked: Stacks,
    answers: Sequence[LocalStacks],
    places: Mapping[int, str],
    behind: Mapping[int, int],
    last: Stacks | None,
    late: Sequence[str] = (),
    *,
    complete: bool,
) -> Stacks:
    """Return what a question has found.

    Args:
        behind: The last steps of ranks that have shown nothing for a window, by rank.
        last: The report of the suspicion before in this round; None for none.
        late: Lines for nodes that have not answered.
        complete: Whether the places of all ranks are known.
    """
    step, still = newest_step(answers), is_still(answers)
    behind = {rank: at for rank, at in behind.items() if step is not None and at < step and asked.window and not still}
    if behind:  # these hang while the others go on to newer steps
        step, suspect = min((at, rank) for rank, at in behind.items())
        text, hang = _fit_lines(_describe_behind(behind, places)), True
    else:
        text, suspect = _fit_lines([*summarize(places, requested=not asked.window), *late]), culprit(answers, places)
        hang = asked.window > 0 and complete and is_hang(answers, last, places)
    as_before = last is not None and last.report == text and (last.culprit < 0) == (suspect < 0)
    advanced = last is not None and last.step is not None and step is not None and step > last.step
    return replace(
        asked,
        nth=1 if advanced and asked.nth else asked.nth,
        report=text,
        still=still,
        looks=(1 + (last.looks if last is not None and as_before else 0)) if hang else 0,
        hang=hang,
        culprit=suspect,
        step=step,
    )


def _behind(answer: LocalStacks, ranks: Iterable[int]) -> dict[int, int]:
    return {rank: answer.behind[str(rank)] for rank in ranks if str(rank) in answer.behind}


def _describe_behind(ranks: Collection[int], places: Mapping[int, str]) -> list[str]:
    order = _by_suspicion({rank: places.get(rank, "among the places left out") for rank in ranks})
    return [f"{_describe(where, same)}, while other ranks go on to newer steps" for where, same in order]


def culprit(answers: Iterable[LocalStacks], places: Mapping[int, str]) -> int:
    """Return the rank to end after a hang: the first one at the place that comes first in :func:`summarize`.

    -1 for none: a rank that may be working is reported, and not ended.
    """
    order = _by_suspicion(places)
    return -1 if not order or any(answer.busy for answer in answers) else order[0][1][0]


def _by_suspicion(places: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    ranks_at: dict[str, list[int]] = {}
    for rank, where in sorted(places.items()):
        ranks_at.setdefault(where, []).append(rank)
    return sorted(ranks_at.items(), key=_suspicion)


def _fit_lines(lines: Sequence[str]) -> str:
    """Return as many of the lines as fit into a report, and how many others there are."""
    for count in range(len(lines), 0, -1):
        more = [f"and {len(lines) - count} more places"] if count < len(lines) else []
        text = "\n".join([*lines[:count], *more])
        if clip(text, REPORT_BYTES) == text:
            return text
    return clip("\n".join(lines), REPORT_BYTES)
