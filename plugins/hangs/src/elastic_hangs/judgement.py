"""The judgement on a hang, from where all ranks of a round are: what people read, and which rank the others wait for.

All of it is pure. The leader's node makes the report of all answers (``sum_up``), every node follows the reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from elastic_core.protocol import clip
from elastic_core.questions import AskedQuestion, NodeAnswer

HANG, STACKS, FULL_STACKS = "hang", "stacks", "full stacks"  # the names of the questions
REPORT_BYTES = 2048  # size of a report's text
MAX_PLACES = 40  # most places in the answer of a node
PLACE_BYTES = 200  # size of each of them
FULL_STACKS_BYTES = 24_576  # size of the whole stacks in an answer, of all local ranks together
FINISHED = "finished"  # the place of a rank whose program has ended
_ENDED = FINISHED, "the process is gone"
NO_STACK = "no Python stack"  # the beginning of the place of a process that does not answer
_COLLECTIVE = "(torch/distributed/"  # in the place of a rank that waits for its peers
_DEVICE_WAITS = "(torch/autograd/", "(torch/cuda/", "(torch/_tensor.py"  # where NCCL's collectives are often waited for
_STANDS_OUT = f"{NO_STACK}: stopped", "the process"  # the beginning of the place of a process that cannot go on
MOST_DOUBLINGS = 3  # of the time between two questions
LOOKS = 3  # in a row that find a hang unchanged, before a rank is ended
LOOKS_PER_WINDOW = 4  # while that is found out


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStacks:
    """The answer of one node: the places of its ranks."""

    places: Mapping[str, tuple[int, ...]]  # the ranks at each place, at most MAX_PLACES
    moved: bool = False  # whether a stack changed within a second, or lately a rank came to a new step, or one printed
    busy: bool = False  # whether a rank that waits for no other may have worked since its silence began
    step: int | None = None  # the newest step that a rank here is known to have reached
    behind: Mapping[str, int] = field(default_factory=dict)
    """The last step of each rank that has shown nothing for a window and waits for no other rank, by rank."""
    texts: Mapping[str, str] = field(default_factory=dict)  # the whole stacks by rank, if they are wanted

    def by_rank(self) -> dict[int, str]:
        """Return the place of each rank."""
        return {rank: where for where, ranks in self.places.items() for rank in ranks}

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON value."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> LocalStacks:
        """Return the answer of another node; one without places where no monitor of this plugin has answered."""
        try:
            places = {where: tuple(ranks) for where, ranks in value["places"].items()}
            return cls(**{**value, "places": places})
        except (AttributeError, KeyError, TypeError):  # None, or what another plugin answers to that name
            return cls(places={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report on the answers of all nodes."""

    round: int
    why: str
    ranks: int = 0  # how many ranks the round has, as far as nodes could be asked
    window: float = 0.0  # seconds without progress that a node has seen; 0 if nothing is suspected
    nth: int = 0  # how often a suspicion has had nodes asked in this round; 0 if nothing is suspected
    report: str = ""  # where the ranks are: a line for each place, at most REPORT_BYTES
    still: bool = False  # whether no stack changed within a second, on any node that has answered
    looks: int = 0
    """The consecutive looks that found this hang: all ranks at the same places, the culprit busy in none or in all."""
    hang: bool = False  # whether the job hangs
    culprit: int = 0  # the rank that ``--hang_timeout`` ends; -1 for none
    step: int | None = None  # the newest step that any rank is known to have reached


def sum_up(question: AskedQuestion, answers: Sequence[NodeAnswer], before: Report | None) -> Report:
    """Return the report of the answers; ``before`` is the former one of that name in the round."""
    ranks = sum(len(one.ranks) for one in answers)
    draft = Report(round=question.round, why=f"requested by elastic stacks on {question.asked_by}", ranks=ranks)
    if question.name == HANG:
        window, nth = float(question.value["window"]), 1 if before is None else before.nth + 1
        draft = replace(draft, why=f"no progress for {window:g} s on {question.asked_by}", window=window, nth=nth)
    places: dict[int, str] = {}
    behind: dict[int, int] = {}
    found, late = [], []
    for one in answers:
        if one.finished:
            places |= dict.fromkeys(one.ranks, FINISHED)
        elif one.silent:
            late.append(f"{one.node} (ranks {describe_ranks(one.ranks)}) has not answered")
        else:
            answer = LocalStacks.from_json(one.value)
            found.append(answer)
            behind |= {rank: answer.behind[str(rank)] for rank in one.ranks if str(rank) in answer.behind}
            places |= {rank: where for rank, where in answer.by_rank().items() if rank in one.ranks}
    complete = not late and all(answer.places for answer in found)  # a node that is late may be the one that works
    return _judge(draft, found, places, behind, before, late, complete=complete)


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
    """Return True if a rank at this place waits for others, or for a device on which collectives run."""
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


def is_still(answers: Sequence[LocalStacks]) -> bool:
    """Return True if there is an answer, and every stack stayed as it was."""
    return bool(answers) and not any(answer.moved for answer in answers)


def is_hang(answers: Sequence[LocalStacks], before: Report | None, places: Mapping[int, str]) -> bool:
    """Return True if nothing moves. ``before`` is the former report on a suspicion, ``places`` are all ranks'.

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


def is_new(found: Report, last: Report | None) -> bool:
    """Return True if people have not read this report of a hang yet; ``last`` is the newest one of the same round."""
    return found.hang and (last is None or (last.report, last.step) != (found.report, found.step))


def newest_step(answers: Iterable[LocalStacks]) -> int | None:
    """Return the newest step that any rank is known to have reached; None if none is known."""
    return max((answer.step for answer in answers if answer.step is not None), default=None)


def report_alone(answer: LocalStacks, number: int) -> Report:
    """Return the report of a host whose ranks are all that can be asked."""
    draft = Report(round=number, why="requested by elastic stacks")
    return _judge(draft, [answer], answer.by_rank(), {}, None, complete=bool(answer.places))


def next_question_at(last: Report | None, at: float, window: float) -> float:
    """Return when ranks may be asked again after a question at ``at``; ``last`` is its report, None if it had none.

    Until a hang is found unchanged often enough for a rank to be ended, that is soon; else each time twice as late.
    """
    if last is None:
        return at + window
    soon = last.hang and last.looks < LOOKS
    return at + max(window, last.window) * (1 / LOOKS_PER_WINDOW if soon else 2.0 ** min(last.nth - 1, MOST_DOUBLINGS))


def describe_absent(answer: LocalStacks) -> str:
    """Return where the ranks of a node are that wait for no other, in one line; '' for none."""
    places = answer.by_rank()
    places = {rank: where for rank, where in places.items() if not waits_for_peers(where) and where not in _ENDED}
    return "; ".join(_describe(where, ranks) for where, ranks in _by_suspicion(places))


def describe_hang(report: Report) -> str:
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


def _judge(
    draft: Report,
    answers: Sequence[LocalStacks],
    places: Mapping[int, str],
    behind: Mapping[int, int],
    last: Report | None,
    late: Sequence[str] = (),
    *,
    complete: bool,
) -> Report:
    """Return the ``draft`` of a report with the findings of a question.

    ``last`` is the report of the suspicion before in this round, ``late`` has lines for nodes that have not
    answered, and ``complete`` says that the places of all ranks are known.
    """
    step, still = newest_step(answers), is_still(answers)
    behind = {rank: at for rank, at in behind.items() if step is not None and at < step and draft.window and not still}
    if behind:  # these hang while the others go on to newer steps
        step, suspect = min((at, rank) for rank, at in behind.items())
        order = _by_suspicion({rank: places.get(rank, "among the places left out") for rank in behind})
        lines = [f"{_describe(where, same)}, while other ranks go on to newer steps" for where, same in order]
        text, hang = _fit_lines(lines), True
    else:
        text, suspect = _fit_lines([*summarize(places, requested=not draft.window), *late]), culprit(answers, places)
        hang = draft.window > 0 and complete and is_hang(answers, last, places)
    as_before = last is not None and last.report == text and (last.culprit < 0) == (suspect < 0)
    advanced = last is not None and last.step is not None and step is not None and step > last.step
    return replace(
        draft,
        nth=1 if advanced and draft.nth else draft.nth,
        report=text,
        still=still,
        looks=(1 + (last.looks if last is not None and as_before else 0)) if hang else 0,
        hang=hang,
        culprit=suspect,
        step=step,
    )


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
