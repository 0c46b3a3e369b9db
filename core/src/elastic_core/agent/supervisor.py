"""The agent's event loop: feeds events to ``step`` of :mod:`elastic_core.protocol.node` and runs its effects.

The threads of the session do all blocking I/O with the store, the warden starts and stops processes, and the threads of
the output read streams. So the loop waits for the next event, and for anything else 0.2 s at most at a time: the last
output of a dead worker, a core dump, the last checkpoint (``workers``, ``worker``).

After a signal or ``elastic drain`` the node leaves, with some time for its workers before that (:class:`Departure`).
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from elastic_core.agent import report
from elastic_core.agent.account import Account, OwnRow
from elastic_core.agent.event_loop import SignalReceived
from elastic_core.agent.gates import StartDelay, repeats_request
from elastic_core.agent.probing import Isolation
from elastic_core.agent.report import Ending, finish
from elastic_core.agent.resources import Resources
from elastic_core.agent.worker_store import Stores
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name, signalled
from elastic_core.gates import AgentState
from elastic_core.monitors import LAST_WORDS_SECONDS
from elastic_core.plugins.manager import call_all
from elastic_core.protocol import node_events
from elastic_core.protocol.entries import Answers, Closed, Entry, Round
from elastic_core.protocol.node import NodeState, failed_round, is_newly_excluded, known_failure, step, supersedes
from elastic_core.protocol.node_events import AnswerFound, AnswerRead, Exit, Leaving, Work
from elastic_core.protocol.planned_stop import find_drain
from elastic_core.protocol.questions import decode
from elastic_core.protocol.roster import NodeRow, seconds_to_workers_row
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.contact import FENCE_SHARE
from elastic_core.session.join import Applicant, FormerNode, Joined
from elastic_core.session.session import Session
from elastic_core.session.state import SessionCalls
from elastic_core.warden import messages
from elastic_core.warden.client import CLOSING

SILENT_PROGRESS_SECONDS = 30.0  # for which all ranks of a script without reports must live to count as progress (L4)
ANSWER_KEPT_SECONDS = 30.0  # how long the answer to a QUESTION stands in the row, also for the next leader
ROW_REMOVAL_MAX_SECONDS = 10.0  # for the removal of the node's row at the end
WARDEN_PATIENCE = 5.0  # seconds that the warden gets to kill all processes after the second signal
HOST_RESERVE_SHARE = 0.3  # of the time until the host is taken away: for a stop in any case, when the grace is over
HOST_RESERVE_MAX_SECONDS = 10.0  # this is enough
BY_HAND = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # a person ends the run: it is not preempted
STORE_MAX_SECONDS = 0.5  # for the store's answer whether other nodes have finished
TO_WARDEN = "the workers' parent process received {}: it counts as sent to this agent"


class Supervisor:
    """The agent of a node in a job with a ledger."""

    def __init__(
        self, resources: Resources, store: RendezvousBackend, applicant: Applicant, joined: Joined, stores: Stores
    ) -> None:
        node, loop, group = resources.node, resources.loop, resources.group
        self.resources, self._publish = resources, node.publish
        self.state = NodeState(row=NodeRow(info=applicant.info, offer=applicant.offer), ledger=joined.ledger)
        self._stores = stores
        self._exit: Exit | None = None
        self._gate = StartDelay(node, loop)
        self._put_off: node_events.Stop | None = None  # while monitors are asked before it
        self.account = Account(resources)
        calls = SessionCalls(
            post=loop.post,
            publish=node.publish,
            judge=node.plugins.judge,
            crashed=lambda error: loop.post(partial(self._crash, error)),
            node_gone=node.plugins.node_gone,
            reached=group.progress.reached,
            sum_up=node.plugins.sum_up_answers,
            decisions=self.account.leader_log,
        )
        self.session = Session(store, joined, node.runtime, calls)
        self._row = OwnRow(joined.row, applicant.info.slots, resources, self.session)
        self._isolation = Isolation(applicant.info.node_id, self.session.look_up, node.runtime, resources.unreachable)
        ids = {applicant.info.node_id, *(former.node_id for former in applicant.former)}
        self._departure = Departure(self, ids, joined.drained)
        node.plugins.host_end.set_listener(lambda *said: loop.post(partial(self._departure.on_host_ends, *said)))

    @property
    def closed(self) -> Closed | None:
        """The verdict on the job; None if there is none."""
        return self.state.ledger.closed

    @property
    def signalled_at(self) -> float | None:
        """When this agent received its first signal; None for none."""
        return self._departure.signalled_at

    def leaves_others(self) -> bool:
        """Return whether other members of the newest round stay in the job; False if the store is silent."""
        current = self.state.ledger.round
        return current is not None and self.session.any_stays({*current.group_ranks}, CLOSING)

    def run(self) -> Ending:
        """Run the loop until the node's part in the job ends."""
        resources = self.resources
        self._row.follow(self.state)
        self.session.start()
        self._departure.begin()
        self.account.report_no_place(self.state)
        self._tick()
        self._gate.prepare(1)
        while self._exit is None:
            for event in resources.loop.take():
                self._handle(event)
        if self.closed is not None and self.closed.success:
            resources.finish_helpers()
        ending = self._conclude(self._exit)
        return replace(ending, recorded=resources.group.error_record(ending.incident))

    def close(self) -> None:
        """End the workers and the session, which leaves the roster. Call it once, at any time."""
        leaving = self.state.leaving is not None or self._exit is None
        self.resources.warden.close(CLOSING)  # the workers first; after an orderly end there are none
        if self._exit is None:  # run() raised: the others must not wait while snapshots are written
            with suppress(Exception):  # the defect that ended the agent may also break these calls
                for event in (node_events.WorkersGone(), Leaving("the agent failed", ExitCode.WITHDRAWN)):
                    self.state, _ = step(self.state, event)
                self._row.follow(self.state)
        returns = self.state.leaving is not None and self.state.leaving.rejoin and self._departure.received is None
        self.session.close(ROW_REMOVAL_MAX_SECONDS if not leaving else CLOSING, returns=returns)

    def look(self) -> AgentState:
        """Return what this agent does and waits for. Any thread may call this."""
        return self.account.look(self.state, self.session)

    # Events ----------------------------------------------------------------------------------------------------------

    def _handle(self, event: object) -> None:
        match event:
            case _ if callable(event):
                event()
            case SignalReceived(signum) | messages.WardenSignalled(signum):
                self._departure.on_signal(signum, to_warden=isinstance(event, messages.WardenSignalled))
            case messages.StopCompleted() | messages.Fenced():
                self._on_workers_stopped(event)
            case messages.WardenDied(reason):
                leaving = self.resources.handle_warden_death(reason)
                self.step(node_events.WorkersGone())
                self.step(leaving)
                self._exit = Exit(leaving.exit_code, leaving.why)
            case _ if isinstance(event, node_events.NodeEvent):
                self.step(event)
                if isinstance(event, AnswerFound):
                    if self._put_off is not None and event.answer.to == self._put_off.halt:
                        self._stop_now(self._put_off)
                    self.resources.loop.later(ANSWER_KEPT_SECONDS, partial(self.step, AnswerRead(event.answer.to)))
            case _ if isinstance(event, messages.StarterEvent):
                self._publish(report.starter(event))
                if isinstance(event, messages.StarterFailed):
                    self._stores.stop_hosting()
            case messages.ServiceEnded():
                self._on_store_gone(event)
            case _:
                self.step(self.resources.group.handle(event))  # type: ignore[arg-type]  # the warden's
                if isinstance(event, messages.Stuck):  # rule L3: the node withdraws, the others go on
                    self.step(Leaving(f"process {event.pid} cannot be killed", ExitCode.WITHDRAWN))
                    self._exit = Exit(ExitCode.WITHDRAWN, f"process {event.pid} cannot be killed")

    def _on_store_gone(self, event: messages.ServiceEnded) -> None:
        """Make another offer. If the workers of a round use that store, end the round, which spends no restart."""
        if (offer := self._stores.handle(event)) is None:
            return
        if offer == self.state.row.offer:
            self._do(node_events.MakeOffer())
        if (current := self.state.ledger.round) and current.offer == offer and self.state.work is Work.RUNNING:
            self.step(self.resources.group.lose_store(current, event.returncode))

    def _on_workers_stopped(self, event: messages.StopCompleted | messages.Fenced) -> None:
        if isinstance(event, messages.Fenced) and (what := report.FENCED.get(self.state.work)) is not None:
            limit = FENCE_SHARE * self.state.ledger.settings.timing.fence_after
            self._publish(Event("fenced", what.format(limit), Level.ERROR))
        if self.resources.warden.is_over(event):
            self.step(self.resources.group.early_exit(known_failure(self.state)))  # one that ended during the stop
            self.step(node_events.WorkersGone(self.resources.group.finish_round(known_failure(self.state))))

    def _tick(self) -> None:
        """Once per heartbeat: vouch that the loop lives (L1), renew the dead-man's switch (S4), look at slots (S8)."""
        self.session.tick()
        self.session.check_answers(self.resources.node.config.rdzv_endpoint)
        self._arm_fence()
        self._row.look_at_slots()
        self.resources.loop.later(self.state.ledger.settings.timing.beat_interval, self._tick)

    def _describe_workers(self, number: int) -> None:
        """Have the row say how far the workers of a round are, for ``elastic status``, and look again later."""
        current = self.state.ledger.round
        if current is None or number != self.state.row.round or self.state.work is not Work.RUNNING:
            return
        self._row.describe_workers()
        self._describe_later(current)

    def _describe_later(self, current: Round) -> None:
        age, members = self.state.ledger.age(self.resources.node.now()), len(current.members)
        later = partial(self._describe_workers, current.number)
        self.resources.loop.later(seconds_to_workers_row(age, members, self.state.row.info.node_id), later)

    def _arm_fence(self) -> None:
        """Have the warden stop the workers if this agent or the store is silent for too long (rule S4).

        Once an embedded store is known to be gone, no other node can start a round, and the workers may finish.
        """
        busy = self.state.work in (Work.RUNNING, Work.STOPPING) and not self.session.store_gone
        seconds = self._isolation.fence_in(self.session.contact, self.state.ledger) if busy else None
        self.resources.fence(seconds)

    def kill_workers(self) -> None:
        """End all workers at once; if the warden does not do it within its patience, kill the warden."""
        self.resources.warden.wake()
        self.resources.group.stop(0.0)
        self.resources.loop.later(WARDEN_PATIENCE, self._kill_warden)

    def _kill_warden(self) -> None:
        if self.state.work is Work.STOPPING:
            self.resources.warden.kill()

    def _crash(self, error: BaseException) -> None:
        """Raise the exception of a thread of the session, or of a policy."""
        if isinstance(error, ElasticError):  # a mistake of the backend, which the error names
            raise error
        raise RuntimeError("a thread of the session failed") from error

    # Effects ---------------------------------------------------------------------------------------------------------

    def step(self, event: node_events.NodeEvent | None) -> None:
        """Have the node's state machine take an event, if there is one, and do what follows."""
        if event is None:
            return
        before = self.state
        self.state, effects = self.account.node_log.call(step, before, event)
        self.account.follow(before, self.state, event)
        failed = failed_round(before, self.state)
        if isinstance(event, node_events.EntriesRead):
            if self.state.ledger.round is not before.ledger.round:
                self.resources.group.note_next_round()
            for body in (entry.body for entry in event.entries):
                if isinstance(body, Answers) and body.round == self.resources.group.round.number:
                    self.resources.group.round.callbacks.take(body.name, decode(body.report))
            self._check_again(before)
            self._departure.read(event.entries)
        self._row.follow(self.state)
        if isinstance(event, node_events.WorkersDone) and not event.stepped_down:
            self._publish(Event("workers_done", f"all local workers of round {self.state.row.round} exited with 0"))
        for effect in effects:
            self._do(effect)
        if failed is not None:  # last, because probes are not urgent
            self._isolation.probe(failed, self.resources.loop.post)

    def _do(self, effect: node_events.Effect) -> None:
        match effect:
            case node_events.Start(current, restart_count):
                self._start(current, restart_count)
            case node_events.Stop():
                self._stop(effect)
            case node_events.Notify(notice):
                self._notify(notice)
            case node_events.FindAnswer():
                self.resources.find_answer(effect, self.state.row.round)
            case node_events.MakeOffer():
                newest = self.state.ledger.round
                self.step(node_events.Offered(self._stores.offer(None if newest is None else newest.offer)))
            case Exit():
                self._exit = effect

    def _start(self, current: Round, restart_count: int) -> None:
        self._arm_fence()
        try:
            self._stores.begin(current.offer)
        except (ElasticError, OSError) as exc:
            self.step(self.resources.group.fail_start(current, exc))
            return
        self._gate.start(current.number, lambda: self._start_workers(current, restart_count))

    def _start_workers(self, current: Round, restart_count: int) -> None:
        if current.number != self.state.row.round or self.state.work is not Work.RUNNING:
            return  # the round has ended while its workers waited
        try:
            self.resources.group.start(current, restart_count)
            self._isolation.begin(current)
            if self._stores.dead(current.offer):
                self.step(self.resources.group.lose_store(current, None))
        except (ElasticError, OSError) as exc:
            self.step(self.resources.group.fail_start(current, exc))
        self.resources.loop.later(SILENT_PROGRESS_SECONDS, partial(self._report_alive, current.number))
        self._describe_later(current)

    def _report_alive(self, number: int) -> None:
        if self.resources.group.alive() and number == self.state.row.round:
            self.step(node_events.Progressed(number))

    def _notify(self, notice: node_events.Notice | None) -> None:
        """Write the notice, *then* read the reports, and answer once."""
        if (steps := self.resources.group.notify(notice)) is not None and notice is not None:
            self.step(node_events.Answered(notice, steps))

    def _stop(self, stop: node_events.Stop) -> None:
        """Stop the workers; monitors are asked first, if a failed rank may have waited for one of these workers."""
        if stop.halt and self.resources.say_last(stop.halt):
            self._put_off = stop
            self.resources.loop.later(LAST_WORDS_SECONDS, lambda: self._stop_now(self._put_off))
        else:
            self._stop_now(stop)

    def _stop_now(self, stop: node_events.Stop | None) -> None:
        if stop is None or self.state.work is not Work.STOPPING:
            return  # the workers are gone
        self._put_off, number, failure = None, self.state.row.round, known_failure(self.state)
        self._publish(Event("stopping", f"stopping the workers of round {number}: {stop.why}", Level.DEBUG))
        early = self.resources.stop_workers(stop, self._departure.received, failure)
        self._gate.prepare(number + 1)  # after the signal, since it starts a thread
        self.step(early)

    # Reports ---------------------------------------------------------------------------------------------------------

    def _check_again(self, before: NodeState) -> None:
        """Leave, and enter again through the health checks, once this host has been excluded (rule L17)."""
        if not is_newly_excluded(before, self.state, self.resources.node.now()):
            return
        if self.resources.node.plugins.checks_again:
            why = "this host was excluded: this node leaves, and enters again through its health checks"
            self._publish(Event("checked_again", why))
            self.step(Leaving(why, ExitCode.WITHDRAWN, rejoin=True))

    def _conclude(self, end: Exit) -> Ending:
        if (closed := self.closed) is not None:
            # Before the first round every node was needed, although none has started a worker.
            idle = "" if self.state.row.round or self.state.ledger.round is None else report.SPARE
            summary, plugins = self.account.summarize(self.state.ledger), self.resources.node.plugins
            over_handler = plugins.rendezvous_options().handler
            known = report.FIRST_HERE if over_handler else report.FIRST_OF_ALL
            facts = {"closed": closed, "summary": summary, "publish": self._publish}
            call_all(plugins, "elastic_job_closed", "The job ends as it would have.", **facts)
            return finish(self._publish, closed, summary, known=known, idle=idle)
        end = settle_exit(end, self._departure.received)
        if end.rejoin:
            former = FormerNode(self.state.row.info.node_id, self.state.ledger.head.index)
            return Ending(end.code, end.why, rejoin=True, former=former)
        incident = self.state.row.incident if end.code == ExitCode.STORE_LOST else None
        return report.leave(self._publish, end.code, end.why, incident)


def settle_exit(end: Exit, received: int | None) -> Exit:
    """Return how the agent ends: after a signal it does not enter the job again, whatever it was leaving for."""
    if not end.rejoin or received is None:
        return end
    return Exit(signalled(received), f"received {signal_name(received)}")


@dataclass
class Departure:
    """The state of this node's departure. All methods run on the agent's loop."""

    owner: Supervisor
    ids: Collection[str]  # of the nodes that this agent is, and was
    drained: str = ""  # why it should leave, if that was requested before it had joined
    received: int | None = None  # the first signal that was received, which the workers get too
    signalled_at: float | None = None  # when this agent itself received its first one
    _finishing: bool = False  # whether the workers here may finish, as those of other nodes have

    def begin(self) -> None:
        """Leave if a drain was requested before the node had joined."""
        if self.drained:
            self.on_drain(self.drained)

    def read(self, entries: Iterable[Entry]) -> None:
        """Leave if one of these entries requests a drain."""
        if why := find_drain(entries, self.ids):
            self.on_drain(why)

    def on_signal(self, signum: int, *, to_warden: bool = False) -> None:
        """Leave after a signal, also one to the warden; a second request to this agent ends the workers at once.

        So a signal to all processes of a job, agent and warden, as Slurm and systemd send it, counts once.
        """
        if signum not in self.owner.resources.signals:
            return
        name, now = signal_name(signum), self.owner.resources.node.now()
        if not to_warden and self.signalled_at is not None:
            if not repeats_request(signum, now - self.signalled_at):
                self._say(f"received {name} again: killing the workers")
                self.owner.kill_workers()
                self.owner.step(Leaving.signalled(signum, name))
            return
        if not to_warden:
            self.signalled_at = now
        if self.received is None:
            self.received = signum
            if to_warden:
                self._say(TO_WARDEN.format(name))
            by_hand = signum in BY_HAND
            self._ask(signum, "", 0.0 if by_hand else self.owner.resources.node.config.preemption_grace)

    def on_drain(self, why: str) -> None:
        """Leave after a drain was requested."""
        leaving = self.owner.state.leaving
        if self.received is None and (leaving is None or leaving.rejoin):
            self._ask(signal.SIGTERM, why, self.owner.state.ledger.settings.timing.plan_timeout)

    def on_host_ends(self, why: str, seconds: float, noticed_at: float) -> None:
        """Leave before this host is taken away, also if the node leaves already and would be later.

        It is taken away ``seconds`` after ``noticed_at`` of the agent's monotonic clock.
        """
        left = max(0.0, seconds - (self.owner.resources.node.now() - noticed_at))
        reserve = min(HOST_RESERVE_SHARE * left, HOST_RESERVE_MAX_SECONDS)
        longest = self.owner.state.ledger.settings.timing.plan_timeout
        self._ask(signal.SIGTERM, why, round(min(longest, left - reserve), 1))

    def _ask(self, signum: int, why: str, grace: float) -> None:
        """Leave, once the store has told whether the workers of other nodes have all exited with 0."""
        resources, depart = self.owner.resources, partial(self._depart, signum, why, grace)
        if self.owner.state.work is not Work.RUNNING or resources.node.config.max_nodes == 1:
            depart()
            return
        self.owner.session.ask_finished(lambda found: resources.loop.post(partial(depart, finished=found)))
        resources.loop.later(STORE_MAX_SECONDS, depart)

    def _depart(self, signum: int, why: str, grace: float, *, finished: bool = False, final: bool = False) -> None:
        """Leave. If other nodes have finished, first give the workers here a grace to finish too (rule L7).

        Args:
            why: Why a drain was requested, or what a plugin has learned; '' for a signal.
            grace: For how many seconds the workers may go on, to stop together with all others; 0 for not at all.
            final: Whether the grace to finish, or to stop together, is over.
        """
        state, loop = self.owner.state, self.owner.resources.loop
        grace = grace if state.work is Work.RUNNING else 0.0
        if not supersedes(state.leaving, grace):
            return  # it already leaves at least as soon
        told = why or f"received {signal_name(signum)}"
        busy = state.work in (Work.RUNNING, Work.STOPPING)
        again = "; once more to kill the workers at once" if busy and not why else ""
        at_last = partial(self._depart, signum, why, 0.0, final=True)
        if final or not (finished or self._finishing):
            within = f" within {grace:g} s, when all workers have stopped together" if grace else ""
            self._say(f"{told}: leaving{within}{again}")
            self.owner.step(Leaving(told, signalled(signum), grace))
            if grace:
                loop.later(grace, at_last)
        elif not self._finishing:
            self._finishing, ours = True, self.owner.resources.node.config.shutdown_timeout
            self._say(f"{told}: other nodes have finished, the workers here have {ours:g} s to{again}")
            loop.later(ours, at_last)

    def _say(self, message: str) -> None:
        self.owner.resources.node.publish(Event("signal", message))
