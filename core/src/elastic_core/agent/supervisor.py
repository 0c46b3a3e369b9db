"""The agent's event loop: feeds events to ``step`` of :mod:`elastic_core.protocol.node` and runs its effects.

The threads of the session do all blocking I/O with the store, the warden starts and stops processes, and the threads of
the output read streams. So the loop waits for the next event, and for anything else 0.2 s at most at a time: the last
output of a dead worker, a core dump, the last checkpoint (``workers``, ``worker_incidents``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from elastic_core.agent import report
from elastic_core.agent.event_loop import (
    AliveFor,
    Crashed,
    Depart,
    HostEnds,
    Overdue,
    SignalReceived,
    StopDue,
    Tick,
)
from elastic_core.agent.isolation import Isolation
from elastic_core.agent.report import Ending, finish
from elastic_core.agent.resources import Resources, finish_helpers, handle_warden_death, stop_workers
from elastic_core.agent.run_summary import count_run
from elastic_core.agent.shutdown import Departure, settle_exit
from elastic_core.agent.start_gate import StartAnswer, StartDue
from elastic_core.agent.status import describe_node
from elastic_core.agent.worker_row import DescribeWorkers
from elastic_core.agent.worker_store import Stores
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident
from elastic_core.protocol import node_events
from elastic_core.protocol.entries import Answers, Closed, Halt, HaltReason, Round
from elastic_core.protocol.graceful_stop import find_drain
from elastic_core.protocol.node import NodeState, failed_round, is_newly_excluded, known_failure, row_of, step
from elastic_core.protocol.node_events import AnswerFound, AnswerRead, Exit, Leaving, Work
from elastic_core.protocol.questions import decode
from elastic_core.protocol.roster import LocalWorkers, Slots
from elastic_core.protocol.row_delay import seconds_to_workers_row
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.round_questions import LAST_WORDS_SECONDS
from elastic_core.session.arrival import FormerNode
from elastic_core.session.contact import FENCE_SHARE
from elastic_core.session.join import Applicant, Joined
from elastic_core.session.runtime import Runtime
from elastic_core.session.session import Session
from elastic_core.session.state import SessionCalls
from elastic_core.warden import messages
from elastic_core.warden.client import CLOSING

SILENT_PROGRESS_SECONDS = 30.0  # for which all ranks of a script without reports must live to count as progress (L4)
ANSWER_KEPT_SECONDS = 30.0  # how long the answer to a QUESTION stands in the row, also for the next leader
ROW_REMOVAL_MAX_SECONDS = 10.0  # for the removal of the node's row at the end


class Supervisor:
    """The agent of a node in a job with a ledger; ``look`` returns which slots of this host are held (rule S8)."""

    def __init__(
        self,
        resources: Resources,
        runtime: Runtime,
        store: RendezvousBackend,
        applicant: Applicant,
        joined: Joined,
        stores: Stores,
        look: Callable[[], Slots],
    ) -> None:
        self._resources, self._runtime = resources, runtime
        self._config, self._plugins, self._publish = resources.config, resources.plugins, resources.publish
        self._loop, self._warden, self._group = resources.loop, resources.warden, resources.group
        self._state = NodeState(info=applicant.info, ledger=joined.ledger, offer=applicant.offer)
        self._stores, self._look, self._slots = stores, look, applicant.info.slots
        self._ids = {applicant.info.node_id, *(node.node_id for node in applicant.former)}  # all of this agent's
        self._exit: Exit | None = None
        self._row, self._drained = joined.row, joined.drained
        self._workers: LocalWorkers | None = None  # the part of the row for ``elastic status``
        self._no_place: Event | None = None
        self._since = runtime.now()  # when the node's state last changed
        self._nodes_lost = 0  # how often a round ended because nodes were lost, since this node joined
        self._incident: Incident | None = None  # the newest failure that is known here
        self._gate = resources.start_delay(runtime.now)
        self._put_off: node_events.Stop | None = None  # while monitors are asked before it
        calls = SessionCalls(
            post=self._loop.post,
            publish=self._publish,
            judge=self._plugins.judge,
            crashed=lambda error: self._loop.post(Crashed(error)),
            node_gone=self._plugins.node_gone,
            reached=self._group.progress.reached,
            sum_up=self._plugins.sum_up_answers,
        )
        self._session = session = Session(store, joined, runtime, calls)
        self._isolation = Isolation(applicant.info.node_id, session.look_up, runtime, resources.unreachable)
        self._departure = Departure(
            resources, runtime, self._session.ask_finished, state=lambda: self._state, step=self._step, say=self._say
        )

    @property
    def closed(self) -> Closed | None:
        """The verdict on the job; None if there is none."""
        return self._state.ledger.closed

    @property
    def signalled_at(self) -> float | None:
        """When this agent received its first signal; None for none."""
        return self._departure.signalled_at

    def leaves_others(self) -> bool:
        """Return whether other members of the newest round stay in the job; False if the store is silent."""
        current = self._state.ledger.round
        return current is not None and self._session.any_stays({*current.group_ranks}, CLOSING)

    def run(self) -> Ending:
        """Run the loop until the node's part in the job ends."""
        self._tell()
        self._session.start()
        if self._drained:  # before it had joined
            self._departure.on_drain(self._drained)
        self._report_no_place()
        self._tick()
        self._gate.prepare(1)
        while self._exit is None:
            for event in self._loop.take():
                self._handle(event)
        if self.closed is not None and self.closed.success:
            finish_helpers(self._resources)
        ending = self._conclude(self._exit)
        return replace(ending, recorded=self._group.error_record(ending.incident))

    def close(self) -> None:
        """End the workers and the session, which leaves the roster. Call it once, at any time."""
        leaving = self._state.leaving is not None or self._exit is None
        self._warden.close(CLOSING)  # the workers first; after an orderly end there are none
        if self._exit is None:  # run() raised: the others must not wait while snapshots are written
            with suppress(Exception):  # the defect that ended the agent may also break these calls
                for event in (node_events.WorkersGone(), Leaving("the agent failed", ExitCode.WITHDRAWN)):
                    self._state, _ = step(self._state, event)
                self._tell()
        returns = self._state.leaving is not None and self._state.leaving.rejoin and self._departure.received is None
        self._session.close(ROW_REMOVAL_MAX_SECONDS if not leaving else CLOSING, returns=returns)

    def describe(self) -> str:
        """Describe what this agent does and waits for. Any thread may call this."""
        session = self._session
        status = replace(
            self._resources.status(self._runtime.now(), self._since, self._incident),
            contact_at=session.contact.at,
            failing=(*session.contact.failing,),
            node_views=session.watch.nodes,
            waiting_for=session.waiting_for,
        )
        return describe_node(self._state, status)

    # Events ----------------------------------------------------------------------------------------------------------

    def _handle(self, event: object) -> None:
        match event:
            case Tick():
                self._tick()
            case AliveFor(number):
                if self._group.alive() and number == self._state.round:
                    self._step(node_events.Progressed(number))
            case DescribeWorkers(number):
                self._describe_workers(number)
            case Overdue():
                if self._state.work is Work.STOPPING:
                    self._warden.kill()
            case Crashed(ElasticError() as error):  # a mistake of the backend, which the error names
                raise error
            case Crashed(error):
                raise RuntimeError("a thread of the session failed") from error
            case SignalReceived(signum) | messages.WardenSignalled(signum):
                self._departure.on_signal(signum, to_warden=isinstance(event, messages.WardenSignalled))
            case Depart():
                self._departure.depart(event)
            case StartAnswer() | StartDue():
                self._gate.receive(event)
            case StopDue():
                self._stop(self._put_off)
            case HostEnds():
                self._departure.on_host_ends(event)
            case messages.StopCompleted() | messages.Fenced():
                self._on_workers_stopped(event)
            case messages.WardenDied(reason):
                leaving = handle_warden_death(self._resources, reason)
                self._step(node_events.WorkersGone())
                self._step(leaving)
                self._exit = Exit(leaving.exit_code, leaving.why)
            case _ if isinstance(event, node_events.NodeEvent):
                self._step(event)
                if isinstance(event, AnswerFound):
                    self._stop(self._put_off)
                    self._loop.at(self._runtime.now() + ANSWER_KEPT_SECONDS, AnswerRead(event.answer.to))
            case _ if isinstance(event, messages.StarterEvent):
                self._publish(report.starter(event))
                if isinstance(event, messages.StarterFailed):
                    self._stores.stop_hosting()
            case messages.ServiceFailed() | messages.ServiceEnded():
                self._on_store_gone(event)
            case _:
                self._step(self._group.handle(event))  # type: ignore[arg-type]  # the warden's
                if isinstance(event, messages.Stuck):  # rule L3: the node withdraws, the others go on
                    self._step(Leaving(f"process {event.pid} cannot be killed", ExitCode.WITHDRAWN))
                    self._exit = Exit(ExitCode.WITHDRAWN, f"process {event.pid} cannot be killed")

    def _on_store_gone(self, event: messages.ServiceFailed | messages.ServiceEnded) -> None:
        """Make another offer. If the workers of a round use that store, end the round, which spends no restart."""
        if (offer := self._stores.handle(event)) is None:
            return
        if offer == self._state.offer:
            self._do(node_events.MakeOffer())
        if (current := self._state.ledger.round) and current.offer == offer and self._state.work is Work.RUNNING:
            self._step(self._group.lose_store(current, event if isinstance(event, messages.ServiceEnded) else None))

    def _on_workers_stopped(self, event: messages.StopCompleted | messages.Fenced) -> None:
        if isinstance(event, messages.Fenced) and (what := report.FENCED.get(self._state.work)) is not None:
            limit = FENCE_SHARE * self._state.ledger.settings.timing.fence_after
            self._say("fenced", what.format(limit), Level.ERROR)
        if self._warden.is_over(event):
            self._step(self._group.early_exit(known_failure(self._state)))  # one that ended during the stop
            self._step(node_events.WorkersGone(self._group.finish_round(known_failure(self._state))))

    def _tick(self) -> None:
        """Once per heartbeat: vouch that the loop lives (L1), renew the dead-man's switch (S4), look at slots (S8)."""
        self._session.tick()
        self._session.check_answers(self._config.rdzv_endpoint)
        self._arm_fence()
        before, self._slots = self._slots, self._look()
        if not set(before.held) <= set(self._slots.held):  # other changes go with the next amendment
            self._publish_row()
        self._loop.at(self._runtime.now() + self._state.ledger.settings.timing.beat_interval, Tick())

    def _describe_workers(self, number: int) -> None:
        """Have the row say how far the workers of a round are, for ``elastic status``, and look again later."""
        current = self._state.ledger.round
        if current is None or number != self._state.round or self._state.work is not Work.RUNNING:
            return
        if (found := self._group.describe_workers(*self._session.heartbeats)) is not None:
            self._workers = found
            self._publish_row()
        self._describe_later(current)

    def _describe_later(self, current: Round) -> None:
        now, members = self._runtime.now(), len(current.members)
        wait = seconds_to_workers_row(self._state.ledger.age(now), members, self._state.info.node_id)
        self._loop.at(now + wait, DescribeWorkers(current.number))

    def _arm_fence(self) -> None:
        """Have the warden stop the workers if this agent or the store is silent for too long (rule S4).

        Once an embedded store is known to be gone, no other node can start a round, and the workers may finish.
        """
        busy = self._state.work in (Work.RUNNING, Work.STOPPING) and not self._session.store_gone
        seconds = self._isolation.fence_in(self._session.contact, self._state.ledger) if busy else None
        self._resources.fence(seconds, self._runtime.now())

    # Effects ---------------------------------------------------------------------------------------------------------

    def _step(self, event: node_events.NodeEvent | None) -> None:
        if event is None:
            return
        before = self._state
        self._state, effects = step(before, event)
        self._remember(before)
        failed = failed_round(before, self._state)
        if isinstance(event, node_events.EntriesRead):
            node, own = self._state.info.node_id, before.incident
            for news in report.ledger_events(before.ledger, event.entries, event.now, node, own):
                self._publish(news)
            bodies = [entry.body for entry in event.entries]
            self._nodes_lost += sum(isinstance(b, Halt) and b.reason is HaltReason.NODE_LOST for b in bodies)
            if self._state.ledger.round is not before.ledger.round:
                self._group.note_next_round()
            for body in bodies:
                if isinstance(body, Answers) and body.round == self._group.round.number:
                    self._group.round.questions.take(body.name, decode(body.report))
            self._report_no_place()
            self._check_again(before)
            if why := find_drain(event.entries, self._ids):
                self._departure.on_drain(why)
        self._tell()
        if isinstance(event, node_events.WorkersDone):
            self._say("workers_done", f"all local workers of round {self._state.round} exited with 0")
        for effect in effects:
            self._do(effect)
        if failed is not None:  # last, because probes are not urgent
            self._isolation.probe(failed, self._loop.post)

    def _remember(self, before: NodeState) -> None:
        """Keep what :meth:`describe` shows; no decision depends on it."""
        state, halt = self._state, self._state.ledger.halt
        if (before.work, before.round, before.ledger.is_live) != (state.work, state.round, state.ledger.is_live):
            self._since = self._runtime.now()
        self._incident = state.incident or (halt and halt.incident) or self._incident

    def _do(self, effect: node_events.Effect) -> None:
        match effect:
            case node_events.Start(current, restart_count):
                self._start(current, restart_count)
            case node_events.Stop():
                self._stop(effect)
            case node_events.Notify(notice):
                self._notify(notice)
            case node_events.FindAnswer():
                self._resources.find_answer(effect, self._runtime.thread)
            case node_events.MakeOffer():
                newest = self._state.ledger.round
                self._step(node_events.Offered(self._stores.offer(None if newest is None else newest.offer)))
            case Exit():
                self._exit = effect

    def _start(self, current: Round, restart_count: int) -> None:
        self._arm_fence()
        self._workers = None
        try:
            self._stores.begin(current.offer)
        except (ElasticError, OSError) as exc:
            self._step(self._group.fail_start(current, exc))
            return
        self._gate.start(current.number, lambda: self._start_workers(current, restart_count))

    def _start_workers(self, current: Round, restart_count: int) -> None:
        if current.number != self._state.round or self._state.work is not Work.RUNNING:
            return  # the round has ended while its workers waited
        try:
            self._group.start(current, restart_count)
            self._isolation.begin(current)
            if self._stores.dead(current.offer):
                self._step(self._group.lose_store(current, None))
        except (ElasticError, OSError) as exc:
            self._step(self._group.fail_start(current, exc))
        self._loop.at(self._runtime.now() + SILENT_PROGRESS_SECONDS, AliveFor(current.number))
        self._describe_later(current)

    def _notify(self, notice: node_events.Notice | None) -> None:
        """Write the notice, *then* read the reports, and answer once."""
        if (steps := self._group.notify(notice)) is not None and notice is not None:
            self._step(node_events.Answered(notice, steps))

    def _stop(self, stop: node_events.Stop | None) -> None:
        """Stop the workers; monitors are asked first, if a failed rank may have waited for one of these workers."""
        if stop is None or self._state.work is not Work.STOPPING:
            return  # the workers are gone
        if stop.halt and self._resources.say_last(stop.halt, self._runtime.thread):
            self._put_off = replace(stop, halt=0)
            self._loop.at(self._runtime.now() + LAST_WORDS_SECONDS, StopDue())
            return
        self._put_off, number, failure = None, self._state.round, known_failure(self._state)
        self._say("stopping", f"stopping the workers of round {number}: {stop.why}", Level.DEBUG)
        early = stop_workers(self._resources, stop, self._departure.received, failure)
        self._gate.prepare(number + 1)  # after the signal, since it starts a thread
        self._step(early)

    # Reports ---------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Publish the node's row if it has changed."""
        if (row := row_of(self._state)) != self._row:
            self._row = row
            self._publish_row()

    def _publish_row(self) -> None:
        reached = self._group.progress.reached()
        self._session.publish_row(replace(self._row, slots=self._slots, workers=self._workers, reached=reached))

    def _say(self, name: str, message: str, level: Level = Level.INFO) -> None:
        self._publish(Event(name, message, level))

    def _report_no_place(self) -> None:
        """Report why the job does not take this node; once for each reason."""
        why = report.no_place(self._state.ledger, self._state.info)
        if why is not None and why != self._no_place:
            self._publish(why)
            self._no_place = why

    def _check_again(self, before: NodeState) -> None:
        """Leave, and enter again through the health checks, once this host has been excluded (rule L17)."""
        if not is_newly_excluded(before, self._state, self._runtime.now()):
            return
        if self._plugins.checks_again:
            why = "this host was excluded: this node leaves, and enters again through its health checks"
            self._say("checked_again", why)
            self._step(Leaving(why, ExitCode.WITHDRAWN, rejoin=True))

    def _conclude(self, end: Exit) -> Ending:
        if (closed := self.closed) is not None:
            # Before the first round every node was needed, although none has started a worker.
            idle = "" if self._state.round or self._state.ledger.round is None else report.SPARE
            counted = count_run(self._state.ledger, self._runtime.now())
            summary = self._resources.summarize(**counted, nodes_lost=self._nodes_lost)
            known = report.FIRST_HERE if self._plugins.rendezvous_options().handler else report.FIRST_OF_ALL
            return finish(self._publish, closed, summary, known=known, idle=idle)
        end = settle_exit(end, self._departure.received)
        if end.rejoin:
            former = FormerNode(self._state.info.node_id, self._state.ledger.head.index)
            return Ending(end.code, end.why, rejoin=True, former=former)
        incident = self._state.incident if end.code == ExitCode.STORE_LOST else None
        return report.leave(self._publish, end.code, end.why, incident)
