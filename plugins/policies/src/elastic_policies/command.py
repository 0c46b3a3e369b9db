"""``elastic policy replay``: the verdicts of other failure policies on the ``verdict`` events of a past run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TextIO

import click

from elastic_core.errors import UsageError
from elastic_core.incidents import Action, Failure, History, Incident, IncidentKind, Verdict, strictest
from elastic_core.plugins import MaxRestartsPolicy
from elastic_core.protocol import MAX_FAILURES, as_record
from elastic_policies.composition import DEFAULTS, judge, parse_policies
from elastic_policies.flags import has_budget
from elastic_policies.known_failures import explain


@dataclass(frozen=True, slots=True)
class Judged:
    """One failure of the past: when it was judged, in seconds of any clock, and what was decided."""

    at: float
    incident: Incident
    history: History  # without the failures before it
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """One failure, with both verdicts."""

    judged: Judged
    verdict: Verdict

    @property
    def is_same(self) -> bool:
        """True if both verdicts lead to the same."""
        one, other = self.judged.verdict, self.verdict
        return (one.action, one.delay, one.exclude_for) == (other.action, other.delay, other.exclude_for)


def read_events(lines: Iterable[str]) -> Iterator[Judged]:
    """Yield the judged failures of an event log. Other events, and lines of other programs, are skipped.

    Raises:
        UsageError: A ``verdict`` event lacks a field, or a field is of another type.
    """
    for number, line in enumerate(lines, 1):
        try:
            plain = json.loads(line)
        except ValueError:
            continue
        if isinstance(plain, dict) and plain.get("name") == "verdict" and isinstance(plain.get("fields"), dict):
            try:
                yield _as_judged(_seconds(plain["time"]), plain["fields"])
            except (KeyError, TypeError, ValueError) as exc:
                raise UsageError(f"Line {number} is no verdict event of this release: {exc!r}.") from None


def _seconds(time: object) -> float:
    """Return the instant of an event: core's log has seconds, that of elastic-metrics a date and time of day."""
    if isinstance(time, str):
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    if isinstance(time, int | float):
        return float(time)
    raise TypeError(f"the time is {time!r}")


def _as_judged(at: float, fields: Mapping[str, Any]) -> Judged:
    incident = Incident(
        kind=IncidentKind(fields["kind"]),
        round=int(fields["round"]),
        node_id="",
        host=str(fields["host"]),
        after=float(fields["after_s"]),
        rank=fields["rank"],
        exit_code=fields["exit_code"],
        message=str(fields["message"]),
        exception=str(fields["exception"]),
        follows_peer=fields.get("follows_peer") is True,
        step=fields["step"],
        where=str(fields.get("place", "")),
    )
    incident = replace(incident, explanation=explain(incident))
    verdict = Verdict(
        Action[str(fields["action"]).upper()],
        str(fields["reason"]),
        delay=float(fields["delay_s"]),
        exclude_for=fields["exclude_for_s"],
        policy=str(fields["policy"]),
    )
    new, moved = (fields.get(name, False) for name in ("new_checkpoint", "moved"))  # logs of earlier releases have none
    if type(new) is not bool or type(moved) is not bool:
        raise TypeError(f"new_checkpoint is {new!r}, moved is {moved!r}")
    limit = None if fields["max_restarts"] is None else int(fields["max_restarts"])
    restarts = int(fields["restarts"])
    history = History(restarts=restarts, max_restarts=limit, rounds_without_progress=0, new_checkpoint=new, moved=moved)
    return Judged(at, incident, history, verdict)


def replay(
    events: Iterable[Judged], policies: Mapping[str, Any], *, max_restarts: int | None = None, unlimited: bool = False
) -> list[Compared]:
    """Return what these policies, and core's own, would have decided about each failure.

    Each failure is judged by those before it, as far as they were restarted. ``max_restarts`` replaces the
    run's limit, which does not hold with ``unlimited``.
    """
    found: list[Compared] = []
    past: list[tuple[float, Failure]] = []
    run = 0
    for one in events:
        history = one.history
        if history.restarts < run:
            past.clear()  # another run in the same file
        run = history.restarts
        limit = None if unlimited else history.max_restarts if max_restarts is None else max_restarts
        failures = tuple(replace(failure, seconds_ago=max(0.0, one.at - at)) for at, failure in past)
        history = replace(history, max_restarts=limit, failures=failures[-MAX_FAILURES:])
        own = MaxRestartsPolicy().elastic_judge_failure(one.incident, history)
        verdicts = [judge(one.incident, history, policies), replace(own, policy="max-restarts")]
        found.append(Compared(one, strictest([verdict for verdict in verdicts if verdict is not None])))
        failure = replace(as_record(one.incident), new_checkpoint=history.new_checkpoint, moved=history.moved)
        past.append((one.at + one.verdict.delay, failure))
    return found


def as_plain(one: Compared) -> dict[str, Any]:
    """Return a row for programs."""
    incident = one.judged.incident
    return {
        **{name: getattr(incident, name) for name in ("round", "rank", "host", "exception", "exit_code", "step")},
        "decided": _as_dict(one.judged.verdict),
        "would_decide": _as_dict(one.verdict),
        "same": one.is_same,
    }


def as_lines(rows: list[Compared]) -> list[str]:
    """Return the comparison for people: a failure, what was decided, and what would have been."""
    lines = []
    for one in rows:
        incident = one.judged.incident
        rank = "" if incident.rank is None else f" rank {incident.rank}"
        step = "" if incident.step is None else f", step {incident.step}"
        lines.append(f"round {incident.round}:{rank} on {incident.host} {incident.message or incident.cause()}{step}")
        lines.append(f"  decided        {_text(one.judged.verdict)}")
        lines.append(f"  would decide   {'the same' if one.is_same else _text(one.verdict)}")
    other = sum(not one.is_same for one in rows)
    lines.append(f"{len(rows)} failure(s), {other} with another verdict")
    return lines


def _as_dict(verdict: Verdict) -> dict[str, Any]:
    return {
        "action": verdict.action.name.lower(),
        "policy": verdict.policy,
        "reason": verdict.reason,
        "delay_s": verdict.delay,
        "exclude_for_s": verdict.exclude_for,
    }


def _text(verdict: Verdict) -> str:
    delay = f" after {verdict.delay:g} s" if verdict.delay else ""
    return f"{verdict.action.name.lower()}{delay} ({verdict.policy}: {verdict.reason})"


@click.group("policy")
def command() -> None:
    """Replay the failures of a run under other failure policies."""


@command.command("replay")
@click.argument("events", type=click.File(encoding="utf-8", errors="replace"))
@click.option(
    "--failure_policy", default="", metavar="NAME=VALUE,...", help=f"As of `elastic run`. Default: {DEFAULTS}."
)
@click.option("--max_restarts", type=click.IntRange(min=0), metavar="N", help="Instead of the run's own limit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each failure.")
def replay_command(events: TextIO, failure_policy: str, max_restarts: int | None, as_json: bool) -> None:
    """Print what these policies would have decided, beside the run's own decisions.

    EVENTS is an event log (JSON lines with `verdict` events), or - for stdin.
    """
    policies = parse_policies(failure_policy)
    unlimited = max_restarts is None and has_budget(failure_policy)
    rows = replay(read_events(events), policies, max_restarts=max_restarts, unlimited=unlimited)
    if as_json:
        for row in rows:
            click.echo(json.dumps(as_plain(row)))
    else:
        click.echo("\n".join(as_lines(rows)))
