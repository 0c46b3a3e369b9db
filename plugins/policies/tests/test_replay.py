"""``elastic policy replay``: the verdicts of a log, beside those of other policies."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from failures import history, incident, killed

from elastic_core.errors import UsageError
from elastic_core.events import Event
from elastic_core.incidents import Action, Incident, Verdict
from elastic_core.session.leader_driver import verdict_event
from elastic_policies.command import command, read_events, replay
from elastic_policies.composition import parse_policies


def log(*judged: tuple[float, Incident], max_restarts: int = 9, new_checkpoint: bool = False) -> str:
    """The log of a run in which all failures were restarted at once."""
    stream, now = io.StringIO(), 0.0

    def write(event: Event) -> None:
        line = {"time": now, "name": event.name, "message": event.message, "fields": event.fields}
        stream.write(json.dumps(line) + "\n")

    write(Event("joining", "x"))
    stream.write("Traceback (most recent call last):\n")
    for restarts, (at, one) in enumerate(judged):
        now = at
        known = history(restarts=restarts, max_restarts=max_restarts, new_checkpoint=new_checkpoint)
        verdict = Verdict(Action.RESTART, f"restart {restarts + 1}", policy="max-restarts")
        write(verdict_event(one, known, verdict))
    return stream.getvalue()


def replayed(text: str, policy: str, **more: Any) -> list[Verdict]:
    return [row.verdict for row in replay(read_events(text.splitlines()), parse_policies(policy), **more)]


def test_a_judgement_comes_back_from_the_log() -> None:
    one = incident(step=7, after=1.5)
    (judged,) = read_events(log((10.0, one)).splitlines())
    assert (judged.at, judged.history.restarts, judged.history.max_restarts) == (10.0, 0, 9)
    assert (judged.incident.exception, judged.incident.step, judged.incident.after) == ("ValueError", 7, 1.5)
    assert (judged.verdict, judged.verdict.policy) == (Verdict(Action.RESTART, "restart 1"), "max-restarts")


def test_dates_of_elastic_metrics_are_times_too() -> None:
    plain = [json.loads(line) for line in log((0.0, incident()), (60.0, incident())).splitlines() if line[0] == "{"]
    texts = ["2026-11-24T22:00:00.250123Z", "2026-11-24T22:01:00.250123Z"]
    lines = [json.dumps({**one, "time": text}) for one, text in zip(plain[1:], texts, strict=True)]
    first, second = read_events(lines)
    assert second.at - first.at == 60.0


def test_another_policy_is_applied_to_the_failures_before() -> None:
    text = log((10.0, incident()), (20.0, incident()), (30.0, incident()))
    actions = [verdict.action for verdict in replayed(text, "no_progress=2")]
    assert actions == [Action.RESTART, Action.GIVE_UP, Action.GIVE_UP]
    delays = [verdict.delay for verdict in replayed(text, "no_progress=off,backoff=1s..60s")]
    assert delays == [0.0, 1.0, 2.0]


def test_a_newer_checkpoint_in_the_log_is_progress() -> None:
    times = [(10.0, incident()), (20.0, incident()), (30.0, incident())]
    assert {verdict.action for verdict in replayed(log(*times, new_checkpoint=True), "")} == {Action.RESTART}
    older = [json.loads(line) for line in log((10.0, incident())).splitlines() if line[0] == "{"]
    for event in older:
        event["fields"].pop("new_checkpoint", None)
    (judged,) = read_events(map(json.dumps, older))
    assert not judged.history.new_checkpoint, "the event of an earlier release has no such field"


def test_a_window_slides_with_the_times_of_the_log() -> None:
    text = log((0.0, incident()), (100.0, incident(rank=1)), (4000.0, incident()))
    actions = [verdict.action for verdict in replayed(text, "budget=1/1h")]
    assert actions == [Action.RESTART, Action.GIVE_UP, Action.RESTART]


def test_core_s_own_limit_counts_too_unless_another_one_is_given() -> None:
    text = log((0.0, incident()), (9.0, incident(rank=1)), max_restarts=1)
    assert [verdict.policy for verdict in replayed(text, "")] == ["max-restarts", "max-restarts"]
    assert [verdict.action for verdict in replayed(text, "")] == [Action.RESTART, Action.GIVE_UP]
    assert [verdict.action for verdict in replayed(text, "", max_restarts=5)] == [Action.RESTART, Action.RESTART]


def test_a_second_run_in_the_same_log_begins_anew() -> None:
    one = log((0.0, killed()), (1.0, killed()))
    assert [v.action for v in replayed(one + one, "")] == 4 * [Action.RESTART]


def test_an_event_without_its_fields_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"Line 1 is no verdict event of this release: KeyError\('kind'\)"):
        list(read_events([json.dumps({"name": "verdict", "time": 1.0, "fields": {}})]))


def test_the_command_prints_both_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(log((10.0, incident(step=7)), (20.0, killed(rank=None))))
    done = CliRunner().invoke(command, ["replay", str(path), "--failure_policy", "budget=1/1h"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "round 1: rank 0 on a ValueError: boom, step 7",
        "  decided        restart (max-restarts: restart 1)",
        "  would decide   the same",
        "round 1: on a was killed by SIGKILL (kill -9 by a user, or the kernel's out-of-memory killer: see dmesg)",
        "  decided        restart (max-restarts: restart 2)",
        "  would decide   give_up (budget: all restarts of budget=1/1h are spent: 1 within 1h)",
        "2 failure(s), 1 with another verdict",
    ]
    rows = CliRunner().invoke(command, ["replay", str(path), "--json", "--failure_policy", "budget=1/1h"])
    assert [json.loads(row)["same"] for row in rows.output.splitlines()] == [True, False]
    assert json.loads(rows.output.splitlines()[1])["would_decide"]["policy"] == "budget"
