"""The node's state machine: one pure function from an event to what the agent does next.

:func:`step` adds an event to the state and then reconciles: it stops workers that the ledger does not want, and starts
the wanted ones only when the last process of the old ones is gone (I9). It compares with the newest entry only, so it
starts no workers of a round after it has read a later one (I5). The driver writes the row (:func:`row_of`) whenever it
has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident, distance_to_cause
from elastic_core.protocol import node_events
from elastic_core.protocol.entries import FAILURE_REASONS, Entry, HaltReason, Resume, Round
from elastic_core.protocol.ledger import Ledger, advance
from elastic_core.protocol.limits import MAX_ASKS
from elastic_core.protocol.node_events import Exit, Leaving, MakeOffer, Notice, Notify, Start, Stop, Work
from elastic_core.protocol.roster import Ask, LastCheckpoint, NodeRow, Phase

ROUNDS_REMEMBERED = 1024  # how many started rounds a node remembers; each takes 100 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The state of a node."""

    row: NodeRow  # its row in the roster; :func:`row_of` adds the newest ledger entry that it has read
    ledger: Ledger
    needs_offer: bool = False  # whether a new offer has yet to be made; the row's is None once any round has used it
    work: Work = Work.NONE
    leaving: Leaving | None = None
    store_lost: bool = False  # whether an embedded store is gone, so that no further entry can come
    started: tuple[str, ...] = ()
    """The offers of the newest ROUNDS_REMEMBERED rounds whose workers were started here; none is started twice (S3). A
    store would have to go back further than that to have a round started twice."""
    run_replaced: str = ""  # why the run in the store is not this node's run any more; '' while it is
    sent_notice: Notice | None = None  # the notice that the workers were sent last
    asked: int = 0  # the index of the newest QUESTION that its monitors were asked


def step(state: NodeState, event: node_events.NodeEvent) -> tuple[NodeState, tuple[node_events.Effect, ...]]:
    """Return the state after an event, and the effects to run, in order.

    Raises:
        RendezvousStateError: An entry does not follow the entries before it.
    """
    return _reconcile(_absorb(state, event))


def row_of(state: NodeState) -> NodeRow:
    """Return the roster row of this node."""
    head = state.ledger.head
    return replace(state.row, run=head.run, head=head.index, epoch=head.epoch)


def supersedes(leaving: Leaving | None, grace: float) -> bool:
    """Return whether a new reason to leave within ``grace`` seconds replaces the one that the node has.

    A node that leaves only to enter again then leaves for good, as one that was drained or preempted (rule L17).
    """
    return leaving is None or leaving.rejoin or grace < leaving.grace


def known_failure(state: NodeState) -> Incident | None:
    """Return the failure that ended the node's round, as far as the node knows: its own, or the one of the HALT."""
    halt = state.ledger.halt
    return state.row.incident or (halt.incident if halt is not None and halt.round == state.row.round else None)


def is_newly_excluded(before: NodeState, after: NodeState, now: float) -> bool:
    """Return True if this host was excluded after ``before``, and the job goes on without this node (rule L17)."""
    host, ledger = after.row.info.host_id, after.ledger
    known, excluded = (one.counters.excluded_at(one.age(now)) for one in (before.ledger, ledger))
    if host not in excluded or host in known or ledger.is_member(after.row.info.node_id):
        return False  # a member is needed, although its host was excluded
    return after.leaving is None and ledger.closed is None


def failed_round(before: NodeState, after: NodeState) -> Round | None:
    """Return the round whose failure has just stopped the workers here, after which peers are probed (L5); or None."""
    current, ledger = before.ledger.round, after.ledger
    stopped = before.work is Work.RUNNING and after.work is Work.STOPPING
    if not stopped or current is None or len(current.members) < 2:
        return None
    if after.leaving is not None or after.run_replaced or after.row.stepped_down or not after.row.round:
        return None
    if ledger.closed is not None or (ledger.halt is not None and ledger.halt.reason not in FAILURE_REASONS):
        return None
    return current


def _say(state: NodeState, **changes: Any) -> NodeState:
    """Return the state with these changes of the row."""
    return replace(state, row=replace(state.row, **changes))


def _absorb(state: NodeState, event: node_events.NodeEvent) -> NodeState:
    row, running = state.row, state.work is Work.RUNNING
    match event:
        case node_events.EntriesRead(entries, now):
            return _read_entries(state, entries, now)
        case node_events.HistoryReplaced(ledger):
            return _replace_history(state, ledger)
        case node_events.Offered(offer):
            return replace(_say(state, offer=offer), needs_offer=False)
        case node_events.WorkerFailed(incident) if (running and not row.incident) or _is_better_cause(state, incident):
            return _say(state, incident=incident)
        case node_events.WorkersDone(stepped_down=True) if running:
            return _say(state, stepped_down=True)
        case node_events.WorkersDone() if running:
            return replace(_say(state, phase=Phase.FINISHED, progressed=True), work=Work.DONE)
        case node_events.WorkersGone(alike):
            phase = row.phase if row.phase is Phase.FINISHED else Phase.STOPPED
            return replace(_say(state, phase=phase if row.round else Phase.WAITING, alike=alike), work=Work.NONE)
        case node_events.Progressed(number, takes_notices) if running and number == row.round:
            return _say(state, progressed=True, takes_notices=row.takes_notices or takes_notices)
        case node_events.Checkpointed(number) if running and number == row.round:
            return _note_checkpoint(state, event)
        case node_events.Probed(number, unreachable) if number > row.probed and not _is_probe_unneeded(state, event):
            return _say(state, probed=number, unreachable=unreachable)
        case node_events.Answered(notice, steps) if running and notice == state.sent_notice:
            return _say(state, steps=steps, answered=notice.plan if steps else 0)
        case node_events.Asked(number, name, value) if running and number == row.round:
            return _ask(state, name, value)
        case node_events.AnswerFound(answer) if running and answer.to == state.asked:
            return _say(state, answer=answer)
        case node_events.AnswerFound(answer) if answer.to == state.ledger.head.anchors.halt and row.round:
            return _say(state, answer=answer)  # of workers that are being stopped
        case node_events.AnswerRead(to) if row.answer is not None and row.answer.to == to == state.asked:
            return _say(state, answer=None)
        case node_events.Leaving() if supersedes(state.leaving, event.grace):
            return replace(_say(state, leaving=True, returns=event.rejoin, grace=event.grace), leaving=event)
        case node_events.StoreLost():
            return replace(state, store_lost=True)
        case node_events.RunReplaced(why):
            return replace(state, run_replaced=why)
    return state


def _read_entries(state: NodeState, entries: Sequence[Entry], now: float) -> NodeState:
    ledger, offer = state.ledger, state.row.offer
    for entry in entries:
        if ledger.closed is not None:
            break  # entries after CLOSED are another run's (I12)
        ledger = advance(ledger, entry, now)
        if isinstance(entry.body, Round) and entry.body.offer == offer:
            offer = None
    resumed = any(isinstance(entry.body, Resume) for entry in entries)
    after = _replace_history(state, ledger) if resumed else replace(state, ledger=ledger)
    after = _say(
        after, asks=tuple(ask for ask in after.row.asks if ask.known == ledger.questions.answered_at(ask.name))
    )
    return replace(_say(after, offer=None), needs_offer=True) if offer != state.row.offer else after


def _note_checkpoint(state: NodeState, event: node_events.Checkpointed) -> NodeState:
    """Return the state after a checkpoint, or from when on the node notices checkpoints.

    The ledger's age is the one clock that the nodes share, so a leader of any later term can tell how old it is.
    """
    before = state.row.checkpoint
    if not event.saved and before is not None:
        return state
    newer = event.newer or (before is not None and before.newer)
    return _say(state, checkpoint=LastCheckpoint(round(state.ledger.age(event.now), 1), event.saved, newer))


def _is_better_cause(state: NodeState, incident: Incident) -> bool:
    """Return True if a failure that was found while workers were being stopped is closer to the root cause."""
    known = known_failure(state)
    better = known is not None and distance_to_cause(incident) < distance_to_cause(known)
    return better and incident.round == state.row.round


def _is_probe_unneeded(state: NodeState, found: node_events.Probed) -> bool:
    """Return True if a probe that reached all peers is no news: the next round is live, and the last probe reached all.

    This is so after every restart, and saves each node a row that the leader would have to read.
    """
    current = state.ledger.round
    following = state.ledger.is_live and current is not None and current.number > found.round
    return following and not found.unreachable and not state.row.unreachable


def _replace_history(state: NodeState, ledger: Ledger) -> NodeState:
    """Return the state on another history, without what is known of a round that is not in it.

    The offer is renewed, because a round of either history that this node has not read may have used it. Rounds of two
    histories are the same only if their members are too, because each history may have used the same offer.
    """
    before, after = (one and (one.number, one.offer, one.members) for one in (state.ledger.round, ledger.round))
    asks = tuple(replace(ask, known=ledger.questions.answered_at(ask.name)) for ask in state.row.asks)
    # Entries of two histories may have one index, so that an answer may be to another question.
    state = replace(_say(state, offer=None, asks=asks, answer=None), ledger=ledger, needs_offer=True, asked=0)
    if before is not None and before == after:
        return state
    return _enter_round(state, 0, Phase.RUNNING if state.work in (Work.RUNNING, Work.STOPPING) else Phase.WAITING)


def _enter_round(state: NodeState, number: int, phase: Phase) -> NodeState:
    """Return the state in round ``number`` (0: in no round), without the facts about another round's workers."""
    row = NodeRow(
        info=state.row.info,
        phase=phase,
        round=number,
        offer=state.row.offer,
        leaving=state.row.leaving,
        returns=state.row.returns,
        grace=state.row.grace,
        probed=state.row.probed,
        unreachable=state.row.unreachable,
    )
    return replace(state, row=row, sent_notice=None, asked=0)


def _reconcile(state: NodeState) -> tuple[NodeState, tuple[node_events.Effect, ...]]:
    if state.work is Work.RUNNING and (stop := _unwanted_stop(state)) is not None:
        release = (Notify(None),) if state.sent_notice is not None and state.sent_notice.step is None else ()
        return replace(state, work=Work.STOPPING), (*release, stop)
    if state.work is Work.RUNNING and (notice := _wanted_notice(state)) != state.sent_notice:
        before, after = (one and (one.epoch, one.plan) for one in (state.sent_notice, notice))
        if before != after:
            state = _say(state, steps=(), answered=0)
        return replace(state, sent_notice=notice), (Notify(notice),)
    if state.work is Work.RUNNING and (asked := _open_question(state)) is not None:
        return replace(_say(state, answer=None), asked=asked.index), (asked,)
    if state.work in (Work.NONE, Work.DONE) and (end := _find_exit(state)) is not None:
        return state, (end,)
    wanted, dropped = _wanted_round(state), not state.ledger.is_member(state.row.info.node_id)
    if state.work is Work.DONE and (wanted is not None or dropped):
        return replace(state, work=Work.STOPPING), (Stop("what they left behind"),)
    if state.work is Work.NONE:
        if wanted is not None:
            return _start(state, wanted)
        current = state.ledger.round if state.ledger.is_live else None
        if current is not None and current.number != state.row.round and current.offer.id in state.started:
            # The store went back to a round whose workers here were already stopped (rule S3).
            state = _say(state, phase=Phase.STOPPED, round=current.number)
        if dropped:
            state = _say(state, phase=Phase.WAITING)  # not a member any more: a newcomer from now on
    if state.needs_offer and wanted is None:
        return replace(state, needs_offer=False), (MakeOffer(),)
    return state, ()


def _unwanted_stop(state: NodeState) -> Stop | None:
    """Return the Stop for workers that must not go on; None while they may."""
    ledger = state.ledger
    if state.leaving is not None and not state.leaving.grace:
        return Stop(state.leaving.why, planned=True)
    if state.row.stepped_down:
        return Stop("what they left behind")
    if state.run_replaced:
        return Stop(state.run_replaced)
    incident = state.row.incident
    if incident is not None and not incident.follows_peer:  # else its peer may be here, about to end
        return Stop("a local worker failed")
    if ledger.closed is not None:
        return Stop(f"the job is closed: {ledger.closed.why}")
    if ledger.halt is not None:
        planned = ledger.halt.planned or ledger.halt.reason is HaltReason.RESIZE
        lost_peer = not planned and ledger.halt.incident is not None and ledger.halt.incident.follows_peer
        index = ledger.head.anchors.halt if lost_peer else 0
        return Stop(ledger.halt.why, planned, index)
    if not state.row.round:
        return Stop("the store lost the round that they are of, and the job has gone on without it")
    if ledger.round is not None and ledger.round.number != state.row.round:
        return Stop(f"round {ledger.round.number} follows: {ledger.round.why}")
    return None


def _wanted_notice(state: NodeState) -> Notice | None:
    """Return the notice that the workers should have.

    A step that they were told is never taken back: some may have stopped there.
    """
    head, stop, sent = state.ledger.head, state.ledger.planned_stop, state.sent_notice
    if stop is None or state.store_lost or not state.row.takes_notices:
        return sent if sent is not None and sent.step is not None else None
    notice = Notice(head.epoch, head.anchors.plan, stop.plan.deadline)
    return notice if stop.stop_at is None else replace(notice, step=stop.stop_at.step, leaving=stop.stop_at.leaving)


def _open_question(state: NodeState) -> node_events.FindAnswer | None:
    """Return the effect of a QUESTION about the round here; None without a new one."""
    index, found = state.ledger.questions.index, state.ledger.questions.open
    if found is None or found.round != state.row.round or index == state.asked:
        return None
    return node_events.FindAnswer(index, found.name, found.value)


def _ask(state: NodeState, name: str, value: str | None) -> NodeState:
    """Return the state after a monitor asks all nodes something, or does no longer."""
    others = tuple(ask for ask in state.row.asks if ask.name != name)
    if value is None or len(others) >= MAX_ASKS:
        return _say(state, asks=others)
    return _say(state, asks=(*others, Ask(name, value, state.ledger.questions.answered_at(name))))


def _find_exit(state: NodeState) -> Exit | None:
    """Return the Exit of a node without workers that has nothing to wait for; None while it waits."""
    if state.ledger.closed is not None:
        return Exit(state.ledger.closed.exit_code, state.ledger.closed.why)
    # A node that leaves and whose workers stopped as planned may host the store that other workers still need.
    may_be_needed = state.row.grace > 0 and state.row.stepped_down and state.ledger.planned_stop is not None
    if state.leaving is not None and not may_be_needed:
        return Exit(state.leaving.exit_code, state.leaving.why, rejoin=state.leaving.rejoin)
    if state.run_replaced and state.row.phase is not Phase.FINISHED:
        return Exit(ExitCode.STORE_LOST, state.run_replaced, rejoin=True)
    if state.store_lost or state.run_replaced:
        if state.row.phase is Phase.FINISHED:
            return Exit(ExitCode.SUCCESS, "the store is gone, but every worker of this node had exited with 0")
        return Exit(ExitCode.STORE_LOST, "the store is gone, and nothing can be agreed on without it")
    return None


def _wanted_round(state: NodeState) -> Round | None:
    """Return the round whose workers should run here and do not yet; None if there is none."""
    current = state.ledger.round if state.ledger.is_live else None
    if current is None or current.number <= state.row.round or current.offer.id in state.started:
        return None
    return current if state.ledger.is_member(state.row.info.node_id) else None


def _start(state: NodeState, wanted: Round) -> tuple[NodeState, tuple[node_events.Effect, ...]]:
    offers = (MakeOffer(),) if state.needs_offer else ()
    started = (*state.started, wanted.offer.id)[-ROUNDS_REMEMBERED:]
    state = replace(_enter_round(state, wanted.number, Phase.RUNNING), needs_offer=False, started=started)
    return replace(state, work=Work.RUNNING), (Start(wanted, state.ledger.counters.restarts), *offers)
