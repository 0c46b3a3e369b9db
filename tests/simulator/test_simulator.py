"""The protocol under everything that a store, a network and hosts can do to it: thousands of plans, none violated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from simulator.assumption_faults import KINDS as BREACHES
from simulator.campaign import Result
from simulator.defect import Defect
from simulator.defects import DEFECTS
from simulator.faults import KINDS
from simulator.plan import Plan
from simulator.play import play

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOUND = sorted((HERE / "found").glob("*.json"))

Played = Callable[[int, int], Result]

REACHED = (
    "OPEN",
    "OPEN of the next run",
    "ROUND",
    "ROUND same members",
    "LEADER after silence",
    "LEADER unanswered",
    "LEADER by the one that leaves",
    "LEADER of an abandoned run",
    "HALT failure",
    "HALT giving_up",
    "HALT node_lost",
    "HALT node_left",
    "HALT unseen",
    "HALT resize",
    "PLAN resize",
    "PLAN node_left",
    "PLAN a rank holds",
    "PLAN a rank stops",
    "PLAN all have stopped together",
    "PLAN comes to its deadline",
    "STOP_AT",
    "STOP_AT a node leaves since the PLAN",
    "DRAIN",
    "L14 a leader asks",
    "L14 a leader answers",
    "L14 another leader answers",
    "L14 a node does not answer",
    "OVER",
    "CLOSED 0",
    "CLOSED 1",
    "L1 a node is found that is silent among many",
    "L3 a worker in D state",
    "L4 ten rounds without progress",
    "L6 too few nodes for too long",
    "S4 a node without contact is fenced",
    "S6 a latecomer hears the verdict",
    "S6 a newcomer imports while a round is live",
    "S6 a latecomer reports the verdict on the run that it came for",
    "S6 an abandoned run is closed",
    "S6 another program, or one with other arguments, is refused",
    "a restart is spent",
    "a restart is given back",
    "a lost node ends the job",
    "a host stays cut off",
    "ghost write",
    "request lost before the commit",
    "reply lost after the commit",
    "store full or read-only",
    "the host of an embedded store is gone",
    "workers reach the store, not each other",
    "a host stays without peers",
    "L5 a peer is not reached",
    "L5 every peer is reached",
    "L5 a host is left out",
    "S3 an entry is put back",
    "S3 another history is adopted",
    "S3 RESUME over an empty store",
    "S3 RESUME over another run",
    "S3 RESUME over a run that came before",
    "S3 RESUME of a round that is over",
    "S3 RESUME over what was put back",
    "S3 a node of a run that was lost joins another",
    "S3 two rounds train, and no node can know of it yet",
    "S7 an older amendment comes after a newer one",
    "S7 an amendment that the store lost is sent again",
    "S7 a row that the store lost is entered anew",
    "S7 a node that has not read the newest OPEN or LEADER gets no slot",
    "S8 agents of one host have a slot each",
    "S8 a newer agent on its slot shows that a round is over",
    "S8 a node is lost that a row of its host shows to be gone",
    "S8 a slot that has become free shows that a round is over",
    "S8 a slot that was free shows that a round is over",
    "S4 a voucher for a node",
    "S4 a voucher for a node that lives",
    "S8 a node that was out of touch is taken for gone, and lives",
    "S8 a round trains on that is taken for over",
    "L11 a round is delayed",
    "L12 a host is admitted again",
    "L7 a node that has finished heartbeats until CLOSED",
    "L7 no node joins after the first has finished",
    "L7 a failure starts those again that had finished",
    "L7 a failure lets others join again",
    "L7 a node that has finished is lost, and the others finish",
    "L7 a node that is told to leave may finish as others have",
    "L13 a young round is resized",
    "L13 a node has waited for others",
    "L13 a round is resized right after a checkpoint",
    "L17 a node leaves for its checks",
    "L17 a check fails",
    "L17 a signal ends a check",
    "L17 a notice ends a check",
    "L17 a drain ends a check",
    "L17 a node joins, and has been drained before",
    "an entry is shrunk",
    "over entries that were shrunk",
)
"""Rules and faults that the first plans must come to; the kinds of faults themselves are asked for as well."""


@pytest.mark.timeout(900)
def test_no_plan_is_violated(block: tuple[int, int], played: Played) -> None:
    result = played(*block)
    assert result.plans == block[1]
    assert not result.violations, "\n".join(
        f"{violation}\n  look at it: python -m simulator --number {number} --shrink"
        for number, violation in result.violations[:5]
    )


@pytest.mark.variant
@pytest.mark.timeout(900)
def test_every_rule_and_every_fault_is_reached(played: Played) -> None:
    reached: Counter[str] = Counter()
    for first in range(0, 16_000, 1000):
        reached += played(first, 1000).coverage
    wanted = [*REACHED, *(f"fault {kind}" for kind in KINDS if kind not in BREACHES)]
    assert [what for what in wanted if not reached[what]] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_plan_leads_to_one_course_of_events_whatever_the_hash_seed_and_however_dataclasses_are_made() -> None:
    mutable = "from simulator.mutable_dataclasses import use_mutable_dataclasses as use\nuse()\n"
    digests = [_digests("1"), _digests("2", mutable)]
    assert digests[0] == digests[1]
    assert len(set(digests[0].split())) == 64, "every plan has a course of its own"


def _digests(hash_seed: str, first: str = "") -> str:
    script = (
        f"{first}from simulator import campaign, profiles, play\n"
        "for number in range(64):\n"
        "    print(play.play(profiles.draw(*campaign.parameters_of(number)), traced=True).digest)\n"
    )
    return _python("-c", script, PYTHONHASHSEED=hash_seed).stdout


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_a_plan_that_found_a_defect_is_not_violated(path: Path) -> None:
    outcome = play(Plan.load(path.read_text()), traced=True)
    assert outcome.violation is None, "\n".join(outcome.trace)


@pytest.mark.slow
@pytest.mark.everyday(every=3)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name.replace(" ", "-") for defect in DEFECTS])
def test_a_planted_defect_is_noticed(defect: Defect) -> None:
    result = _python("-m", "simulator.plant", defect.name)
    assert result.returncode == 0, result.stdout + result.stderr


def _python(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Another interpreter, since each can break core in one way only, and has one hash seed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, *args], env=environment, capture_output=True, text=True, check=False)
