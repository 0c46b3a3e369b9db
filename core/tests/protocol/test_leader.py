"""The leader's rules, one table row or test each; names follow docs/internals/protocol.md."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from test_repair import resumed
from views import halted, incident, info, live, members, offer, seen, settings, start, then, watch, with_counters

from elastic_core.config.parse import OnNodeLoss
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Closed, Exclusion, Halt, HaltReason, HostLosses, Leader, Round, SpentRestart
from elastic_core.protocol.failure_detector import DeposedLeader, NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import MAX_BARREN_ROUNDS, Append, AskPolicies, Decision, LookAgain
from elastic_core.protocol.leader_view import Judgement, LeaderView, drop_unreachable, sort_by_rank
from elastic_core.protocol.ledger import Ledger, restore_ledger
from elastic_core.protocol.roster import Phase, Reached, Slots

NOW = 100.0
RESTART = Verdict(Action.RESTART, "restarts are left")
GIVE_UP = Verdict(Action.GIVE_UP, "no restart is left")
THRICE = HostLosses(3, 0.0)


def view(ledger: Ledger, *nodes: NodeView, now: float = NOW, verdict: Verdict | None = None, **more: Any) -> LeaderView:
    if verdict is not None:
        more["judgement"] = Judgement(round=ledger.round.number if ledger.round else 1, verdict=verdict)
    return LeaderView(ledger=ledger, watch=watch(*nodes, now=now), now=now, **more)


def body(decision: Decision) -> Any:
    assert isinstance(decision, Append), decision
    return decision.body


def losses_of(decision: Decision) -> dict[str, int]:
    assert isinstance(decision, Append), decision
    return {host: losses.count for host, losses in decision.counters.losses.items()}


def ids(sealed: Round) -> str:
    return "".join(member.node_id for member in sealed.members)


def running(name: str, head: int = 2, **more: Any) -> NodeView:
    return seen(name, Phase.RUNNING, head=head, **more)


def stopped(name: str, head: int = 3, **more: Any) -> NodeView:
    return seen(name, Phase.STOPPED, head=head, **more)


class TestForming:
    def test_seals_at_once_when_the_maximum_is_there(self) -> None:
        ledger = start(settings(min_nodes=2, max_nodes=2))
        sealed = body(decide(view(ledger, seen("a", arrived=NOW), seen("b", arrived=NOW))))
        assert (ids(sealed), sealed.number, sealed.offer) == ("ab", 1, offer("a", 2))

    def test_waits_one_last_call_after_the_last_arrival_once_the_minimum_is_there(self) -> None:
        ledger = start(settings(min_nodes=1, max_nodes=2, last_call_timeout=1.5))
        nodes = [seen("a", arrived=NOW - 1)]
        assert decide(view(ledger, *nodes)) == LookAgain(NOW + 0.5)
        assert ids(body(decide(view(ledger, *nodes, now=NOW + 0.5)))) == "a"

    @pytest.mark.parametrize(
        ("addresses", "met"),
        [
            pytest.param({"a": "10.0.0.1", "b": "10.0.0.2"}, "ab", id="both reach each other"),
            pytest.param({"a": "127.0.0.1", "b": "10.0.0.2"}, "", id="b would meet itself at the address of a"),
            pytest.param({"a": "10.0.0.1", "b": "127.0.0.1"}, "", id="a may come to b's address"),
            pytest.param({"a": "127.0.0.1", "b": "127.0.0.1"}, "", id="both would train alone"),
            pytest.param({"a": "127.0.0.1", "c": "127.0.0.1"}, "ac", id="they are in one network"),
            pytest.param({"a": "127.0.0.1", "d": "::1"}, "ad", id="nothing is known of the other's network"),
        ],
    )
    def test_nodes_of_two_networks_do_not_meet_where_one_is_at_its_loopback(
        self, addresses: dict[str, str], met: str
    ) -> None:
        networks = {"a": "one", "b": "two", "c": "one", "d": ""}
        every = {name: replace(info(name), address=at, network=networks[name]) for name, at in addresses.items()}
        nodes = [seen(name, node=node, arrived=NOW) for name, node in every.items()]
        found = decide(view(start(settings(min_nodes=2, max_nodes=2)), *nodes))
        if met:
            assert ids(body(found)) == met
        else:
            assert isinstance(found, LookAgain)
            loops = [name for name, at in addresses.items() if at == "127.0.0.1"]
            who = ", ".join(f"host-{name}" for name in loops)
            closed = f"no other host reaches {who} at 127.0.0.1: start it with --local_addr=ADDRESS"
            assert f"({closed})" in found.waiting
            late = start(settings(min_nodes=2, max_nodes=2, join_timeout=50))
            assert body(decide(view(late, *nodes))).why.endswith(f"; {closed}")

    @pytest.mark.parametrize(
        ("address", "joins"), [("127.0.0.1", False), ("10.0.0.1", True)], ids=["at its loopback", "at an address"]
    )
    def test_a_node_of_another_network_joins_no_member_that_is(self, address: str, joins: bool) -> None:
        a = replace(info("a"), address=address, network="one")
        c = replace(info("c"), address="10.0.0.3", network="two")
        found = decide(view(live("a"), running("a", node=a), seen("c", head=2, node=c)))
        assert isinstance(found, Append) is joins

    def test_members_that_do_not_reach_each_other_keep_out_nodes_of_either_network(self) -> None:
        """They may be in one round all the same, where one was silent when the other came."""
        networks = {"a": ("127.0.0.1", "one"), "b": ("10.0.0.2", "two"), "c": ("127.0.0.1", "one")}
        a, b, c, d = (
            seen(name, node=replace(info(name), address=address, network=network))
            for name, (address, network) in {**networks, "d": ("10.0.0.4", "two")}.items()
        )
        assert (drop_unreachable([a], [c]), drop_unreachable([a, b], [c, d])) == ([c], [])

    def test_ranks_go_by_the_order_that_nodes_have_from_a_scheduler(self) -> None:
        orders = {"b": "", "a": "s1.n10", "c": "s1.n9", "d": "s0.n11", "e": "s1.n9.x", "g": "7"}
        nodes = [seen(name, node=replace(info(name), order=order)) for name, order in orders.items()]
        assert [node.node_id for node in sort_by_rank(nodes)] == ["g", "d", "c", "e", "a", "b"]
        assert [node.node_id for node in sort_by_rank(nodes, ("a", "b"))] == ["b", "a", "g", "d", "c", "e"], (
            "they stay first, as they are"
        )
        assert [node.node_id for node in sort_by_rank(nodes, ("c", "d"))][:2] == ["c", "d"], "also against their orders"
        numbered = [*nodes, seen("f", node=replace(info("f"), node_rank=0, order="s9"))]
        assert sort_by_rank(numbered)[0].node_id == "f"

    def test_ranks_go_by_order_of_arrival(self) -> None:
        ledger = start(settings(min_nodes=2, max_nodes=2))
        assert ids(body(decide(view(ledger, seen("a", serial=9), seen("b", serial=3))))) == "ba"

    def test_takes_no_more_than_the_maximum(self) -> None:
        ledger = start(settings(max_nodes=2))
        assert ids(body(decide(view(ledger, seen("a"), seen("b"), seen("c"))))) == "ab"

    @pytest.mark.parametrize(
        ("why", "stranger"),
        [
            ("has not seen the OPEN (S7)", seen("b", head=0)),
            ("belongs to another run", replace(seen("b"), row=replace(seen("b").row, run="old"))),
            ("is leaving", seen("b", leaving=True)),
            ("is lost", seen("b", changed=NOW - 7)),
            ("has no offer yet", seen("b", offer=None)),
            ("has taken its row out", replace(seen("b"), listed=False)),
        ],
    )
    def test_gives_no_place_to_a_node_that(self, why: str, stranger: NodeView) -> None:
        ledger = start(settings(max_nodes=2))
        assert ids(body(decide(view(ledger, seen("a"), stranger)))) == "a", why

    def test_a_store_that_can_forget_settles_before_the_first_round(self) -> None:
        ledger = start(settings(min_nodes=1, max_nodes=1))
        assert decide(view(ledger, seen("a", now=1.0), now=1.0, may_forget=True)) == LookAgain(4.0)
        assert ids(body(decide(view(ledger, seen("a", now=4.0), now=4.0, may_forget=True)))) == "a"

    def test_says_whom_it_waits_for(self) -> None:
        decision = decide(view(start(settings(min_nodes=3)), seen("a")))
        assert isinstance(decision, LookAgain)
        assert decision.waiting == "2 more node(s), for up to 500 s"

    def test_closes_at_the_join_timeout_and_names_who_came(self) -> None:
        ledger = start(settings(min_nodes=2, join_timeout=100))
        closed = body(decide(view(ledger, seen("a"))))
        assert closed == Closed(
            success=False,
            why="1 of at least 2 nodes are here after 100 s (host-a); 1 more never came",
            exit_code=ExitCode.TOO_FEW_NODES,
        )


class TestLiveRound:
    def test_nothing_to_do_while_all_is_well_until_the_first_could_be_lost(self) -> None:
        assert decide(view(live("ab"), running("a"), running("b", changed=NOW - 2))) == LookAgain(NOW + 4)

    def test_closes_with_success_when_all_have_finished(self) -> None:
        done = [seen(name, Phase.FINISHED, head=2) for name in "ab"]
        assert body(decide(view(live("ab"), *done))).success

    def test_finished_stands_even_if_the_node_is_lost(self) -> None:
        done = [seen("a", Phase.FINISHED, head=2), seen("b", Phase.FINISHED, head=2, changed=0.0)]
        assert body(decide(view(live("ab"), *done))).success

    def test_a_lost_node_halts_the_round_and_is_named(self) -> None:
        halt = body(decide(view(live("ab"), running("a"), running("b", changed=NOW - 6.5))))
        assert (halt.reason, halt.incident.kind) == (HaltReason.NODE_LOST, IncidentKind.NODE_LOST)
        assert halt.why == "host-b is lost: no heartbeat for 6.5 s"

    def test_a_lost_node_that_had_finished_changes_nothing(self) -> None:
        nodes = [running("a"), seen("b", Phase.FINISHED, head=2, changed=0.0)]
        assert isinstance(decide(view(live("ab"), *nodes)), LookAgain)

    def test_a_newer_incarnation_of_a_slot_proves_the_older_one_dead_within_a_heartbeat_and_a_half(self) -> None:
        """Until then it is not known whether the round is to be resized or has lost a member."""
        again = seen("c", node=info("c", host="host-b", slots=Slots(100)))
        nodes = [running("a"), running("b", changed=NOW - 2.0), again]
        assert decide(view(live("ab"), *nodes)) == LookAgain(NOW + 1.0)
        halt = body(decide(view(live("ab"), *nodes, now=NOW + 1.0)))
        assert (halt.reason, halt.incident.node_id) == (HaltReason.NODE_LOST, "b")
        assert halt.why.startswith("host-b is lost: its last process is gone")

    def test_a_leaving_node_halts_the_round(self) -> None:
        halt = body(decide(view(live("ab"), running("a"), running("b", leaving=True))))
        assert (halt.reason, halt.why) == (HaltReason.NODE_LEFT, "host-b leaves")

    def test_a_node_that_fenced_itself_halts_the_round(self) -> None:
        assert body(decide(view(live("ab"), running("a"), stopped("b", head=2)))).reason is HaltReason.NODE_LEFT

    def test_a_member_that_does_not_show_that_it_saw_the_round_halts_it(self) -> None:
        ledger = live("ab", at=NOW - 1)
        nodes = [running("a"), seen("b", head=1)]
        assert decide(view(ledger, *nodes, now=NOW - 0.5)) == LookAgain(NOW)
        assert body(decide(view(ledger, *nodes))).reason is HaltReason.UNSEEN

    def test_no_node_is_suspected_while_others_still_answer(self) -> None:
        ledger = live("abc", at=NOW - 5)
        nodes = [running("a", seen_at=NOW - 5), running("b", seen_at=NOW - 0.2), seen("c", head=1)]
        assert decide(view(ledger, *nodes)) == LookAgain(NOW - 0.2 + 1.0)
        nodes = [running("a", seen_at=NOW - 5), running("b", seen_at=NOW - 1.0), seen("c", head=1)]
        assert body(decide(view(ledger, *nodes))).reason is HaltReason.UNSEEN

    def test_patience_grows_with_the_worst_delay_that_the_job_has_known(self) -> None:
        ledger = with_counters(live("ab", at=NOW - 1), worst_seen=1.2)
        assert decide(view(ledger, running("a"), seen("b", head=1))) == LookAgain(NOW - 1 + 3.6)

    @pytest.mark.parametrize(("seen_at", "worst"), [(10.7, 0.698), (10.002, 0.0), (10.001, 0.0)])
    def test_the_worst_delay_is_remembered_but_for_what_a_round_is_kept_to_oneself(
        self, seen_at: float, worst: float
    ) -> None:
        decision = decide(view(live("ab"), running("a"), running("b", changed=0.0, seen_at=seen_at)))
        assert isinstance(decision, Append)
        assert decision.counters.worst_seen == worst


class TestNewcomers:
    def test_a_newcomer_resizes_a_round_that_has_room(self) -> None:
        halt = body(decide(view(live("a"), running("a"), seen("b", head=2))))
        assert halt.reason is HaltReason.RESIZE

    def test_a_full_round_is_left_alone(self) -> None:
        ledger = live("ab", settings(max_nodes=2))
        assert isinstance(decide(view(ledger, running("a"), running("b"), seen("c"))), LookAgain)

    def test_no_node_joins_after_the_first_finished(self) -> None:
        nodes = [seen("a", Phase.FINISHED, head=2), running("b"), seen("c")]
        assert isinstance(decide(view(live("ab"), *nodes)), LookAgain)

    def test_resizes_are_batched(self) -> None:
        ledger = halted("a", HaltReason.RESIZE, at=NOW - 7)
        ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=NOW - 5)
        nodes = [running(name, number=2, head=4, offer=offer(name, 3)) for name in "ab"]
        resized_with_cost_of_two_seconds = NOW - 5 + 10 * 2
        assert decide(view(ledger, *nodes, seen("c", head=4), now=NOW - 1)) == LookAgain(NOW + 6)
        late = resized_with_cost_of_two_seconds
        nodes = [running(name, number=2, head=4, now=late, offer=offer(name, 3)) for name in "ab"]
        assert body(decide(view(ledger, *nodes, seen("c", head=4, now=late), now=late))).reason is HaltReason.RESIZE

    @pytest.mark.parametrize(("gap_at", "allowed_at"), [(NOW - 50, NOW + 170), (NOW - 20, NOW + 5)])
    def test_the_cost_of_a_resize_while_the_leader_was_cut_off_says_nothing_of_the_next(
        self, gap_at: float, allowed_at: float
    ) -> None:
        ledger = halted("a", HaltReason.RESIZE, at=NOW - 22.5)
        ledger = then(ledger, Round(number=2, offer=offer("a", 2), members=members("ab")), at=NOW - 5)
        nodes = [running(name, number=2, head=4, now=allowed_at, offer=offer(name, 3)) for name in "ab"]
        known = view(ledger, *nodes, seen("c", head=4, now=allowed_at))
        known = replace(known, watch=replace(known.watch, gap_at=gap_at))
        assert isinstance(decide(replace(known, now=allowed_at - 0.1)), LookAgain)
        assert body(decide(replace(known, now=allowed_at))).reason is HaltReason.RESIZE

    def test_a_host_that_was_lost_three_times_is_left_out_while_others_suffice(self) -> None:
        ledger = with_counters(live("a"), losses={"id-host-b": THRICE})
        assert isinstance(decide(view(ledger, running("a"), seen("b", head=2))), LookAgain)
        needy = with_counters(live("a", settings(min_nodes=2)), losses={"id-host-b": THRICE})
        assert body(decide(view(needy, running("a"), seen("b", head=2)))).reason is HaltReason.RESIZE

    def test_where_a_member_is_others_are_welcome_whatever_the_host_has_lost(self) -> None:
        ledger = with_counters(live("a"), losses={"id-host-a": THRICE})
        b = seen("b", head=2)
        beside = replace(b, row=replace(b.row, info=replace(b.row.info, host_id="id-host-a", slot=1)))
        assert body(decide(view(ledger, running("a"), beside))).reason is HaltReason.RESIZE

    def test_a_node_that_stopped_for_a_newcomer_stays_whatever_its_host_has_lost(self) -> None:
        ledger = with_counters(
            halted("a", HaltReason.RESIZE, settings(1, 3)), losses={"id-host-a": THRICE, "id-host-c": THRICE}
        )
        nodes = [stopped("a"), seen("b", head=3), seen("c", head=3)]
        assert ids(body(decide(view(ledger, *nodes)))) == "ab"


class TestWorkerFailure:
    def test_asks_the_policies_first(self) -> None:
        broken = incident("b")
        assert decide(view(live("ab"), running("a"), running("b", incident=broken))) == AskPolicies(broken)

    def test_asks_about_the_first_failure_not_the_first_report(self) -> None:
        late, early = incident("a", after=5.2), incident("b", after=5.1)
        assert decide(view(live("ab"), running("a", incident=late), running("b", incident=early))) == AskPolicies(early)

    def test_one_entry_restarts_a_round_whose_members_all_stay(self) -> None:
        decision = decide(view(live("ab"), running("a"), running("b", incident=incident("b")), verdict=RESTART))
        sealed = body(decision)
        assert (sealed.number, sealed.same_as, sealed.members, sealed.charged) == (2, 1, (), True)
        assert sealed.offer == offer("a", 2)
        assert isinstance(decision, Append)
        assert decision.counters.restarts == 1

    def test_a_member_that_has_not_seen_the_round_yet_may_see_the_next_as_well(self) -> None:
        ledger = live("ab", at=NOW - 0.1)
        nodes = [running("a", incident=incident("a")), seen("b", head=1)]
        assert body(decide(view(ledger, *nodes, verdict=RESTART))).same_as == 1

    @pytest.mark.parametrize("gap_at", [-math.inf, NOW - 0.4])
    def test_waits_for_rank_zeros_next_offer(self, gap_at: float) -> None:
        used = running("a", offer=offer("a", 1))
        broken = running("b", incident=incident("b"))
        waits = view(live("ab", at=NOW - 0.2), used, broken, verdict=RESTART)
        found = decide(replace(waits, watch=replace(waits.watch, gap_at=gap_at)))
        assert found == LookAgain(NOW - 0.2 + 0.5), "whoever reported it gives the leader a second"

    @pytest.mark.parametrize(
        ("why", "other"),
        [
            ("a member is lost", [running("a", changed=0.0)]),
            ("a member is leaving", [running("a", leaving=True)]),
            ("a newcomer waits", [running("a"), seen("c", head=2)]),
        ],
    )
    def test_halts_before_the_next_round_when(self, why: str, other: list[NodeView]) -> None:
        halt = body(decide(view(live("ab"), *other, running("b", incident=incident("b")), verdict=RESTART)))
        assert (type(halt), halt.reason) == (Halt, HaltReason.FAILURE), why

    def test_halts_first_where_the_next_round_uses_the_same_store(self) -> None:
        shared = replace(offer("a", 2), port=offer("a", 1).port)
        nodes = [running("a", offer=shared), running("b", incident=incident("b"))]
        assert body(decide(view(live("ab"), *nodes, verdict=RESTART))).reason is HaltReason.FAILURE
        alone = running("a", offer=shared, incident=incident("a"))
        assert body(decide(view(live("a"), alone, verdict=RESTART))).same_as == 1, "its workers are gone before"

    def test_halts_while_slow_policies_think(self) -> None:
        thinking = Judgement(round=1)
        nodes = [running("a"), running("b", incident=incident("b"))]
        assert body(decide(view(live("ab"), *nodes, judgement=thinking))).reason is HaltReason.FAILURE
        ledger = halted("ab", HaltReason.FAILURE, blame=incident("b"))
        nodes = [stopped("a"), stopped("b", incident=incident("b"))]
        assert decide(view(ledger, *nodes, judgement=thinking)) == LookAgain(None)

    def test_a_taken_port_spends_no_restart_and_asks_nobody(self) -> None:
        taken = incident("a", kind=IncidentKind.PORT_TAKEN)
        decision = decide(view(live("ab"), running("a", incident=taken), running("b")))
        assert isinstance(decision, Append)
        assert (body(decision).same_as, body(decision).charged, decision.counters.restarts) == (1, False, 0)

    def test_giving_up_halts_first(self) -> None:
        halt = body(decide(view(live("ab"), running("a"), running("b", incident=incident("b")), verdict=GIVE_UP)))
        assert (halt.reason, halt.verdict, halt.requeue) == (HaltReason.GIVING_UP, GIVE_UP.reason, False)


class TestGivingUp:
    blame = incident("b", after=5.2)

    def ledger(self, **more: Any) -> Ledger:
        return halted("ab", HaltReason.GIVING_UP, settings(max_restarts=0, **more), at=NOW - 0.5, blame=self.blame)

    def test_closes_with_the_first_cause_when_all_have_answered(self) -> None:
        first = incident("a", after=5.1)
        nodes = [stopped("a", incident=first), stopped("b", incident=self.blame)]
        closed = body(decide(view(self.ledger(), *nodes, verdict=GIVE_UP)))
        assert closed == Closed(success=False, why=GIVE_UP.reason, exit_code=ExitCode.JOB_FAILED, incident=first)

    def test_closes_with_what_does_not_follow_from_a_peers_loss_whatever_the_clocks_say(self) -> None:
        peer = replace(incident("a", after=4.9), message="RuntimeError: Connection closed by peer", follows_peer=True)
        killed = replace(incident("b", after=5.2), exit_code=-9)
        ledger = halted("ab", HaltReason.GIVING_UP, settings(max_restarts=0), at=NOW - 0.5, blame=peer)
        nodes = [stopped("a", incident=peer), stopped("b", incident=killed)]
        assert body(decide(view(ledger, *nodes, verdict=GIVE_UP))).incident == killed

    def test_a_rank_that_exited_early_explains_a_peers_loss_and_another_try_would_not_help(self) -> None:
        peer = replace(incident("a", after=4.9), message="RuntimeError: Connection closed by peer", follows_peer=True)
        early = replace(incident("b", after=5.2, kind=IncidentKind.EXITED_EARLY), exit_code=0)
        ledger = halted("ab", HaltReason.GIVING_UP, settings(max_restarts=0), at=NOW - 0.5, blame=peer, requeue=True)
        nodes = [stopped("a", incident=peer), stopped("b", incident=early)]
        closed = body(decide(view(ledger, *nodes)))
        assert (closed.incident, closed.exit_code, closed.why) == (early, ExitCode.JOB_FAILED, GIVE_UP.reason)
        closed = body(decide(view(ledger, nodes[0], stopped("b"))))
        assert (closed.incident, closed.exit_code) == (peer, ExitCode.REQUEUE)

    def test_a_node_that_had_finished_explains_a_peers_loss(self) -> None:
        peer = replace(incident("a", after=4.9), message="RuntimeError: Connection closed by peer", follows_peer=True)
        ledger = halted("ab", HaltReason.GIVING_UP, settings(max_restarts=0), at=NOW - 0.5, blame=peer, requeue=True)
        nodes = [stopped("a", incident=peer), seen("b", Phase.FINISHED, head=3)]
        closed = body(decide(view(ledger, *nodes)))
        assert (closed.incident, closed.exit_code) == (peer, ExitCode.JOB_FAILED)
        assert closed.why == ("no restart is left; all workers of host-b had exited with code 0 before the other ranks")
        ledger = halted(
            "ab", HaltReason.GIVING_UP, settings(max_restarts=0), at=NOW - 0.5, blame=self.blame, requeue=True
        )
        nodes = [stopped("a", incident=self.blame), nodes[1]]
        closed = body(decide(view(ledger, *nodes)))
        assert (closed.why, closed.exit_code) == ("no restart is left", ExitCode.REQUEUE)

    def test_a_leader_that_has_not_asked_the_policies_closes_with_their_verdict(self) -> None:
        nodes = [running("a"), running("b", incident=self.blame)]
        halt = body(decide(view(live("ab"), *nodes, verdict=replace(GIVE_UP, requeue=True))))
        ledger = then(then(live("ab"), halt, at=NOW - 1.0), Leader(why="the old one is gone"), at=NOW - 0.5, leader="b")
        nodes = [stopped("a", head=4), stopped("b", head=4, incident=self.blame)]
        closed = body(decide(view(ledger, *nodes)))
        assert (closed.why, closed.exit_code, closed.requeue) == (GIVE_UP.reason, ExitCode.REQUEUE, True)

    def test_ranks_that_failed_alike_are_counted(self) -> None:
        first, other = (replace(incident(name), message="KeyError: 'label'") for name in "ab")
        ledger = halted("abc", HaltReason.GIVING_UP, settings(max_restarts=0), at=NOW - 0.5, blame=first)
        peer = replace(incident("c"), message="RuntimeError: Connection closed by peer", follows_peer=True)
        nodes = [stopped("a", incident=first, alike=1), stopped("b", incident=other, alike=2)]
        closed = body(decide(view(ledger, *nodes, stopped("c", alike=1), verdict=GIVE_UP)))
        assert closed.why == "no restart is left; 4 of 6 ranks failed alike"
        closed = body(decide(view(ledger, *nodes, stopped("c", incident=peer, alike=1), verdict=GIVE_UP)))
        assert closed.why == "no restart is left; 3 of 6 ranks failed alike"
        closed = body(decide(view(ledger, nodes[0], stopped("b", alike=1), stopped("c"), verdict=GIVE_UP)))
        assert closed.why == "no restart is left; 2 of 6 ranks failed alike"
        nodes = [nodes[0], stopped("b"), stopped("c")]
        assert body(decide(view(ledger, *nodes, verdict=GIVE_UP))).why == "no restart is left"

    def test_waits_for_everybodys_report(self) -> None:
        nodes = [running("a", head=2), stopped("b", incident=self.blame)]
        assert decide(view(self.ledger(), *nodes, verdict=GIVE_UP)) == LookAgain(NOW + 0.5)

    def test_a_failure_that_came_with_a_lost_node_does_not_end_the_job(self) -> None:
        nodes = [running("a", head=2, changed=0.0), stopped("b", incident=self.blame)]
        decision = decide(view(self.ledger(), *nodes, verdict=GIVE_UP))
        assert isinstance(decision, Append)
        assert (ids(body(decision)), body(decision).charged, decision.counters.restarts) == ("b", False, 0)
        assert losses_of(decision) == {"id-host-a": 1}

    def test_suspicion_is_enough_for_that(self) -> None:
        nodes = [running("a", head=2, now=NOW + 0.6), stopped("b", now=NOW + 0.6, incident=self.blame)]
        assert ids(body(decide(view(self.ledger(), *nodes, verdict=GIVE_UP, now=NOW + 0.6)))) == "b"

    def test_a_new_leader_that_never_heard_the_verdict_still_closes(self) -> None:
        nodes = [stopped("a"), stopped("b", incident=self.blame)]
        assert not body(decide(view(self.ledger(), *nodes))).success


class TestReforming:
    def test_waits_for_every_member_to_stop(self) -> None:
        ledger = halted("ab", HaltReason.RESIZE)
        assert isinstance(decide(view(ledger, stopped("a"), running("b", head=3))), LookAgain)

    @pytest.mark.parametrize(
        ("spares", "follows", "head", "after"),
        [
            pytest.param("c", True, 2, 0.25, id="a spare waits"),
            pytest.param("", True, 2, 1.0, id="none waits"),
            pytest.param("c", False, 2, 1.0, id="the failure is no consequence"),
            pytest.param("c", True, 3, 1.0, id="it is not silent, but stops its workers"),
        ],
    )
    def test_a_silent_member_is_replaced_soon_where_a_spare_waits_and_only_its_loss_was_noticed(
        self, spares: str, follows: bool, head: int, after: float
    ) -> None:
        failure = replace(incident("a"), follows_peer=follows)
        ledger = halted("ab", HaltReason.FAILURE, settings(min_nodes=1, max_nodes=2), blame=failure, at=NOW - 0.01)
        nodes = [seen("a", Phase.STOPPED, head=3, incident=failure), running("b", head=head)]
        found = decide(view(ledger, *nodes, *(seen(name, head=3) for name in spares), verdict=RESTART))
        assert isinstance(found, LookAgain)
        assert found.at == pytest.approx(NOW - 0.01 + after)

    def test_no_member_is_replaced_soon_that_may_not_know_that_the_run_was_resumed(self) -> None:
        failure = replace(incident("a"), follows_peer=True)
        ledger = resumed(halted("ab", HaltReason.FAILURE, settings(min_nodes=1, max_nodes=2), blame=failure))
        nodes = [stopped("a", head=1, incident=failure), running("b", head=0), seen("c", head=1)]
        known = replace(view(ledger, *nodes, verdict=RESTART), now=ledger.head_at + 0.5)
        assert decide(known) == LookAgain(ledger.head_at + 6.0)

    def test_survivors_keep_their_order_and_come_first(self) -> None:
        ledger = halted("cab", HaltReason.NODE_LEFT)
        nodes = [
            stopped("b", serial=1),
            stopped("c", serial=5),
            seen("d", head=3, serial=2),
            stopped("a", leaving=True),
        ]
        assert ids(body(decide(view(ledger, *nodes)))) == "cbd"

    def test_there_is_no_last_call(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LOST, settings(max_nodes=2, last_call_timeout=30), at=NOW)
        assert ids(body(decide(view(ledger, stopped("a"), running("b", changed=0.0))))) == "a"

    def test_a_member_that_does_not_answer_is_suspected_and_left_out(self) -> None:
        ledger = halted("ab", HaltReason.UNSEEN, at=NOW - 0.9)
        nodes = [stopped("a"), running("b", head=2)]
        assert decide(view(ledger, *nodes)) == LookAgain(NOW - 0.9 + 1.0)
        late = NOW + 0.2
        nodes = [stopped("a", now=late), running("b", head=2, now=late)]
        assert ids(body(decide(view(ledger, *nodes, now=late)))) == "a"

    def test_no_node_is_left_out_while_others_still_answer(self) -> None:
        ledger = halted("abc", HaltReason.NODE_LEFT, at=NOW - 5)
        nodes = [stopped("a", seen_at=NOW - 5), stopped("b", seen_at=NOW - 0.2), running("c", head=2)]
        assert decide(view(ledger, *nodes)) == LookAgain(NOW - 0.2 + 1.0)
        nodes = [stopped("a", seen_at=NOW - 5), stopped("b", seen_at=NOW - 1.0), running("c", head=2)]
        assert ids(body(decide(view(ledger, *nodes)))) == "ab"

    def test_a_member_that_may_have_been_cut_off_with_the_leader_has_a_full_period_to_answer(self) -> None:
        ledger = halted("ab", HaltReason.FAILURE, at=NOW - 0.9, blame=incident("a"))
        waits = view(ledger, stopped("a"), running("b", head=2), verdict=RESTART)
        back_at = NOW - 2.0
        waits = replace(waits, watch=replace(waits.watch, gap_at=back_at))
        assert decide(waits) == LookAgain(back_at + 6.0)

    @pytest.mark.parametrize(
        ("reason", "head", "worst_seen", "after"),
        [
            pytest.param(HaltReason.UNSEEN, 1, 0.0, 0.1, id="who was silent about the round has a last chance"),
            pytest.param(HaltReason.UNSEEN, 1, 0.1, 0.3, id="it grows with what the job has known"),
            pytest.param(HaltReason.UNSEEN, 2, 0.0, 1.0, id="who had seen the round has its second"),
            pytest.param(HaltReason.FAILURE, 1, 0.0, 1.0, id="nobody was asked yet"),
        ],
    )
    def test_silence_about_a_round_and_its_halt_is_not_waited_for_twice(
        self, reason: HaltReason, head: int, worst_seen: float, after: float
    ) -> None:
        ledger = with_counters(halted("ab", reason, at=NOW), worst_seen=worst_seen)
        nodes = [stopped("a"), running("b", head=head)]
        waiting = decide(view(ledger, *nodes))
        assert isinstance(waiting, LookAgain)
        assert waiting.at == pytest.approx(NOW + after)

    def test_a_node_that_does_not_know_yet_of_the_resumed_run_has_not_been_silent_about_its_round(self) -> None:
        ledger = halted("ab", HaltReason.UNSEEN, at=NOW)
        ledger = replace(ledger, head=replace(ledger.head, epoch=1))
        nodes = [stopped("a", epoch=1), stopped("b", head=0)]
        assert decide(view(ledger, *nodes)) == LookAgain(NOW + 1.0)

    def test_suspicion_never_takes_a_job_below_the_minimum_but_the_heartbeat_limit_does(self) -> None:
        ledger = halted("ab", HaltReason.UNSEEN, settings(min_nodes=2), at=NOW - 5)
        assert isinstance(decide(view(ledger, stopped("a"), running("b", head=2))), LookAgain)
        lost = decide(view(ledger, stopped("a"), running("b", head=2, changed=0.0)))
        assert isinstance(lost, LookAgain)
        assert lost.waiting == "1 more node(s) to replace host-b, for up to 595 s"

    def test_a_replacement_takes_the_lost_ones_place_at_the_end(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LOST, settings(min_nodes=2, max_nodes=2))
        nodes = [running("a", changed=0.0), stopped("b"), seen("c", head=3)]
        assert ids(body(decide(view(ledger, *nodes)))) == "bc"

    def test_closes_when_no_replacement_came_and_names_who_is_missing(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LOST, settings(min_nodes=2, join_timeout=80))
        closed = body(decide(view(ledger, stopped("a"), running("b", changed=0.0))))
        assert closed.why == "1 of at least 2 nodes are here after 80 s (host-a); missing: host-b"

    def test_a_lost_node_ends_a_job_that_wants_it_so(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LOST, settings(on_node_loss=OnNodeLoss.FAIL))
        closed = body(decide(view(ledger, stopped("a"), running("b", changed=0.0))))
        assert (closed.success, "--on_node_loss=fail" in closed.why) == (False, True)

    def test_a_finished_node_restarts_with_the_others(self) -> None:
        ledger = halted("ab", HaltReason.FAILURE, blame=incident("b"))
        nodes = [seen("a", Phase.FINISHED, head=3), stopped("b", incident=incident("b"))]
        assert ids(body(decide(view(ledger, *nodes, verdict=RESTART)))) == "ab"

    def test_a_host_that_the_policy_blames_is_left_out_and_the_restart_is_spent(self) -> None:
        exclude = Verdict(Action.EXCLUDE_HOST, "its GPU fell off the bus")
        ledger = halted("ab", HaltReason.FAILURE, blame=incident("b"))
        decision = decide(view(ledger, stopped("a"), stopped("b", incident=incident("b")), verdict=exclude))
        assert isinstance(decision, Append)
        assert (ids(body(decision)), body(decision).charged) == ("a", True)
        assert decision.counters.excluded == (Exclusion("id-host-b"),)


class TestFence:
    ledger = halted("ab", HaltReason.NODE_LOST, settings(fence_after=200))

    def test_no_new_round_while_the_old_one_may_still_be_training(self) -> None:
        silent = [running("a", changed=0.0), running("b", changed=0.0)]
        decision = decide(view(self.ledger, *silent, seen("c", head=3)))
        assert isinstance(decision, LookAgain)
        assert decision.waiting.startswith("host-a, host-b, which may still be training")
        silent = [running("a", changed=0.0), running("b", changed=0.0), seen("c", head=3, now=220.0)]
        assert ids(body(decide(view(self.ledger, *silent, now=220.0)))) == "c"

    @pytest.mark.parametrize(
        ("proof", "a"),
        [
            ("a member had stopped before it was lost", stopped("a", changed=0.0)),
            ("a member had lost a rank", running("a", changed=0.0, incident=incident("a"))),
            ("a member had finished", seen("a", Phase.FINISHED, head=2, changed=0.0)),
        ],
    )
    def test_one_round_may_follow_when(self, proof: str, a: NodeView) -> None:
        nodes = [a, running("b", changed=0.0), seen("c", head=3)]
        assert ids(body(decide(view(self.ledger, *nodes)))) == "c", proof

    @pytest.mark.parametrize("slot", [0, 1])
    def test_a_newer_agent_that_has_the_slot_or_found_it_free_is_proof(self, slot: int) -> None:
        node = info("c", host="host-b", slot=slot, slots=Slots(100))
        nodes = [running("a", changed=0.0), running("b", changed=0.0), seen("c", head=3, node=node)]
        assert ids(body(decide(view(self.ledger, *nodes)))) == "c"

    def test_a_proof_that_a_heartbeat_contradicts_is_none_until_it_has_stood_still_for_a_heartbeat_and_a_half(
        self,
    ) -> None:
        """Two machines may have one host id."""
        node = info("c", host="host-b", slots=Slots(100))
        nodes = [running("a", changed=0.0), running("b", changed=NOW - 2.9), seen("c", head=3, node=node)]
        assert isinstance(decide(view(self.ledger, *nodes)), LookAgain)
        assert ids(body(decide(view(self.ledger, *nodes, now=NOW + 0.1)))) == "c"

    def test_a_newer_agent_that_found_the_slot_held_is_none(self) -> None:
        node = info("c", host="host-b", slot=1, slots=Slots(100, (0,)))
        nodes = [running("a", changed=0.0), running("b", changed=0.0), seen("c", head=3, node=node)]
        assert isinstance(decide(view(self.ledger, *nodes)), LookAgain)
        later = seen("c", head=3, node=node, slots=Slots(200))
        assert ids(body(decide(view(self.ledger, *nodes[:2], later)))) == "c"


class TestBooks:
    @pytest.mark.parametrize(
        ("b", "restarts"),
        [
            pytest.param(running("b", head=2, changed=0.0), 0, id="not seen"),
            pytest.param(running("b", number=2, head=3, changed=0.0), 1, id="seen"),
            pytest.param(running("b", number=2, head=0, changed=0.0), 1, id="seen before the run was resumed"),
        ],
    )
    def test_a_restart_that_a_dropped_member_never_saw_is_given_back(self, b: NodeView, restarts: int) -> None:
        """A fails because B is gone: a restart is spent on ROUND(same as 1), which B never sees; then B is dropped."""
        same = Round(number=2, offer=offer("a", 2), same_as=1, charged=True)
        ledger = then(with_counters(live("ab"), restarts=0), same, at=20.0)
        ledger = with_counters(ledger, restarts=1)
        ledger = then(ledger, Halt(round=2, reason=HaltReason.UNSEEN, why="b"), at=21.0)
        nodes = [stopped("a", number=2, head=4, offer=offer("a", 3)), b]
        decision = decide(view(ledger, *nodes))
        assert isinstance(decision, Append)
        assert (ids(body(decision)), decision.counters.restarts) == ("a", restarts)

    def test_a_lost_node_spends_no_restart_and_counts_against_its_host(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LOST)
        decision = decide(view(ledger, stopped("a"), running("b", changed=0.0)))
        assert isinstance(decision, Append)
        assert (decision.counters.restarts, losses_of(decision)) == (0, {"id-host-b": 1})

    def test_a_leaving_node_does_not_count_against_its_host(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LEFT)
        decision = decide(view(ledger, stopped("a"), stopped("b", leaving=True)))
        assert isinstance(decision, Append)
        assert decision.counters.losses == {}

    @pytest.mark.parametrize(("progressed", "barren"), [(True, 0), (False, 5)])
    def test_rounds_without_progress_are_counted_in_a_row(self, progressed: bool, barren: int) -> None:
        ledger = with_counters(halted("a", HaltReason.NODE_LEFT), barren=4)
        decision = decide(view(ledger, stopped("a", progressed=progressed)))
        assert isinstance(decision, Append)
        assert decision.counters.barren == barren

    @pytest.mark.parametrize(
        ("reached", "barren"),
        [
            pytest.param(
                Reached(1, step=5, moved=True), 0, id="from one step to another, read after a worker had died"
            ),
            pytest.param(Reached(1, step=5), 5, id="one step, and nothing to compare it with"),
            pytest.param(Reached(2, step=31), 5, id="of another round"),
            pytest.param(Reached(1), 5, id="none"),
            pytest.param(Reached(0, step=3, moved=True), 1, id="of the round before, known too late"),
        ],
    )
    def test_steps_that_a_row_tells_are_progress(self, reached: Reached, barren: int) -> None:
        ledger = with_counters(halted("a", HaltReason.NODE_LEFT), barren=4)
        decision = decide(view(ledger, stopped("a", reached=reached)))
        assert isinstance(decision, Append)
        assert decision.counters.barren == barren

    @pytest.mark.parametrize(
        ("reached", "barren"),
        [
            pytest.param(Reached(2, step=31), 0, id="beyond"),
            pytest.param(Reached(2, step=30), 5, id="as far"),
            pytest.param(Reached(2), 5, id="none is known"),
            pytest.param(Reached(1, step=31), 5, id="of the round itself that failed at the earlier one"),
        ],
    )
    def test_a_step_beyond_those_of_earlier_rounds_is_progress(self, reached: Reached, barren: int) -> None:
        ledger = then(with_counters(live("a"), barren=4), Round(number=2, offer=offer("a", 2), same_as=1), at=20.0)
        past = SpentRestart(failure=as_record(replace(incident("a"), step=30)), age=1.0)
        ledger = with_counters(ledger, failures=(past,))
        ledger = then(ledger, Halt(round=2, reason=HaltReason.NODE_LEFT, why="a"), at=21.0)
        node = stopped("a", number=2, head=4, offer=offer("a", 3), reached=reached)
        decision = decide(view(ledger, node))
        assert isinstance(decision, Append)
        assert decision.counters.barren == barren

    @pytest.mark.parametrize("reason", [HaltReason.NODE_LEFT, HaltReason.FAILURE])
    def test_ten_rounds_without_progress_end_the_job_whatever_their_cause(self, reason: HaltReason) -> None:
        blame = incident("a") if reason is HaltReason.FAILURE else None
        ledger = with_counters(halted("a", reason, blame=blame), barren=MAX_BARREN_ROUNDS - 1)
        closed = body(decide(view(ledger, stopped("a"), verdict=RESTART)))
        assert (closed.success, "without progress" in closed.why) == (False, True)


def test_a_closed_run_is_left_alone() -> None:
    ledger = then(live("a"), Closed(success=True, why="done", exit_code=0), at=50.0)
    assert decide(view(ledger, running("a", incident=incident("a")))) == LookAgain(None)


def test_a_new_leader_gives_a_place_only_to_nodes_that_have_read_its_entry() -> None:
    ledger = then(start(settings(max_nodes=2)), Leader(why="the old one is gone"), at=1.0, author="b")
    assert ids(body(decide(view(ledger, seen("a", head=1), seen("b", head=2))))) == "b"


class TestWhatMayBeJudged:
    """Findings that each cost a job its life, or a node its place."""

    def test_a_latecomer_and_a_blocked_leader_say_nothing_of_how_fast_members_answer(self) -> None:
        ledger = live("ab", settings(2, 3, resize_wait=0.0), at=10.0)
        late = seen("c", head=2, arrived=90.0, seen_at=90.0)
        decision = decide(view(ledger, running("a", seen_at=10.3), running("b", seen_at=10.1), late))
        assert isinstance(decision, Append)
        assert decision.counters.worst_seen == 0.298
        blocked = view(ledger, running("a", seen_at=20.0), running("b", seen_at=10.1), late)
        decision = decide(replace(blocked, watch=replace(blocked.watch, gap_at=20.0)))
        assert isinstance(decision, Append)
        assert decision.counters.worst_seen == 0.0

    def test_a_job_whose_nodes_have_all_finished_succeeds_although_a_halt_came_between(self) -> None:
        ledger = halted("ab", HaltReason.RESIZE, settings(2, 3))
        nodes = [seen(name, Phase.FINISHED, head=3) for name in "ab"]
        assert body(decide(view(ledger, *nodes, seen("c", head=3)))).success

    def test_a_bad_host_is_taken_when_there_is_no_other(self) -> None:
        ledger = with_counters(halted("ab", HaltReason.NODE_LOST, settings(2, 2)), losses={"id-host-c": THRICE})
        nodes = [stopped("a"), running("b", changed=10.0), seen("c", head=3)]
        assert ids(body(decide(view(ledger, *nodes)))) == "ac"

    def test_the_fence_counts_from_the_last_sign_of_who_may_still_train(self) -> None:
        ledger = halted("a", HaltReason.NODE_LOST, settings(1, 2, fence_after=30.0), at=20.0)
        nodes = [replace(running("a", changed=45.0), sign_at=45.0), seen("b", head=3)]
        waiting = decide(view(ledger, *nodes, now=60.0))
        assert isinstance(waiting, LookAgain)
        assert waiting.at == 75.0
        assert "host-a, which may still be training" in waiting.waiting
        assert ids(body(decide(view(ledger, *nodes, now=75.0)))) == "b"

    @pytest.mark.parametrize("knows", ["all of it", "what its newest entry stands on"])
    def test_the_fence_goes_on_with_the_next_leader(self, knows: str) -> None:
        """One dies every 12 s, long before the fence is over; what the next has seen of the lost begins with itself."""
        ledger, at = halted("a", HaltReason.NODE_LOST, settings(1, 2, fence_after=30.0), at=20.0), 20.0
        for _ in range(2):
            at += 12.0
            ledger = then(ledger, Leader(why="no heartbeat"), at=at, author="b")
        if knows != "all of it":
            stands_on = {
                1: start(settings(1, 2, fence_after=30.0)).head,
                2: live("a").head,
                3: halted("a", HaltReason.NODE_LOST).head,
            }
            ledger = restore_ledger(ledger.head, stands_on, at)
        nodes = [running("a", changed=at), seen("c", head=5)]
        waiting = decide(view(ledger, *nodes, now=49.9))
        assert isinstance(waiting, LookAgain)
        assert "for up to 0 s (--rdzv_conf fence_after=30)" in waiting.waiting
        silent = running("a", changed=44.0)
        assert ids(body(decide(view(ledger, silent, seen("c", head=5), now=50.0)))) == "c"

    def test_a_suspected_node_does_not_end_a_job_that_fails_on_node_loss(self) -> None:
        ledger = halted("ab", HaltReason.NODE_LEFT, settings(1, 2, on_node_loss=OnNodeLoss.FAIL), at=98.0)
        nodes = [stopped("a"), running("b", changed=99.0)]
        assert isinstance(decide(view(ledger, *nodes)), LookAgain)
        assert not body(decide(view(ledger, nodes[0], running("b", changed=90.0)))).success


class TestADeposedLeader:
    """One that left an incident unanswered has had its second, and gets a last, short chance."""

    def deposed(self, *, unanswered: bool = True, head: int = 2) -> LeaderView:
        ledger = then(live("ab", settings(1, 2)), Leader(why="silent"), at=99.0, author="b", leader="b")
        found = view(ledger, running("a", head=head), running("b", head=3, incident=incident("b")), verdict=RESTART)
        return replace(found, watch=replace(found.watch, deposed=DeposedLeader("a", 7, 98.0, unanswered)))

    def test_is_not_counted_on_for_a_restart_of_the_same_members(self) -> None:
        assert body(decide(self.deposed())).reason is HaltReason.FAILURE
        assert isinstance(body(decide(self.deposed(head=3))), Round), "it has answered"
        assert isinstance(body(decide(self.deposed(unanswered=False))), Round)

    @pytest.mark.parametrize(
        ("unanswered", "epoch", "suspected_at"),
        [
            pytest.param(True, 0, 100.1, id="it was silent about an incident"),
            pytest.param(False, 0, 101.0, id="nobody had asked it"),
            pytest.param(True, 1, 101.0, id="it has yet to learn that the run was resumed"),
        ],
    )
    def test_is_suspected_sooner_than_others(self, unanswered: bool, epoch: int, suspected_at: float) -> None:
        before = self.deposed(unanswered=unanswered)
        halt = Halt(round=1, reason=HaltReason.FAILURE, why="it was", incident=incident("b"))
        ledger = then(before.ledger, halt, at=100.0)
        ledger = replace(ledger, head=replace(ledger.head, epoch=epoch))
        old_leader = running("a", head=0 if epoch else 2)
        nodes = [old_leader, seen("b", Phase.STOPPED, head=4, epoch=epoch, incident=incident("b"))]
        after = replace(before, ledger=ledger, watch=replace(watch(*nodes), deposed=before.watch.deposed))
        waiting = decide(replace(after, now=100.05))
        assert isinstance(waiting, LookAgain)
        assert waiting.at == suspected_at
        assert ids(body(decide(replace(after, now=suspected_at)))) == "b"


class TestTheCause:
    """A failure that follows from a peer's loss is judged when all have stopped, and none has reported its cause."""

    peer = replace(incident("a"), message="RuntimeError: Connection closed by peer", follows_peer=True)
    killed = replace(incident("b", after=5.2), exit_code=-9)

    def test_it_is_waited_for(self) -> None:
        nodes = [replace(running("a", incident=self.peer), reported_at=NOW - 0.04), running("b")]
        decision = decide(view(live("ab"), *nodes))
        assert isinstance(decision, LookAgain)
        assert decision.at == pytest.approx(NOW + 0.06)

    def test_but_not_for_long(self) -> None:
        nodes = [replace(running("a", incident=self.peer), reported_at=NOW - 0.1), running("b")]
        halt = body(decide(view(live("ab"), *nodes)))
        assert (halt.reason, halt.incident) == (HaltReason.FAILURE, self.peer)

    def test_another_that_follows_makes_it_no_longer(self) -> None:
        second = replace(incident("b", after=5.3), message=self.peer.message, follows_peer=True)
        nodes = [
            replace(running("a", incident=self.peer), reported_at=NOW - 0.6),
            replace(running("b", incident=second), reported_at=NOW - 0.04),
            running("c"),
        ]
        assert body(decide(view(live("abc"), *nodes))).incident == self.peer

    def test_an_incident_of_an_earlier_round_does_not_shorten_the_wait(self) -> None:
        earlier = replace(running("b", incident=incident("b", number=0)), reported_at=NOW - 5.0)
        nodes = [replace(running("a", incident=self.peer), reported_at=NOW - 0.04), earlier]
        decision = decide(view(live("ab"), *nodes))
        assert isinstance(decision, LookAgain)
        assert decision.at == pytest.approx(NOW + 0.06)

    def test_a_rank_that_exited_early_may_not_be_the_cause_either(self) -> None:
        early = replace(incident("a", kind=IncidentKind.EXITED_EARLY), exit_code=0)
        nodes = [replace(running("a", incident=early), reported_at=NOW - 0.04), running("b")]
        assert isinstance(decide(view(live("ab"), *nodes)), LookAgain)

    def test_it_is_no_longer_waited_for_once_every_member_has_reported(self) -> None:
        early = replace(incident("a", kind=IncidentKind.EXITED_EARLY), exit_code=0)
        assert body(decide(view(live("a"), replace(running("a", incident=early), reported_at=NOW)))).incident == early

    def test_a_verdict_is_not_kept_waiting(self) -> None:
        nodes = [replace(running("a", incident=self.peer), reported_at=NOW - 0.04), running("b")]
        assert isinstance(body(decide(view(live("ab"), *nodes, verdict=RESTART))), Round)

    def test_it_is_judged_at_once(self) -> None:
        nodes = [
            replace(running("a", incident=self.peer), reported_at=NOW),
            replace(running("b", incident=self.killed), reported_at=NOW),
        ]
        assert decide(view(live("ab"), *nodes)) == AskPolicies(self.killed)

    def test_a_peer_on_the_same_node_may_be_about_to_end(self) -> None:
        nodes = [replace(running("a", incident=self.peer), reported_at=NOW - 0.4)]
        assert isinstance(decide(view(live("a"), *nodes)), LookAgain)
        nodes = [replace(running("a", incident=self.peer), reported_at=NOW - 0.5)]
        assert body(decide(view(live("a"), *nodes))).incident == self.peer

    early = replace(incident("b", after=5.2, kind=IncidentKind.EXITED_EARLY), exit_code=0, message="it had finished")

    def halted(self, *nodes: NodeView, verdict: Verdict | None = None, judged: Incident | None = None) -> LeaderView:
        ledger = halted("ab", HaltReason.FAILURE, settings(min_nodes=1), at=NOW - 0.2, blame=self.peer)
        judgement = None if verdict is None else Judgement(round=1, incident=judged, verdict=verdict)
        return view(ledger, *nodes, judgement=judgement)

    def test_its_cause_may_come_until_all_have_stopped(self) -> None:
        a = stopped("a", incident=self.peer, offer=offer("a", 2))
        assert isinstance(decide(self.halted(a, running("b", head=3))), LookAgain)
        assert decide(self.halted(a, stopped("b", incident=self.early))) == AskPolicies(self.early)
        assert decide(self.halted(a, stopped("b"))) == AskPolicies(self.peer)

    def test_a_cause_of_its_own_is_judged_while_others_stop(self) -> None:
        nodes = [running("a", head=3), running("b", head=3, incident=self.killed)]
        assert decide(self.halted(*nodes)) == AskPolicies(self.killed)

    def test_the_next_round_names_counts_and_leaves_out_what_was_judged(self) -> None:
        nodes = [stopped("a", incident=self.peer, offer=offer("a", 2)), stopped("b", incident=self.early)]
        excluded = Verdict(Action.EXCLUDE_HOST, "it is its host", exclude_for=60.0)
        decision = decide(self.halted(*nodes, verdict=excluded, judged=self.early))
        assert isinstance(decision, Append)
        assert body(decision).why == "rank 0 on host-b exited with code 0 before the other ranks: it had finished"
        assert ids(body(decision)) == "a"
        assert [spent.failure.exit_code for spent in decision.counters.failures] == [0]
        assert [one.host_id for one in decision.counters.excluded] == ["id-host-b"]

    @pytest.mark.parametrize(
        ("reason", "blame"),
        [
            pytest.param(HaltReason.FAILURE, early, id="which it names itself"),
            pytest.param(HaltReason.NODE_LOST, None, id="which is not what ended the round"),
        ],
    )
    def test_a_halt_keeps_its_words_whatever_was_judged(self, reason: HaltReason, blame: Incident | None) -> None:
        ledger = halted("ab", reason, at=NOW - 0.2, blame=blame)
        judged = Judgement(round=1, incident=self.early, verdict=RESTART)
        nodes = [stopped("a"), stopped("b", incident=self.early)]
        assert body(decide(view(ledger, *nodes, judgement=judged))).why == "it was"

    def test_the_end_names_what_was_judged(self) -> None:
        nodes = [stopped("a", incident=self.peer), stopped("b", incident=self.early)]
        closed = body(decide(self.halted(*nodes, verdict=GIVE_UP, judged=self.early)))
        assert (closed.incident, closed.why) == (self.early, GIVE_UP.reason)

    def test_a_judgement_of_a_live_round_stands(self) -> None:
        first = replace(self.killed, node_id="a", host="host-a", after=5.1)
        nodes = [running("a", incident=first), running("b", incident=self.killed)]
        judgement = Judgement(round=1, incident=self.killed, verdict=RESTART)
        assert body(decide(view(live("ab"), *nodes, judgement=judgement))).why.startswith("rank 0 on host-b ")
