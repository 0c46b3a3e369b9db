"""Rule S6: who may join the run that is there, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenes import VERSIONS, live, settings, start, then

from elastic_core.errors import RendezvousRefusedError
from elastic_core.rendezvous.admission import Join, OpenNext, Report, admit, check_settings, needs_liveness
from elastic_core.rendezvous.ledger import Closed, Ledger

CLOSED = Closed(success=True, why="done", exit_code=0)


def run(uid: str | None, *, closed: bool) -> Ledger:
    ledger = start(uid=uid)
    return then(ledger, CLOSED, at=1.0) if closed else ledger


REFUSED = None


@pytest.mark.parametrize(
    ("closed", "theirs", "mine", "alive", "answer"),
    [
        (False, None, None, [], Join()),
        (False, None, None, ["host-b"], Join()),
        (False, "s1", "s1", ["host-b"], Join()),
        (False, "s1", None, [], Join()),
        (False, "s1", "s2", [], OpenNext(abandoned=True)),
        (False, "s1", "s2", ["host-b"], REFUSED),
        (False, None, "s2", ["host-b"], REFUSED),
        (True, "s1", "s1", [], Report(CLOSED)),
        (True, "s1", "s1", ["host-b"], Report(CLOSED)),
        (True, "s1", "s2", ["host-b"], OpenNext(abandoned=False)),
        (True, None, None, [], OpenNext(abandoned=False)),
        (True, "s1", None, [], OpenNext(abandoned=False)),
        (True, None, None, ["host-b"], REFUSED),
    ],
)
def test_admission(closed: bool, theirs: str | None, mine: str | None, alive: list[str], answer: object) -> None:
    ledger = run(theirs, closed=closed)
    if answer is REFUSED:
        with pytest.raises(RendezvousRefusedError, match="host-b"):
            admit(ledger, mine, alive)
    else:
        assert admit(ledger, mine, alive) == answer
    if not needs_liveness(ledger, mine):
        assert answer is not REFUSED
        assert admit(ledger, mine, []) == answer


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_nodes": 8}, "max_nodes: 8 here, 4 there"),
        ({"min_nodes": 2}, "min_nodes: 2 here, 1 there"),
        ({"max_restarts": 0}, "max_restarts: 0 here, 3 there"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, int], says: str) -> None:
    mine = settings(host="host-b", **change)  # type: ignore[arg-type]  # the table's values are all of the right type
    with pytest.raises(RendezvousRefusedError, match=f"host-b cannot join the run that host-a opened.*{says}"):
        check_settings(live("a").settings, mine, allow_version_mismatch=True)


@pytest.mark.parametrize("which", ["failure_policies", "worker_plugins"])
def test_other_plugins_that_all_nodes_must_have_are_refused_by_name(which: str) -> None:
    opener = settings()
    agreement = replace(opener.agreement, **{which: ("mine",)})  # type: ignore[arg-type]  # both are tuples
    mine = replace(opener, host="host-b", agreement=agreement)
    with pytest.raises(RendezvousRefusedError, match=f"{which}: mine here, none there"):
        check_settings(opener, mine, allow_version_mismatch=True)


def test_other_versions_are_refused_unless_allowed_and_name_both_nodes() -> None:
    opener = settings()
    mine = replace(opener, host="host-b", versions=replace(VERSIONS, torch=""))
    with pytest.raises(RendezvousRefusedError) as refused:
        check_settings(opener, mine, allow_version_mismatch=False)
    assert refused.value.message == (
        "host-b has Python 3.11.7, no torch, but host-a, which opened the run, has Python 3.11.7, torch 2.13.0."
    )
    check_settings(opener, mine, allow_version_mismatch=True)


def test_durations_may_differ_and_are_the_openers() -> None:
    check_settings(settings(), settings(join_timeout=5.0), allow_version_mismatch=False)
