"""``elastic audit-data FILE...``: whether a log proves that no sample was skipped or repeated. Needs no torch.

What counts as *committed*: a step that some rank has recorded (an update on one rank takes the gradients of all of
them) and that was not taken back. Each round, and each load of a state after steps, begins a new *segment* of the log.
The first step that a segment records takes back every earlier segment's steps from that place on: their updates are not
in the state that it goes on from. A segment without a step takes nothing back. The last step before a segment, which
its state knows, counts too, since the rank that keeps the log may have died before it wrote it.

``command`` and ``read`` do I/O; the proof (:func:`audit`) and its words (:func:`lines`) are pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode
from elastic_core.host import printable
from elastic_torch.data import partition
from elastic_torch.data.audit import MARK, VERSION, Step

MOST = 10  # findings that are printed; the others are counted
NAMED = 5  # samples of a finding whose dataset indices are printed


@click.command(
    "audit-data",
    epilog="Exits with 0 where it is proved, and with 1 where a sample was skipped or repeated, or has no record.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--finished", is_flag=True, help="Training is over: the last epoch has to be whole, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def command(files: tuple[Path, ...], finished: bool, as_json: bool) -> int:
    """Prove from a sampler's audit log that each sample of each epoch was in exactly one committed step.

    FILES are what ElasticDistributedSampler(audit_log=...) wrote, of all rounds; in any order, but those of an earlier
    run first.
    """
    found = [read(path) for path in dict.fromkeys(files)]
    logs, torn = [records for records, _ in found], sum(incomplete for _, incomplete in found)
    if not any(logs):
        raise UsageError("There is no record in the audit log.", hint="Is it the file that audit_log named?")
    try:
        report = audit(logs, finished=finished)
    except ValueError as exc:
        raise UsageError(f"These files cannot be judged together. {exc}") from exc
    click.echo(json.dumps(asdict(report)) if as_json else "\n".join(lines(report, torn)))
    return ExitCode.JOB_FAILED if report.findings else ExitCode.SUCCESS


def read(path: Path) -> tuple[list[Record], int]:
    """Return a file's records, and how many lines were cut short; raise UsageError if it or a line cannot be read."""
    records, torn = [], 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    facts = json.loads(line)
                except ValueError:  # of what a killed writer began; if it mattered, a sample is missing
                    torn += 1
                    continue
                try:
                    records.append(_record(facts))
                except ValueError as exc:
                    raise UsageError(f"Line {number} of {path} is no record of an audit log: {exc}.") from exc
    except OSError as exc:
        raise UsageError(f"The audit log {path} cannot be read: {exc}.") from exc
    if torn and not records:
        raise UsageError(f"{path} is no audit log: none of its {torn} lines is a record.")
    return records, torn


def _record(facts: Any) -> Record:
    if not isinstance(facts, dict) or facts.get(MARK) != VERSION:
        raise ValueError(f"it has no {MARK}={VERSION}")
    run, number, rank = facts.get("run"), facts.get("round"), facts.get("rank")
    if not isinstance(run, str) or not (number is None or type(number) is int) or type(rank) is not int:
        raise ValueError(f"run, round and rank are {run!r}, {number!r} and {rank!r}")
    if "resumed" in facts:
        resumed = facts["resumed"]
        before = resumed.get("previous") if isinstance(resumed, dict) else resumed
        if not (before is None or isinstance(before, dict)):
            raise ValueError(f"resumed is {resumed!r}")
        return Record(run=run, round=number, rank=rank, step=None if before is None else Step.of(before))
    match facts.get("own"):
        case [int(start), int(stop)]:
            step = Step.of(facts)
            if not 0 <= rank < step.world_size:
                raise ValueError(f"rank is {rank} of {step.world_size}")
            return Record(run=run, round=number, rank=rank, step=step, own=(start, stop))
        case other:
            raise ValueError(f"own is {other!r}")


def lines(report: Report, torn: int = 0) -> list[str]:
    """Return the report for people; foreign text in it is shown, never obeyed."""
    text = [_epoch_line(epoch) for epoch in report.epochs]
    if report.taken_back:
        text.append(f"{_count(report.taken_back, 'step')} taken back and done again, from states that were loaded")
    if torn:
        text.append(f"{_count(torn, 'line')} cut short, as when a writer is killed")
    text += [
        f"{finding.kind}: {_where(finding)}{_indices(finding, report.epochs)}: {finding.message}"
        for finding in report.findings[:MOST]
    ]
    if len(report.findings) > MOST:
        text.append(f"… and {len(report.findings) - MOST} more")
    if report.findings:
        first = min(report.findings, key=lambda finding: (finding.epoch, finding.start))
        found = f"{_count(len(report.findings), 'finding')}, the first is {first.kind}, {_where(first)}"
        text.append(f"NOT PROVED: {found}.")
    else:
        text.append(f"Proved: 0 skipped, 0 repeated, in {_count(len(report.epochs), 'epoch')}.")
    return [printable(line) for line in text]


def _epoch_line(epoch: Epoch) -> str:
    workers = ", ".join(map(str, epoch.world_sizes))
    how_far = "" if epoch.over else " so far"
    left_out = f", {epoch.dropped} left out by drop_last" if epoch.dropped else ""
    return (
        f"epoch {epoch.epoch}: {epoch.used} of {epoch.length} samples{how_far}{left_out}, "
        f"in {_count(epoch.steps, 'step')}, world size {workers}"
    )


def _indices(finding: Finding, epochs: Sequence[Epoch]) -> str:
    """Return the first of them as indices of the dataset, where the order is one that we know."""
    import numpy as np  # with Order, which needs it too: listing the commands must not import it

    from elastic_torch.data.permutation import IN_ORDER, SHUFFLED, Order

    epoch = next((epoch for epoch in epochs if epoch.epoch == finding.epoch), None)
    if epoch is None or epoch.order not in (SHUFFLED, IN_ORDER):
        return ""
    order = Order(epoch.length, epoch.seed, epoch.epoch, epoch.order == SHUFFLED)
    stop = min(finding.stop, finding.start + NAMED)
    found = ", ".join(map(str, order.at(np.arange(finding.start, stop)).tolist()))
    return f" (in the dataset {found}{', …' if stop < finding.stop else ''})"


def _where(finding: Finding) -> str:
    return f"samples [{finding.start}, {finding.stop}) of epoch {finding.epoch}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of a log: a step with this rank's share, or a resumption (``step`` is then what came before it)."""

    run: str
    round: int | None
    rank: int
    step: Step | None
    own: tuple[int, int] | None = None  # the rank's share; None makes the record a resumption


@dataclass(frozen=True, slots=True)
class Taken:
    """A step on the timeline, and which segment it is from."""

    step: Step
    where: str  # the segment, for people: ``round 3``


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    kind: str  # ``skipped``, ``repeated``, ``disagreement`` or ``order``
    epoch: int
    start: int
    stop: int  # the places of the epoch's order, half-open
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The facts of a log about one epoch. Counts are of samples unless they say steps."""

    epoch: int
    length: int
    used: int
    dropped: int  # the tail that ``drop_last`` left out
    steps: int
    world_sizes: tuple[int, ...]  # in the order in which they came
    seed: int
    order: str
    over: bool  # true if it was trained to its end, and not only its beginning without a gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The verdict: ``findings`` is empty where the log proves that nothing was skipped or repeated."""

    epochs: tuple[Epoch, ...]
    findings: tuple[Finding, ...]
    taken_back: int  # steps that were recorded, and done again after a state before them was loaded


@dataclass(slots=True)
class _Segment:
    where: str
    before: Step | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    who: dict[int, int] = field(default_factory=dict)


def audit(files: Sequence[Sequence[Record]], *, finished: bool = False) -> Report:
    """Judge a log.

    ``finished`` says that training is over, so that the last epoch has to be whole as well. Raises ValueError, which
    says why, where the files' records cannot be put in order.
    """
    findings: list[Finding] = []
    timeline, taken_back = _timeline(_segments(files, findings))
    by_epoch: dict[int, list[Taken]] = {}
    for taken in timeline:
        by_epoch.setdefault(taken.step.epoch, []).append(taken)
    newest = max(by_epoch, default=0)
    epochs: list[Epoch] = []
    for number, steps in sorted(by_epoch.items()):
        first = steps[0]
        for missing in range(epochs[-1].epoch + 1 if epochs else number, number):
            text = f"there is no record of this epoch before {first.where}, which trained epoch {number}"
            findings.append(Finding("skipped", missing, 0, first.step.length, text))
        epochs.append(_epoch(steps, findings, whole=finished or number != newest))
    return Report(epochs=tuple(epochs), findings=tuple(findings), taken_back=taken_back)


def run_order(files: Iterable[Sequence[Record]]) -> list[str]:
    """Return the runs in the order in which they appear; raise ValueError if two files disagree on it."""
    seen = [list(dict.fromkeys(record.run for record in file)) for file in files]
    order = list(dict.fromkeys(run for runs in seen for run in runs))
    for runs in seen:
        for first, second in pairwise(runs):
            if order.index(first) > order.index(second):
                raise ValueError(f"In one file run {first!r} comes before run {second!r}, in another after it.")
    return order


def _segments(files: Sequence[Sequence[Record]], findings: list[Finding]) -> list[_Segment]:
    """Return the segments, in the order of run, round and load; records of several ranks are one where they agree."""
    runs = {run: place for place, run in enumerate(run_order(files))}
    if len(files) > 1 and any(record.round is None for file in files for record in file):
        raise ValueError(
            "Records without a round's number, as under torchrun, cannot be ordered over several files. "
            "Give the one that rank 0 wrote."
        )
    segments: dict[tuple[int, int, int], _Segment] = {}
    for file in files:
        loads: dict[tuple[str, int | None, int], int] = {}  # that came after steps
        stepped: dict[tuple[str, int | None, int], bool] = {}
        for record in file:
            life = (record.run, record.round, record.rank)
            loads[life] = loads.get(life, 0) + (record.own is None and stepped.get(life, False))
            stepped[life] = record.own is not None
            key = (runs[record.run], record.round or 0, loads[life])
            if key not in segments:
                segments[key] = _Segment(_named(record, several=len(runs) > 1))
            _add(segments[key], record, findings)
    return [segments[key] for key in sorted(segments)]


def _named(record: Record, *, several: bool) -> str:
    name = "an unnumbered round" if record.round is None else f"round {record.round}"
    return f"{name} of run {record.run!r}" if several else name


def _add(segment: _Segment, record: Record, findings: list[Finding]) -> None:
    step = record.step
    if record.own is None or step is None:
        segment.before = step or segment.before
        return
    known = segment.steps.setdefault(step.step, step)
    first = segment.who.setdefault(step.step, record.rank)
    right = partition.share(step.start, step.stop, rank=record.rank, world_size=step.world_size)
    wrong = None
    if known != step:
        wrong = (
            f"rank {first} recorded samples {_span(known)} with {known.world_size} workers as step {step.step}, "
            f"rank {record.rank} {_span(step)} with {step.world_size}"
        )
    elif record.own != (right.start, right.stop):
        wrong = f"rank {record.rank} took [{record.own[0]}, {record.own[1]}) of step {step.step}, {_span(step)}"
    if wrong is not None:
        findings.append(Finding("disagreement", step.epoch, step.start, step.stop, f"{wrong}, in {segment.where}"))


def _timeline(segments: Iterable[_Segment]) -> tuple[list[Taken], int]:
    """Return the committed steps in order, and how many others were taken back."""
    timeline: list[Taken] = []
    taken_back = 0
    for segment in segments:
        steps = [segment.steps[number] for number in sorted(segment.steps)]
        if steps:
            kept = len(timeline)
            while kept and _place(timeline[kept - 1].step) >= _place(steps[0]):
                kept -= 1
            taken_back += len(timeline) - kept
            del timeline[kept:]
        if segment.before is not None and not _has(timeline, segment.before):
            timeline.append(Taken(segment.before, f"the state that {segment.where} loaded"))
        timeline += [Taken(step, segment.where) for step in steps]
    return timeline, taken_back


def _has(timeline: Sequence[Taken], step: Step) -> bool:
    """Return True if a step is there; it would be near the end."""
    for taken in reversed(timeline):
        if (_place(taken.step), taken.step.stop) == (_place(step), step.stop):
            return True
        if _place(taken.step) < _place(step):
            return False
    return False


def _epoch(steps: list[Taken], findings: list[Finding], *, whole: bool) -> Epoch:
    """Look at one epoch: every place once, up to its end where it is ``whole``."""
    first = steps[0]
    for taken in steps:
        if _kind(taken.step) != _kind(first.step):
            text = f"{first.where} took {_kind_named(first.step)}, and {taken.where} {_kind_named(taken.step)}"
            findings.append(Finding("order", taken.step.epoch, taken.step.start, taken.step.stop, text))
            break
    steps = sorted(steps, key=lambda taken: (taken.step.start, taken.step.stop))
    reached, used = 0, 0
    last: Taken | None = None
    for taken in steps:
        step = taken.step
        if step.start > reached:
            after = "there is no record before" if last is None else f"after step {last.step.step} of {last.where} came"
            text = f"{after} step {step.step} of {taken.where}, which begins at {step.start}"
            findings.append(Finding("skipped", step.epoch, reached, step.start, text))
        if step.start < reached and last is not None:
            stop = min(step.stop, reached)
            text = f"step {last.step.step} of {last.where} and step {step.step} of {taken.where} both took them"
            findings.append(Finding("repeated", step.epoch, step.start, stop, text))
        used += max(0, step.stop - max(step.start, reached))
        if last is None or step.stop > reached:
            reached, last = step.stop, taken
    assert last is not None
    left = last.step.length - reached
    over = left == 0 or (last.step.drop_last and left < last.step.global_batch_size)
    if whole and not over:
        text = f"nothing followed step {last.step.step} of {last.where} in this epoch"
        findings.append(Finding("skipped", last.step.epoch, reached, last.step.length, text))
    return Epoch(
        epoch=last.step.epoch,
        length=last.step.length,
        used=used,
        dropped=left if over else 0,
        steps=len(steps),
        world_sizes=tuple(dict.fromkeys(taken.step.world_size for taken in steps)),
        seed=last.step.seed,
        order=last.step.order,
        over=over,
    )


def _place(step: Step) -> tuple[int, int]:
    return step.epoch, step.start


def _span(step: Step) -> str:
    return f"[{step.start}, {step.stop}) of epoch {step.epoch}"


def _kind(step: Step) -> tuple[int, int, str]:
    return step.length, step.seed, step.order


def _kind_named(step: Step) -> str:
    return f"{step.length} samples in the order {step.order!r} of seed {step.seed}"
