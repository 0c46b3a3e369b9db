"""The leader's driver, and what it makes of its own sleep."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from session_parts import leader_of
from views import halted, incident, info, live, offer, seen, settings, start, watch, with_counters

from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.codec import decode_entry, encode_entry, encode_row
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Closed, HaltReason, Round, SpentRestart
from elastic_core.protocol.failure_detector import mark_interrupted
from elastic_core.protocol.ledger import advance, compose, open_ledger
from elastic_core.protocol.repair import compose_resume
from elastic_core.protocol.roster import Phase, Reached
from elastic_core.rendezvous.backend import ORIGIN, Link
from elastic_core.session.leader_driver import ANNOUNCE_WAIT_SECONDS
from elastic_core.session.runtime import Runtime


@pytest.mark.parametrize(("nodes", "gap_at"), [("a", -math.inf), ("ab", 100.0)])
def test_a_long_sleep_is_a_gap_only_to_who_had_somebody_to_look_for(nodes: str, gap_at: float) -> None:
    store, ledger, now = LocalBackend(MemoryStore()), live(nodes), 20.0
    store.append(ORIGIN, (first := start().head).link, encode_entry(first))
    store.append(first.link, ledger.head.link, encode_entry(ledger.head))
    for name in nodes:
        store.enter(name, encode_row(seen(name, Phase.RUNNING, head=2).row))
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), Runtime(now=lambda: now), lambda event: None)
    leader.turn(store, ledger)
    assert leader.alone(ledger) is (nodes == "a")
    now = 100.0
    store.enter("c", encode_row(seen("c", head=0).row))
    leader.turn(store, ledger)
    assert leader.watch.gap_at == gap_at
    assert not leader.alone(ledger)


@pytest.mark.parametrize("lost", [True, False], ids=["with its row", "alone"])
def test_a_lone_leader_does_not_judge_itself_by_what_it_did_not_see(lost: bool) -> None:
    store, ledger, now = LocalBackend(MemoryStore()), live("a"), 20.0
    store.append(ORIGIN, (first := start().head).link, encode_entry(first))
    store.append(first.link, ledger.head.link, encode_entry(ledger.head))
    store.enter("a", encode_row(seen("a", Phase.RUNNING, head=2).row))
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), Runtime(now=lambda: now), lambda event: None)
    leader.turn(store, ledger)
    if lost:
        store.remove("a")
    leader.watch = mark_interrupted(leader.watch)
    now = 100.0
    leader.turn(store, ledger)
    assert store.read(ledger.head.index + 1) is None


def test_a_judgement_and_its_reason_are_published_once() -> None:
    ledger = halted(
        "a",
        HaltReason.FAILURE,
        blame=replace(incident("a"), message="ValueError: boom", exception="ValueError", step=7),
    )
    store, said, now = LocalBackend(MemoryStore()), list[Event](), 20.0
    for entry in (start().head, live("a").head, ledger.head):
        store.append(ORIGIN if entry.index == 1 else Link(entry.index - 1, entry.prev), entry.link, encode_entry(entry))
    store.enter("a", encode_row(seen("a", Phase.STOPPED, head=3).row))
    verdict = Verdict(Action.RESTART, "back-off", delay=8.0, policy="backoff")
    leader = leader_of(lambda *_: verdict, Runtime(now=lambda: now), said.append)
    leader.turn(store, ledger)
    assert leader.turn(store, ledger) is not None
    (event,) = (event for event in said if event.name == "verdict")
    assert event.message == "the job is restarted after 8 s: back-off"
    assert event.fields == {
        "round": 1,
        "kind": "worker_failed",
        "rank": 0,
        "host": "host-a",
        "exception": "ValueError",
        "follows_peer": False,
        "exit_code": 1,
        "step": 7,
        "new_checkpoint": False,
        "moved": False,
        "place": "",
        "after_s": 5.0,
        "message": "ValueError: boom",
        "restarts": 0,
        "max_restarts": 3,
        "action": "restart",
        "reason": "back-off",
        "policy": "backoff",
        "delay_s": 8.0,
        "exclude_for_s": None,
    }
    assert leader.waiting_for == "the delay after the failure to pass (back-off)"
    assert store.read(4) is None
    now = 28.0
    leader.turn(store, ledger)
    assert store.read(4) is not None


def test_a_lone_leader_looks_again_to_say_whom_it_waits_for() -> None:
    store, ledger, said, now = LocalBackend(MemoryStore()), start(settings(2, 3)), list[str](), 20.0
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    store.enter("a", encode_row(seen("a", head=1).row))
    clock = Runtime(now=lambda: now)
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), clock, lambda event: said.append(event.name))
    assert leader.turn(store, ledger) == 20.0 + ANNOUNCE_WAIT_SECONDS
    now = 20.0 + ANNOUNCE_WAIT_SECONDS
    leader.turn(store, ledger)
    assert said == ["waiting"]


def test_a_lost_row_is_no_answer_to_a_run_that_was_resumed() -> None:
    """Its index is of the history that is lost (rule S3); whether the node is still there, it has yet to say."""
    store, ledger = LocalBackend(MemoryStore()), halted("ab", HaltReason.NODE_LEFT)
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), Runtime(now=lambda: 24.0), lambda event: None)
    leader.watch = watch(*(seen(name, Phase.STOPPED, head=3, now=22.0) for name in "ab"), now=22.0)
    body = compose_resume(ledger, "the store came back empty")
    ledger = open_ledger(compose(ledger, body, entry_id="r1", author="a", now=24.0, store=ORIGIN), 24.0)
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    leader.turn(store, ledger)
    assert store.read(2) is None
    for name in "ab":
        store.enter(name, encode_row(seen(name, Phase.STOPPED, head=1, epoch=1).row))
    leader.turn(store, ledger)
    assert store.read(2) is not None


def test_an_offer_from_before_a_resumed_run_is_given_to_no_round() -> None:
    """A round that is lost with the older epoch may have been given it: two rounds would meet at one place (I2)."""
    store, ledger = LocalBackend(MemoryStore()), live("ab")
    body = compose_resume(ledger, "the store came back empty")
    ledger = open_ledger(compose(ledger, body, entry_id="r1", author="a", now=24.0, store=ORIGIN), 24.0)
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), Runtime(now=lambda: 24.0), lambda event: None)
    store.enter("a", encode_row(seen("a", Phase.RUNNING, head=3).row))
    store.enter("b", encode_row(seen("b", Phase.RUNNING, head=1, epoch=1, incident=incident("b")).row))
    leader.turn(store, ledger)
    assert store.read(2) is None
    store.amend("a", 1, encode_row(seen("a", Phase.RUNNING, head=1, epoch=1, offer=offer("a", 3)).row))
    leader.turn(store, ledger)
    data = store.read(2)
    assert data is not None
    following = decode_entry(data).body
    assert isinstance(following, Round)
    assert following.offer == offer("a", 3)


def test_an_entry_that_the_store_has_taken_and_lost_is_put_back_and_not_decided_anew() -> None:
    """Another node may have read it, and have started its workers, before the store lost it."""
    memory, ledger, now = MemoryStore(), start(settings(1, 3)), 20.0
    store = LocalBackend(memory)
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    for name in "ab":
        store.enter(name, encode_row(seen(name, head=1).row))
    ids = iter("xy")
    clock = Runtime(now=lambda: now, new_id=lambda: next(ids))
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), clock, lambda event: None)
    leader.turn(store, ledger)
    now = 30.0
    leader.turn(store, ledger)
    (taken,) = memory.entries[1:]
    memory.entries.remove(taken)
    store.remove("b")
    store.enter("c", encode_row(seen("c", head=1).row))
    leader.turn(store, ledger)
    assert memory.entries[1:] == [taken]
    after = advance(ledger, decode_entry(taken[1]), now)
    assert after.round is not None
    assert list(after.round.group_ranks) == ["a", "b"]


@pytest.mark.parametrize("kept", [True, False], ids=["reads are stale", "entries are not kept"])
def test_a_store_that_takes_an_entry_and_does_not_show_it_is_asked_ever_more_seldom(kept: bool) -> None:
    """The leader would ask as fast as the store answers, for as long as that lasts."""
    memory, ledger, now = MemoryStore(), start(settings(1, 1)), 20.0
    store = LocalBackend(memory)
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    store.enter("a", encode_row(seen("a", head=1).row))
    clock = Runtime(now=lambda: now, new_id=lambda: "x")
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), clock, lambda event: None)
    asked = list[float]()
    while now < 30.0:
        at = leader.turn(store, ledger)  # the same ledger as before, however often it is read
        assert at is not None
        if len(memory.entries) > 1 and not kept:
            memory.entries.pop()
            asked.append(now)
        elif at > now:
            asked.append(now)
        now = max(now, at) + 0.001
    apart = [after - before for before, after in pairwise(asked)]
    assert 5 <= len(asked) <= 12
    assert apart == sorted(apart)


def test_an_entry_that_fits_into_no_value_ends_the_run_and_says_why() -> None:
    """It would not fit for the successor either: each would fail in turn, one every six seconds."""
    store, ledger = LocalBackend(MemoryStore()), start(settings(3000, 3000))
    store.append(ORIGIN, ledger.head.link, encode_entry(ledger.head))
    for number in range(3000):
        here = info(f"{number:04}", number, role=f"{number:04}" + "r" * 80)  # no two nodes of a kind
        store.enter(here.node_id, encode_row(seen("a", node=here, offer=offer("a")).row))
    clock = Runtime(now=lambda: 20.0, new_id=lambda: "x")
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), clock, lambda event: None)
    leader.turn(store, ledger)
    data = store.read(2)
    assert data is not None
    closed = decode_entry(data).body
    assert isinstance(closed, Closed)
    says = r"The value for entry 2, a ROUND of 3000 nodes, has \d+ bytes; at most \d+ are allowed\."
    assert re.fullmatch(says, closed.why)


NEVER_ANSWERED = """
import threading
from views import seen, watch
from elastic_core.session.leader_driver import PluginQuestions
from elastic_core.session.runtime import RUNTIME
from elastic_core.session.state import SessionCalls

asked = threading.Event()

def node_gone(node):
    asked.set()
    threading.Event().wait()

questions = PluginQuestions(RUNTIME, SessionCalls(print, print, None, print, node_gone=node_gone))
questions.ask_who_is_gone(["b"], watch(seen("b")))
asked.wait()
"""


def test_a_question_that_no_plugin_answers_does_not_keep_the_agent_from_ending() -> None:
    """Plugins are asked about one node after the other: that can take longer than the agent lives."""
    views = Path(__file__).parents[1] / "protocol"
    subprocess.run([sys.executable, "-c", NEVER_ANSWERED], cwd=views, check=True, timeout=20.0)


def test_a_leader_that_tidies_up_over_a_slow_store_still_answers_an_incident_in_time() -> None:
    """Those who reported it depose a leader that takes longer than a second (rule L2)."""
    now = 20.0

    class Slow(LocalBackend):
        def remove(self, node_id: str) -> None:
            nonlocal now
            now += 0.2
            super().remove(node_id)

    store, ledger = Slow(MemoryStore()), live("a")
    store.append(ORIGIN, (first := start().head).link, encode_entry(first))
    store.append(first.link, ledger.head.link, encode_entry(ledger.head))
    store.enter("a", encode_row(seen("a", Phase.RUNNING, head=2).row))
    for number in range(20):
        store.enter(f"lost-{number}", encode_row(seen(f"lost-{number}", head=0).row))
    leader = leader_of(lambda *_: Verdict(Action.RESTART, ""), Runtime(now=lambda: now), lambda event: None)
    took = []
    while len(store.roster()) > 1 and now < 200.0:
        before = now
        leader.turn(store, ledger)
        took.append(now - before)
        now += 1.0
    assert len(store.roster()) == 1
    assert max(took) < 1.0


@pytest.mark.parametrize(
    ("own", "row", "known", "step", "moved"),
    [
        (None, None, None, None, False),
        (Reached(1, 90, moved=True), None, None, 90, True),
        (None, Reached(1, 90), None, 90, False),
        (None, Reached(1, 50), None, None, False),
        (Reached(1, 50), None, None, 50, False),
        (None, Reached(1, 90), 70, 90, False),
        (Reached(0, 90), Reached(0, 90), None, None, False),
    ],
    ids=[
        "nothing",
        "the leader's",
        "a row's",
        "an old row's",
        "the leader's old",
        "the incident's",
        "of another round",
    ],
)
def test_the_policies_hear_of_the_newest_step_of_any_rank(
    own: Reached | None, row: Reached | None, known: int | None, step: int | None, moved: bool
) -> None:
    blame = replace(incident("b"), message="ValueError: boom", step=known)
    past = SpentRestart(failure=replace(as_record(incident("a")), round=0, step=60), age=1.0)
    ledger = with_counters(live("ab", at=19.0), failures=(past,))
    heard: list[tuple[Incident, History]] = []

    def judge(about: Incident, history: History) -> Verdict:
        heard.append((about, history))
        return Verdict(Action.GIVE_UP, "")

    store = LocalBackend(MemoryStore())
    for entry in (start().head, ledger.head):
        store.append(ORIGIN if entry.index == 1 else Link(1, entry.prev), entry.link, encode_entry(entry))
    store.enter("a", encode_row(seen("a", Phase.RUNNING, head=2, reached=row).row))
    store.enter("b", encode_row(seen("b", Phase.STOPPED, head=2, incident=blame).row))
    leader = leader_of(judge, Runtime(now=lambda: 20.0), lambda event: None, reached=lambda: own)
    leader.turn(store, ledger)
    [(about, history)] = heard
    assert (about.step, history.moved) == (step, moved)


@pytest.mark.parametrize(
    ("nodes", "least", "what"),
    [
        ("a", 1, "the job is restarted; host-a would be left out, but no other node is there"),
        (
            "ab",
            2,
            "the job is restarted; host-a would be left out, but without it only 1 of 2 nodes would be there",
        ),
        ("ab", 1, "the job is restarted without host-a for 60 s"),
    ],
)
def test_an_exclusion_without_effect_says_that_it_has_none(nodes: str, least: int, what: str) -> None:
    ledger = halted(nodes, HaltReason.FAILURE, settings(least, 2), blame=incident("a"))
    store, said = LocalBackend(MemoryStore()), list[Event]()
    for entry in (start(settings(least, 2)).head, live(nodes, settings(least, 2)).head, ledger.head):
        store.append(ORIGIN if entry.index == 1 else Link(entry.index - 1, entry.prev), entry.link, encode_entry(entry))
    for name in nodes:
        store.enter(name, encode_row(seen(name, Phase.STOPPED, head=3).row))
    verdict = Verdict(Action.EXCLUDE_HOST, "it failed first", exclude_for=60.0, policy="quarantine")
    leader = leader_of(lambda *_: verdict, Runtime(now=lambda: 20.0), said.append)
    leader.turn(store, ledger)
    leader.turn(store, ledger)
    assert [event.message for event in said if event.name == "verdict"] == [f"{what}: it failed first"]
