"""The text of ``--failure_policy``: what it means, and what people are told where it means nothing."""

from __future__ import annotations

import pytest

from elastic_core.config.parse import Wrong
from elastic_core.errors import UsageError
from elastic_policies.composition import DEFAULTS, POLICIES, parse_policies
from elastic_policies.durations import format_duration, parse_duration
from elastic_policies.exclusions import Quarantine, TornCheckpoint
from elastic_policies.hopeless import NanLoss, NoProgress
from elastic_policies.restarts import Backoff, Budget, Preemptions

BUDGET_FORM = "Write budget=N/DURATION, N/progress, N/checkpoint or N/Msteps, such as 10/1h or 3/1000steps; budget=off"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("2d", 172_800.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, most=1e6) == seconds
    assert parse_duration(format_duration(seconds), most=1e6) == seconds


@pytest.mark.parametrize("text", ["", "h", "1 h", "-1s", "0s", "1e3", "nan", "inf", "1w", "99d"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(Wrong):
        parse_duration(text, most=1e6)


@pytest.mark.parametrize("text", ["3/1h", "3/progress", "3/checkpoint", "3/1000steps", "0/1steps"])
def test_a_budget_is_written_as_it_is_read(text: str) -> None:
    assert str(Budget.parse(text)) == text


def test_the_defaults_and_what_the_text_changes() -> None:
    quarantine = Quarantine(3, 3600.0, 1800.0)
    assert parse_policies("") == parse_policies(DEFAULTS)
    assert parse_policies("") == {
        "nan_loss": NanLoss(),
        "torn_checkpoint": TornCheckpoint(2),
        "no_progress": NoProgress(3, 5),
        "quarantine": quarantine,
    }
    text = " budget = 10/1h, no_progress=2,quarantine=off , backoff=1s..60s,preemptions=20/1h"
    assert parse_policies(text) == {
        "nan_loss": NanLoss(),
        "torn_checkpoint": TornCheckpoint(2),
        "no_progress": NoProgress(2),
        "budget": Budget(restarts=10, window=3600.0),
        "preemptions": Preemptions(20, 3600.0),
        "backoff": Backoff(1.0, 60.0),
    }
    assert parse_policies(",".join(f"{name}=off" for name in POLICIES)) == {}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "budgt=1/1h",
            "--failure_policy 'budgt=1/1h': there is no policy 'budgt'. Did you mean 'budget'?",
            "The policies are: nan_loss, torn_checkpoint, classification, no_progress, budget, preemptions, "
            "quarantine, backoff.",
        ),
        ("budget", "--failure_policy 'budget' is not of the form NAME=VALUE.", BUDGET_FORM),
        (
            "budget=10",
            "--failure_policy 'budget=10' is not of the form N/DURATION, N/progress, N/checkpoint or N/Msteps, such as",
            "",
        ),
        ("budget=3/0steps", "--failure_policy 'budget=3/0steps' has '0' where a whole number from 1 to", ""),
        ("budget=3/steps", "--failure_policy 'budget=3/steps' has 'steps' where a duration such as 30s,", ""),
        ("preemptions=3", "--failure_policy 'preemptions=3' is not of the form N/DURATION, such as 20/1h", ""),
        ("preemptions=3/progress", "--failure_policy 'preemptions=3/progress' has 'progress' where a duration", ""),
        ("budget=1/1h,budget=2/1h", "--failure_policy gives 'budget' twice.", ""),
        (
            "budget=33/1h",
            "--failure_policy 'budget=33/1h' has '33' where a whole number from 0 to 32 is wanted.",
            BUDGET_FORM,
        ),
        (
            "budget=3/soon",
            "--failure_policy 'budget=3/soon' has 'soon' where a duration such as 30s, 10m or 1h is wanted.",
            "",
        ),
        ("budget=3/31d", "--failure_policy 'budget=3/31d' has '31d', which is not between 0 and 30d.", ""),
        ("backoff=1s", "--failure_policy 'backoff=1s' is not of the form DURATION..DURATION, such as 1s..60s.", ""),
        (
            "backoff=9s..1s",
            "--failure_policy 'backoff=9s..1s' begins with a longer delay, 9s, than it ends with.",
            "",
        ),
        ("backoff=1s..2h", "--failure_policy 'backoff=1s..2h' has '2h', which is not between 0 and 1h.", ""),
        ("quarantine=3/1h", "--failure_policy 'quarantine=3/1h' is not of the form N/DURATION:DURATION,", ""),
        ("nan_loss=warn", "--failure_policy 'nan_loss=warn' has 'warn' where 'stop' is wanted.", ""),
        ("no_progress=1", "--failure_policy 'no_progress=1' has '1' where a whole number from 2 to 32 is wanted.", ""),
        ("no_progress=", "--failure_policy 'no_progress=' is not of the form NAME=VALUE.", ""),
        ("classification=²", "--failure_policy 'classification=²' has '²' where a whole number from 1 to 32", ""),
    ],
)
def test_people_are_told_what_is_wrong_and_what_to_write(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policies(text)
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint)
