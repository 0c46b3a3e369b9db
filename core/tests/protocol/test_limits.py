"""Every entry that a leader can decide on fits into a store's value, whatever the job's size, names and history."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from views import RUN, VERSIONS, entry, incident, live, settings, start, then

from elastic_core.config.parse import MAX_ROLE, OnNodeLoss
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.incidents import Action, Explanation, Failure, FailureClass, Incident, IncidentKind, Verdict
from elastic_core.protocol.codec import OversizedError, decode_entry, encode_entry
from elastic_core.protocol.entries import (
    Body,
    Counters,
    Entry,
    Exclusion,
    Halt,
    HaltReason,
    HostLosses,
    Member,
    Offer,
    Open,
    Over,
    Plan,
    Round,
    SpentRestart,
)
from elastic_core.protocol.failure_detector import NodeView, Watch
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append
from elastic_core.protocol.leader_view import Judgement, LeaderView
from elastic_core.protocol.ledger import Ledger, advance, compose, open_ledger
from elastic_core.protocol.limits import (
    DETAIL_BYTES,
    FAILURE_TEXT_BYTES,
    HOSTS_BYTES,
    MAX_DRAINED_NODES,
    MAX_FAILURES,
    MAX_HOSTS,
    MAX_KINDS,
    MAX_LEFT_MEMBERS,
    NAMES_SHOWN,
    OPEN_BYTES,
    TEXT_BYTES,
    WHERE_BYTES,
    WHY_BYTES,
    clip,
    fit_body,
    fit_names,
    list_names,
)
from elastic_core.protocol.repair import compose_resume, lighten
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, SEAL_BYTES
from elastic_core.rendezvous.options import MAX_NODES, RendezvousParameters

NOW = 100_000.0
TEXTS = ("a", "\u00e9", "\x00", "\U0001f525", "\ud800", '"', "\\", "\n")
"""Characters that JSON writes in 1 to 12 bytes; one of them is half a surrogate pair, as undecodable names have."""


# Texts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (2, "n0, n1"),
        (NAMES_SHOWN, "n0, n1, n2, n3, n4, n5, n6, n7"),
        (20_000, "n0, n1, n2, n3, n4, n5, n6, n7 and 19992 more"),
    ],
)
def test_a_listing_names_eight_and_counts_the_others(count: int, text: str) -> None:
    assert list_names(f"n{i}" for i in range(count)) == text


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("character", TEXTS)
def test_a_text_is_cut_to_its_bytes_of_json(character: str, end: bool) -> None:
    text = clip("<" + 5000 * character + ">", 2000, end=end)
    assert 1980 < len(json.dumps(text)) - 2 <= 2000
    assert (text[0], text[-1]) == (("…", ">") if end else ("<", "…"))


def test_a_text_that_fits_stays() -> None:
    assert clip("a" * 2000, 2000) == "a" * 2000


def test_all_texts_of_an_entry_are_cut_when_it_is_composed() -> None:
    texts: dict[str, Any] = {name: name[0] * 9000 for name in ("node_id", "host", "message", "log")}
    long = replace(incident("a"), detail="d" * 9000 + "!", **texts)
    halt = Halt(round=1, reason=HaltReason.FAILURE, why="w" * 9000, incident=long)
    ledger = then(live("ab"), halt, at=20.0)
    assert ledger.halt is not None
    assert ledger.halt.incident is not None
    assert len(ledger.halt.why) <= WHY_BYTES
    assert len(ledger.halt.incident.detail) <= DETAIL_BYTES
    assert ledger.halt.incident.detail.endswith("d!")
    assert fit_body(ledger.halt) == ledger.halt
    assert {len(getattr(ledger.halt.incident, name)) for name in texts} == {TEXT_BYTES - 5}, "an ellipsis takes six"
    resumed = fit_body(replace(compose_resume(live("ab"), "w" * 9000), halt=halt))
    assert resumed.halt == ledger.halt, "of a RESUME those are that the entries had which it stands for"
    short = replace(halt, why="short", incident=None)
    assert fit_body(short) is short


# Every decision ------------------------------------------------------------------------------------------------------


def words(lots: random.Random, most: int) -> str:
    """A text of up to ``most`` characters, often all of them, often of the longest kind."""
    letters = lots.choice(("a", "\U0001f525", "".join(TEXTS)))
    return "".join(lots.choices(letters, k=lots.choice((1, most, most))))


def node_info(lots: random.Random, number: int, kinds: list[tuple[int, str]]) -> NodeInfo:
    size, role = kinds[number % len(kinds)]
    return NodeInfo(
        node_id=f"{number:04x}{lots.getrandbits(32):08x}",
        host=f"{number}{words(lots, 59)}",
        host_id=f"{lots.getrandbits(64):016x}",
        slot=0,
        local_world_size=size,
        role=role,
        versions=VERSIONS,
    )


def failure(lots: random.Random, who: NodeInfo) -> Incident:
    kind = lots.choice((IncidentKind.WORKER_FAILED, IncidentKind.PORT_TAKEN))
    blame = Incident(kind=kind, round=1, node_id=who.node_id, host=str(who), rank=lots.choice((None, 3)), exit_code=1)
    return replace(blame, message=words(lots, 500), detail=words(lots, 4096), log=words(lots, 4096))


def longest_failure(text: str) -> Failure:
    """The failure whose record is the longest, with this text."""
    return Failure(
        round=10**6,
        rank=10**6,
        host=text,
        exception=text,
        exit_code=-11,
        step=10**12,
        place=text,
        digest="0123abcd",
        after=1_234_567.8,
        checkpoint=text,
        failure_class=FailureClass.INFRASTRUCTURE,
    )


def largest_failure(lots: random.Random) -> Failure:
    text = clip(words(lots, FAILURE_TEXT_BYTES), FAILURE_TEXT_BYTES)
    return longest_failure(text)


def place(lots: random.Random) -> Offer:
    return Offer(address="2001:db8:1111:2222:3333:4444:5555:6666", port=65535, id=f"{lots.getrandbits(48):012x}")


def view(lots: random.Random, count: int, kinds: int) -> LeaderView:
    """A run of ``count`` nodes at any point of its first round, whose counters are as long as they can be."""
    roles = [(number, f"{number:02}{words(lots, MAX_ROLE - 2)}") for number in range(kinds)]
    nodes = [node_info(lots, number, roles) for number in range(count)]
    members = tuple(Member(one.node_id, one.local_world_size, one.role) for one in nodes)
    loss = lots.choice(tuple(OnNodeLoss))
    run = settings(lots.choice((1, count)), count, lots.choice((0, 3)), loss, host=str(nodes[0]))
    run = replace(run, agreement=replace(run.agreement, worker_plugins=(words(lots, 500),)))
    counters = Counters(
        losses={f"{lots.getrandbits(64):016x}": HostLosses(99, 86_400_000.5 + i) for i in range(MAX_HOSTS)},
        excluded=tuple(Exclusion(f"{lots.getrandbits(64):016x}", 86_400_000) for _ in range(MAX_HOSTS)),
        failures=MAX_FAILURES * (SpentRestart(failure=largest_failure(lots), age=8_640_000.5),),
    )
    blame = failure(lots, nodes[-1])
    bodies: list[Body] = [Open(scheduler_uid=words(lots, 64), settings=run)]
    hosts = fit_names((one.host for one in nodes), HOSTS_BYTES)
    if depth := lots.randrange(3):
        bodies.append(Round(number=1, offer=place(lots), members=members, hosts=hosts, why=words(lots, 4000)))
    if depth == 2:
        reason, why = lots.choice(tuple(HaltReason)), words(lots, 4000)
        halt = Halt(round=1, reason=reason, why=why, incident=lots.choice((None, blame)))
        over = Over(round=1, left=tuple(one.node_id for one in nodes[:MAX_LEFT_MEMBERS]))
        plan = Plan(round=1, reason=reason, why=why, deadline=lots.choice((1.0, 10_000.0)))
        ways: tuple[list[Body], ...] = ([halt], [halt, over], [plan])
        bodies += lots.choice(ways)
    ledger: Ledger | None = None
    for index, body in enumerate(bodies, 1):
        entry_id, author, kept = f"{index:012x}", nodes[0].node_id, counters if ledger else None
        found = compose(ledger, body, entry_id=entry_id, author=author, now=NOW - 9, run=RUN, counters=kept)
        ledger = open_ledger(found, NOW - 9) if ledger is None else advance(ledger, found, NOW - 9)
    assert ledger is not None
    lost, failed, stops, requests = (lots.choice((0.0, 0.0, 0.5, 1.0)) for _ in range(4))
    node_views: dict[str, NodeView] = {}
    for serial, who in enumerate(nodes, 1):
        phase = (
            lots.choice((Phase.STOPPED, Phase.RUNNING)) if stops == 0.5 else Phase.STOPPED if stops else Phase.RUNNING
        )
        row = NodeRow(
            info=who,
            run=RUN,
            phase=phase if ledger.round else Phase.WAITING,
            round=1 if ledger.round else 0,
            head=ledger.head.index,
            offer=place(lots),
            incident=failure(lots, who) if serial == 1 and failed else None,
            leaving=lots.random() < 0.3 * (requests == 0.5),
            stepped_down=stops == 1.0 and not failed,
        )
        changed_at = NOW - 60 if lots.random() < lost else NOW
        node_views[who.node_id] = NodeView(row, serial, 7, arrived_at=0.0, changed_at=changed_at, seen_at=NOW)
    if requests == 1.0:
        asks = replace(node_info(lots, 65_535, roles), node_id="drain-0123456789ab")
        row = NodeRow(info=asks, drain=tuple(node_views)[:MAX_DRAINED_NODES])
        same = {
            i: replace(s, row=replace(s.row, info=replace(s.row.info, host=nodes[0].host)))
            for i, s in node_views.items()
        }
        node_views = {
            **same,
            "drain-0123456789ab": NodeView(row, count + 1, 7, arrived_at=0.0, changed_at=NOW, seen_at=NOW),
        }
    verdict = Verdict(lots.choice(tuple(Action)), words(lots, 500))
    return LeaderView(
        ledger=ledger,
        watch=Watch(node_views, NOW, began_at=0.0),
        now=lots.choice((NOW, NOW + 5000.0)),
        judgement=Judgement(round=1, verdict=verdict),
        may_forget=True,
    )


def decided(lots: random.Random, given: LeaderView) -> Entry | None:
    """The entry that the leader would append; None where it appends none. It encodes, and comes back the same."""
    decision = decide(given)
    if not isinstance(decision, Append):
        return None
    ledger = given.ledger
    author, entry_id = ledger.leader, f"{lots.getrandbits(48):012x}"
    written = compose(ledger, decision.body, entry_id=entry_id, author=author, now=NOW, counters=decision.counters)
    assert decode_entry(encode_entry(written)) == written
    return written


def check_resume(ledger: Ledger) -> None:
    """Check that an entry with all of the run's state can be encoded, too."""
    if ledger.round is not None:
        body = compose_resume(ledger, "the store came back empty")
        written = compose(ledger, body, entry_id=ledger.head.id, author=ledger.leader, now=NOW, store=ORIGIN)
        assert decode_entry(encode_entry(written)) == written


@pytest.mark.parametrize(("count", "views"), [(1, 30), (12, 80), (MAX_NODES, 2)])
def test_every_entry_that_a_leader_decides_on_encodes(count: int, views: int, seed: int) -> None:
    lots, kinds = random.Random(f"{seed} {count}"), Counter[str]()
    for _ in range(views):
        given = view(lots, count, min(count, lots.choice((1, 2, MAX_KINDS))))
        check_resume(given.ledger)
        if (written := decided(lots, given)) is not None:
            kinds[type(written.body).__name__] += 1
            check_resume(advance(given.ledger, written, NOW))
    if count == 12:
        assert kinds.keys() >= {"Round", "Halt", "Drain", "Closed"}, kinds


def test_a_run_that_has_lost_20_000_hosts_goes_on() -> None:
    """In each of twenty rounds all nodes but the leader are lost, and replaced by nodes on other hosts."""
    lots, kinds = random.Random(1), [(8, "trainer"), (4, "reader")]
    first, *others = (node_info(lots, number, kinds) for number in range(1001))
    ledger = start(settings(1001, 1001), author=first.node_id)
    members = tuple(Member(one.node_id, one.local_world_size, one.role) for one in (first, *others))
    ledger = then(ledger, Round(number=1, offer=place(lots), members=members), at=NOW)
    for number in range(1, 21):
        halt = Halt(round=number, reason=HaltReason.NODE_LOST, why="its host was replaced")
        ledger = then(ledger, halt, at=NOW + 10 * number)
        came = [node_info(lots, 1001 * number + i, kinds) for i in range(1, 1001)]
        at, head = NOW + 10 * number + 1, ledger.head.index
        rows = [
            NodeRow(
                info=first, run=RUN, phase=Phase.STOPPED, round=number, head=head, offer=place(lots), progressed=True
            ),
            *(NodeRow(info=one, run=RUN, phase=Phase.RUNNING, round=number, head=head - 1) for one in others),
            *(NodeRow(info=one, run=RUN, head=head, offer=place(lots)) for one in came),
        ]
        rows[0] = replace(rows[0], offer=place(lots))
        lost = {one.node_id for one in others}
        watch = {
            row.info.node_id: NodeView(
                row,
                serial,
                7,
                arrived_at=0.0,
                changed_at=at - 60 if row.info.node_id in lost else at,
                seen_at=at,
            )
            for serial, row in enumerate(rows, 1)
        }
        decision = decide(LeaderView(ledger=ledger, watch=Watch(watch, at, began_at=0.0), now=at))
        assert isinstance(decision, Append)
        assert isinstance(decision.body, Round)
        written = entry(ledger, decision.body, at=at, counters=decision.counters)
        assert decode_entry(encode_entry(written)) == written
        ledger, others = advance(ledger, written, at), came
        check_resume(ledger)
    assert len(ledger.counters.losses) == MAX_HOSTS


def test_20_000_names_in_one_text_are_eight_and_a_count() -> None:
    given = view(random.Random(3), MAX_NODES, 2)
    assert given.describe_nodes(list(given.watch.nodes)[:MAX_NODES]).endswith(f" and {MAX_NODES - NAMES_SHOWN} more")


# The largest RESUME --------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[3] / "docs" / "internals" / "protocol.md"
LONG = 9000 * "w"


def largest_counters() -> Counters:
    """Counters with everything that they can have at once, and long numbers."""
    failed = longest_failure(FAILURE_TEXT_BYTES * "w")
    return Counters(
        restarts=10**6,
        barren=9,
        worst_seen=123.456,
        losses={f"{host:016x}": HostLosses(9999, 86_400_000.5) for host in range(MAX_HOSTS)},
        excluded=tuple(Exclusion(f"{host:016x}", 86_400_000) for host in range(MAX_HOSTS)),
        failures=MAX_FAILURES * (SpentRestart(failure=failed, age=86_400_000.5),),
    )


def largest_incident() -> Incident:
    return Incident(
        kind=IncidentKind.WORKER_FAILED,
        round=10**6,
        node_id=LONG,
        host=LONG,
        after=123_456.789,
        rank=10**6,
        local_rank=999,
        pid=2**22,
        exit_code=-11,
        message=LONG,
        explanation=Explanation(failure_class=FailureClass.INFRASTRUCTURE, name=LONG, advice=LONG, hosts_fault=True),
        detail=LONG,
        log=LONG,
        step=10**12,
        where=LONG,
    )


def largest_ledger(kinds: int) -> Ledger:
    """A run of MAX_NODES nodes of so many kinds, halted, whose parts all have their full size."""
    roles = [(10 + number, f"{number:03}" + (MAX_ROLE - 3) * "\U0001f525") for number in range(kinds)]
    members = tuple(Member(f"{number:012x}", *roles[number % kinds]) for number in range(MAX_NODES))
    author = members[0].node_id

    def opening(plugin: int) -> Entry:
        run = settings(1, MAX_NODES)
        run = replace(run, agreement=replace(run.agreement, worker_plugins=(plugin * "p",)))
        return compose(None, Open(scheduler_uid="u", settings=run), entry_id=12 * "e", author=author, now=0.0, run=RUN)

    opened = opening(OPEN_BYTES - len(encode_entry(opening(0))))
    assert len(encode_entry(opened)) == OPEN_BYTES
    offer = replace(place(random.Random(1)), hosted=True)
    hosts = fit_names(MAX_NODES * ["host"], HOSTS_BYTES)
    sealed = Round(number=10**6, offer=offer, members=members, hosts=hosts, charged=True, why=LONG, verdict=LONG)
    halt = Halt(
        round=10**6,
        reason=HaltReason.GIVING_UP,
        why=LONG,
        incident=largest_incident(),
        planned=True,
        verdict=LONG,
        requeue=True,
    )
    over = Over(round=10**6, left=tuple(member.node_id for member in members[:MAX_LEFT_MEMBERS]))
    ledger, bodies = open_ledger(opened, 0.0), (sealed, halt, over)
    for body in bodies:
        written = compose(
            ledger, body, entry_id=12 * "e", author=author, now=1e6, counters=largest_counters(), kept=10**6
        )
        assert decode_entry(encode_entry(written)) == written
        ledger = advance(ledger, written, 1e6)
    return ledger


def resume(ledger: Ledger, body: Body, counters: Counters) -> Entry:
    author = ledger.leader
    return compose(ledger, body, entry_id=12 * "e", author=author, now=2e6, counters=counters, store=ORIGIN)


def shares() -> list[tuple[str, int]]:
    """The parts and the bytes in the table of rule L8."""
    rule = DOCS.read_text(encoding="utf-8").partition("### L8\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (.+?) \|.+\| ([\d,]+) \|$", rule, re.MULTILINE)
    return [(part, int(size.replace(",", ""))) for part, size in rows]


def test_the_documented_shares_of_a_resume_hold_its_parts_and_fit_into_a_value_together() -> None:
    ledger = largest_ledger(MAX_KINDS)
    assert ledger.round is not None
    assert ledger.halt is not None
    whole = json.loads(encode_entry(resume(ledger, compose_resume(ledger, LONG), ledger.counters)))
    body, counters = whole["body"], whole["counters"]
    ids, kinds, which = body["round"]["members"]
    halt = body["halt"]
    texts = [body["why"], body["round"]["why"], body["round"]["verdict?"], halt["why"], halt["verdict?"]]
    parts: list[list[Any]] = [
        [ids, which],
        [kinds],
        [counters["losses"]],
        [counters["excluded"]],
        [counters["failures"]],
        texts,
        [halt["incident"]],
        [body["round"]["hosts"]],
        [body["over"]["left"]],
        [body["opened"]["settings"], body["opened"]["scheduler_uid"]],
    ]
    table = shares()
    assert len(table) == len(parts) + 1, "and the rest: names of fields and numbers"
    sizes = [sum(len(json.dumps(one, separators=(",", ":"))) for one in part) for part in parts]
    sizes.append(len(json.dumps(whole, separators=(",", ":"))) - sum(sizes))
    too_small = [(name, share, size) for (name, share), size in zip(table, sizes, strict=True) if size > share]
    assert not too_small
    assert sum(share for _, share in table) <= MAX_VALUE_BYTES - SEAL_BYTES


def test_an_incidents_texts_are_in_its_share() -> None:
    facts = asdict(fit_body(largest_incident()))
    texts = [text for text in [*facts.values(), *facts["explanation"].values()] if isinstance(text, str)]
    most = DETAIL_BYTES + 4 * TEXT_BYTES + 5 * WHERE_BYTES
    assert sum(map(len, texts)) <= most + len(IncidentKind.WORKER_FAILED.value + FailureClass.INFRASTRUCTURE.value)


def test_a_resume_of_too_many_kinds_of_nodes_goes_without_what_only_messages_and_policies_need() -> None:
    fits = {}
    for kinds in (MAX_KINDS, MAX_KINDS + 16, MAX_KINDS + 36):
        ledger = largest_ledger(kinds)
        ways = list(lighten(compose_resume(ledger, "lost"), ledger.counters))
        fits[kinds] = [fits_a_value(resume(ledger, *way)) for way in ways]
    assert list(fits.values()) == [[True, True, True], [False, True, True], [False, False, True]]
    written = resume(ledger, *ways[-1])
    assert decode_entry(encode_entry(written)) == written
    resumed, kept, before = open_ledger(written, 0.0), written.counters, ledger.counters
    assert resumed.round is not None
    assert ledger.round is not None
    assert (resumed.round.members, resumed.over) == (ledger.round.members, ledger.over)
    assert (kept.restarts, kept.barren, kept.worst_seen) == (before.restarts, before.barren, before.worst_seen)


def fits_a_value(written: Entry) -> bool:
    try:
        encode_entry(written)
    except OversizedError:
        return False
    return True


# The start -----------------------------------------------------------------------------------------------------------


def test_more_nodes_than_a_round_can_name_are_refused_at_the_start() -> None:
    says = f"The maximum of {MAX_NODES + 1} nodes is more than a job can have, {MAX_NODES}"
    with pytest.raises(UsageError, match=says):
        RunConfig(program=Program(ProgramKind.EXECUTABLE, "train"), max_nodes=MAX_NODES + 1)
    with pytest.raises(UsageError, match=says):
        RendezvousParameters(backend="redis", endpoint="", run_id="x", min_nodes=1, max_nodes=MAX_NODES + 1)


def test_a_role_that_is_too_long_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match=f"has 65 characters; {MAX_ROLE} are allowed"):
        RunConfig(program=Program(ProgramKind.EXECUTABLE, "train"), role="r" * 65)
