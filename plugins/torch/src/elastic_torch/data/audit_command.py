"""``elastic audit-data FILE...``: whether a log proves that no sample was skipped or repeated. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode
from elastic_core.host import printable
from elastic_torch.data.audit import MARK, VERSION, Step
from elastic_torch.data.audit_check import Epoch, Finding, Record, Report, audit

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
    torn = 0
    logs = []
    for path in dict.fromkeys(files):
        records, incomplete = read(path)
        logs.append(records)
        torn += incomplete
    if not any(logs):
        raise UsageError("There is no record in the audit log.", hint="Is it the file that audit_log named?")
    try:
        report = audit(logs, finished=finished)
    except ValueError as exc:
        raise UsageError(f"These files cannot be judged together. {exc}") from exc
    click.echo(json.dumps(asdict(report)) if as_json else "\n".join(lines(report, torn)))
    return ExitCode.JOB_FAILED if report.findings else ExitCode.SUCCESS


def read(path: Path) -> tuple[list[Record], int]:
    """Return a file's records, and how many lines were cut short when their writer was killed.

    Raises:
        UsageError: It cannot be read, or a line is no record; says which.
    """
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
        text.append(f"NOT PROVED: {_count(len(report.findings), 'finding')}, the first is {_headline(report)}.")
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


def _headline(report: Report) -> str:
    first = min(report.findings, key=lambda finding: (finding.epoch, finding.start))
    return f"{first.kind}, {_where(first)}"


def _where(finding: Finding) -> str:
    return f"samples [{finding.start}, {finding.stop}) of epoch {finding.epoch}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
