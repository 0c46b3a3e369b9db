"""The event ``verdict``: what was judged, what was decided, and why, for logs and ``elastic policy replay``."""

from __future__ import annotations

from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, Verdict


def verdict_event(incident: Incident, history: History, verdict: Verdict, others: int = 1, enough: int = 1) -> Event:
    """Return the event of one judged incident; the leader publishes it.

    An excluded host stays in the job if the ``others``, nodes on other hosts, are not ``enough``.
    """
    fields = {
        "round": incident.round,
        "kind": incident.kind.value,
        "rank": incident.rank,
        "host": incident.host,
        "exception": incident.exception,
        "follows_peer": incident.follows_peer,
        "exit_code": incident.exit_code,
        "step": incident.step,
        "new_checkpoint": history.new_checkpoint,
        "moved": history.moved,
        "place": incident.place,
        "after_s": round(incident.after, 3),
        "message": incident.message,
        "restarts": history.restarts,
        "max_restarts": history.max_restarts,
        "action": verdict.action.name.lower(),
        "reason": verdict.reason,
        "policy": verdict.policy,
        "delay_s": verdict.delay,
        "exclude_for_s": verdict.exclude_for,
    }
    return Event("verdict", f"{_describe_action(incident, verdict, others, enough)}: {verdict.reason}", fields=fields)


def _describe_action(incident: Incident, verdict: Verdict, others: int, enough: int) -> str:
    match verdict.action:
        case Action.GIVE_UP:
            return "the job is not restarted"
        case Action.EXCLUDE_HOST if others < enough:
            left = f"only {others} of {enough} nodes would be there" if others else "no other node is there"
            what = f"the job is restarted; {incident.host} would be left out, but {'without it ' * bool(others)}{left}"
        case Action.EXCLUDE_HOST:
            span = "" if verdict.exclude_for is None else f" for {verdict.exclude_for:g} s"
            what = f"the job is restarted without {incident.host}{span}"
        case Action.RESTART:
            what = "the job is restarted"
    return f"{what} after {verdict.delay:g} s" if verdict.delay else what
