"""NaN loss: a training that has diverged is not restarted, since it would diverge again."""

from __future__ import annotations

from elastic_core.config.parse import Wrong
from elastic_core.incidents import Action, History, Incident, Verdict

NAME = "nan_loss"
FORM = "stop"
EXCEPTION = "NanLoss"  # the exception's type of an incident in which the reported loss was not a number


def parse(text: str) -> str:
    """Return ``stop``, the only way; raise Wrong for another text."""
    if text != FORM:
        raise Wrong(f"has {text!r} where {FORM!r} is wanted")
    return text


def judge(incident: Incident, _history: History, _way: str) -> Verdict | None:
    """Give up if the loss was not a number."""
    if incident.exception.rpartition(".")[2] != EXCEPTION:
        return None
    return Verdict(Action.GIVE_UP, "the loss is not a number, and a restart would repeat it (nan_loss)", policy=NAME)
