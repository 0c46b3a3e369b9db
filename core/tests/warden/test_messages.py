"""The messages of the warden, as the agent parses them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_core.warden.messages import (
    Exited,
    Fenced,
    Signalled,
    Spawned,
    SpawnFailed,
    StarterDied,
    StarterReady,
    WardenEvent,
    WardenSignalled,
    parse_message,
    warden_death,
)

SPAWNED = {"event": "spawned", "tag": 3, "pid": 40, "warm": True, "unlearned": 2}
READY = {"event": "starter_ready", "pid": 9, "text": "imports", "more": {"learned": 1}, "complete": False}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SPAWNED, Spawned(3, 40, warm=True, unlearned=2)),
        ({"event": "spawn_failed", "tag": 1, "error": "no such file"}, SpawnFailed(1, "no such file")),
        ({"event": "exited", "tag": 1, "pid": 40, "returncode": -9, "at": 2.0}, Exited(1, 40, -9, 2.0)),
        ({"event": "signalled", "signum": 15, "pids": [40], "names": ["sh"]}, Signalled(15, (40,), ("sh",))),
        ({"event": "fenced"}, Fenced()),
        ({"event": "warden_signalled", "signum": 15}, WardenSignalled(15)),
        (READY, StarterReady(9, "imports", {"learned": 1}, complete=False)),
        ({"event": "starter_died", "how": "exited with code 1"}, StarterDied("exited with code 1")),
    ],
)
def test_a_message_has_the_name_and_the_fields_of_its_class(message: dict[str, Any], expected: WardenEvent) -> None:
    assert parse_message(json.loads(json.dumps(message))) == expected


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"tag": 3},
        {"event": "unheard_of"},
        {"event": "warden_died", "reason": "only the agent can notice that"},
        {"event": "stop_completed"},
        {"event": "fenced", "serial": 1},
        {key: value for key, value in SPAWNED.items() if key != "unlearned"},
    ],
)
def test_a_malformed_message_is_refused_in_full(message: dict[str, Any]) -> None:
    with pytest.raises(AssertionError) as caught:
        parse_message(message)
    assert str(caught.value) == f"the warden sent {message!r}"


def test_a_warden_that_only_hangs_up_is_dead_too() -> None:
    assert warden_death(None).reason == "it closed its connection"
