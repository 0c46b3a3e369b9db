"""The agent of a foreign rendezvous handler, which keeps no ledger: an event loop like ``agent.supervisor``'s.

It works as torchrun's agent does: requests a round from the handler, starts the workers, asks every
``--monitor_interval`` seconds how many nodes wait, and requests the next round after a failure here or if nodes wait.
``state_machine`` decides. ``thread`` calls the handler, so that a long rendezvous does not block the loop.
"""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial

from elastic_core.agent import report, rescue
from elastic_core.agent.event_loop import Crashed, HangExplained, HostEnds, Overdue, SignalReceived, StopDue
from elastic_core.agent.interruption import Interruption
from elastic_core.agent.join_gate import pass_gate
from elastic_core.agent.registration import applicant_for
from elastic_core.agent.report import Ending, finish, publish_as
from elastic_core.agent.resources import (
    ASK_SECONDS,
    Resources,
    finish_helpers,
    handle_warden_death,
    kill_workers,
    leave_signals,
    open_resources,
    stop_workers,
)
from elastic_core.agent.shutdown import TO_WARDEN
from elastic_core.agent.slot import Slot
from elastic_core.agent.start_gate import StartAnswer, StartDue
from elastic_core.agent.status import ShowState
from elastic_core.config.run import RunConfig
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name, signalled
from elastic_core.handlers import state_machine
from elastic_core.handlers.state_machine import HandlerState, HandlerWork, step
from elastic_core.handlers.status import describe_polled, round_started
from elastic_core.handlers.thread import Blind, HandlerFailed, HandlerThread, Sealed, ShutDown
from elastic_core.incidents import Failure, History, Incident, IncidentKind
from elastic_core.plugins import handler_registry
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.counters import as_record, progress_of
from elastic_core.protocol.entries import Closed, Halt, HaltReason, Round, Stacks
from elastic_core.protocol.limits import MAX_FAILURES
from elastic_core.protocol.node_events import (
    Exit,
    Hung,
    Leaving,
    Locate,
    Located,
    Start,
    Stop,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.roster import LocalStacks
from elastic_core.protocol.stacks import describe_absent, next_question_at, report_alone, with_report
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.session.verdict_event import verdict_event
from elastic_core.warden.client import CLOSING, Warden
from elastic_core.warden.messages import StarterEvent, StopCompleted, Stuck, WardenDied, WardenSignalled

COUNT_MAX_SECONDS = 5.0  # for the handler's answer how many nodes wait; after that the question counts as failed
FAILED_COUNT_INTERVAL_SECONDS = 5.0  # at least, between two failed questions: the handler may warn of each
FRUITLESS_ROUND_MIN_SECONDS = 10.0
"""For a round that was made for waiting nodes, and has as many nodes as the round before."""
BUSY_REPORT_SECONDS = 30.0  # after which it is reported that the handler still looks for a round
SHUTDOWN_MAX_SECONDS = 10.0  # for the handler's ``shutdown``

COST = """with a rendezvous handler of others this agent can do no more than torchrun's does:
a lost node is noticed when a collective fails because of it, or never; --on_node_loss has no effect
each node counts --max_restarts by itself, and prints the first failure that it saw, which others may have caused
a hang is looked for among the ranks of each node alone
a node that joins stops all workers as soon as it waits; survivors may change their ranks
a node that has finished waits for the others for {exit_barrier:g} s"""
"""Reported once, at the start."""


@dataclass(frozen=True, slots=True)
class _CountDue:
    """A timer: ask how many nodes wait, unless a newer timer was set."""

    serial: int


@dataclass(frozen=True, slots=True)
class _WhereDue:
    """A timer: ask where the ranks are, if they still make no progress."""


@dataclass(frozen=True, slots=True)
class _HandlerBusy:
    """A timer: the handler may still be looking for a round."""

    round: int


def run(
    config: RunConfig,
    plugins: Plugins,
    handler: RendezvousHandler,
    slot: Slot,
    warden: Warden,
    *,
    cpus: tuple[frozenset[int], ...],
    show_state: ShowState = lambda _: None,
) -> Ending:
    """Run one agent to its end with a handler, whose job id goes before the run's. Main thread only.

    Raises:
        ElasticError: The handler admits this node to no round.
    """
    config = replace(config, rdzv_id=handler.get_run_id() or config.rdzv_id)
    with ExitStack() as stack:
        info = applicant_for(config, plugins, slot, RUNTIME).info
        publish = partial(publish_as, plugins, info)
        publish(report.joining(config, info))
        cost = COST.format(exit_barrier=config.exit_barrier)
        publish(Event("no_ledger", f"{config.rdzv_backend}: {cost}", Level.WARNING))
        gate = plugins.join_gate(config, publish, _retry_patience(config))
        with closing(Interruption(leave_signals(config), plugins.host_end)) as interruption:
            pass_gate(gate, interruption)
        if (end := interruption.end) is not None:
            return report.leave(publish, end.code, end.why, None)
        run = RUNTIME.new_id()
        resources = stack.enter_context(open_resources(config, plugins, publish, info, run, warden, slot, cpus=cpus))
        agent = HandlerAgent(resources, RUNTIME, handler)
        show_state(agent.describe)
        resources.announce(agent.describe, None)
        return rescue.run(agent, resources)


def _retry_patience(config: RunConfig) -> float:
    """Return for how many seconds failed health checks are run again: a handler does not tell whether the job ended.

    It is the handler's ``join_timeout``, after which the others do not wait for this node any more.
    """
    with suppress(KeyError, ValueError):
        if math.isfinite(seconds := float(config.rdzv_conf["join_timeout"])):
            return seconds
    return config.timing.join_timeout


class HandlerAgent:
    """The agent's event loop: feeds events to ``state_machine.step`` and runs the effects that it returns."""

    def __init__(self, resources: Resources, runtime: Runtime, handler: RendezvousHandler) -> None:
        self._resources, self._runtime = resources, runtime
        self._config, self._plugins, self._publish = resources.config, resources.plugins, resources.publish
        self._loop, self._warden, self._group = resources.loop, resources.warden, resources.group
        self._state = HandlerState()
        self._since = self._began = runtime.now()  # when the node's state last changed
        self._sealed: Sealed | None = None
        self._port_taken = False
        self._count_timer = 0  # the serial number of the newest timer for a question
        self._asked_at: float | None = None  # when the handler was asked for a count; None if it has answered
        self._blind_since: float | None = None  # when the handler first failed to answer; None after an answer
        self._quiet_until = 0.0  # until when waiting nodes are ignored
        self._received: int | None = None  # the first signal that was received, which the workers get too
        self._directly = False  # whether this agent itself has received one
        self._ending: Ending | None = None
        self.closed: Closed | None = None  # the verdict on the job, as far as this node knows
        self._failures: deque[tuple[float, Failure]] = deque(maxlen=MAX_FAILURES)  # judged here, and when
        self._suspected: tuple[Stacks | None, float] = None, 0.0  # the newest report of a suspicion, and when it came
        self._hang: Stacks | None = None  # the newest of them that found a hang
        self._put_off: Stop | None = None  # while the workers are asked where they are
        self._locating = False  # whether it is being found out where the ranks are
        self._silence = 0.0  # seconds for which a rank of this round makes no progress; 0 while all do
        self._over = False  # whether the handler is shut down too
        self._gate = resources.start_delay(runtime.now)
        self._handler_thread = HandlerThread(handler, resources.info, self._config, self._loop.post)

    def run(self) -> Ending:
        """Run the loop until the node's part in the job ends."""
        self._gate.prepare(1)
        self._do(state_machine.AskHandler())
        while not self._over:
            for event in self._loop.take():
                self._handle(event)
        assert self._ending is not None
        if self._ending.exit_code == 0:
            finish_helpers(self._resources)
        return replace(self._ending, recorded=self._group.error_record(self._ending.incident))

    def leaves_others(self) -> bool:
        """Return whether the newest round has other nodes; a handler does not tell whether they stay."""
        return self._state.round is not None and len(self._state.round.members) > 1

    def close(self) -> None:
        """End the workers and the handler's thread. Call it once, at any time."""
        self._warden.close(CLOSING)
        self._handler_thread.close()

    def describe(self) -> str:
        """Describe what this agent does and waits for. Any thread may call this."""
        status = self._resources.status(self._runtime.now(), self._since, self._state.incident)
        return describe_polled(self._state, self._resources.info, status)

    # Events ----------------------------------------------------------------------------------------------------------

    def _handle(self, event: object) -> None:
        match event:
            case Sealed():
                self._on_sealed(event)
            case _CountDue(serial):
                if serial == self._count_timer:
                    self._ask_count()
            case _HandlerBusy(number):
                if self._state.work is HandlerWork.MEETING and number == self._round:
                    message = f"the handler has looked for a round for {BUSY_REPORT_SECONDS:g} s and still does"
                    self._say("handler_busy", message)
            case state_machine.Counted() | Blind():
                self._asked_at = None
                self._on_count(event)
            case HandlerFailed(error):
                self._on_failure(error)
            case state_machine.Judged(verdict) if verdict.delay:
                later = state_machine.Judged(replace(verdict, delay=0.0))
                self._loop.at(self._runtime.now() + verdict.delay, later)
            case state_machine.Judged() | state_machine.OthersFinished():
                self._step(event)
            case Crashed(error):
                raise RuntimeError("the failure could not be judged") from error
            case Hung() | _WhereDue():
                self._ask_where(event if isinstance(event, Hung) else None)
            case HangExplained(hung):
                self._resources.note_explained(event)
                self._resources.tell_hang(hung)
            case Located(found) if found.answers < 0:  # before a stop
                self._step(state_machine.Absent(describe_absent([found])))
                self._stop(self._put_off)
            case Located(found):
                self._on_located(found)
            case StopDue():
                self._stop(self._put_off)
            case ShutDown(error):
                self._on_shut_down(error)
            case SignalReceived(signum) | WardenSignalled(signum):
                self._on_signal(signum, to_warden=isinstance(event, WardenSignalled))
            case StartAnswer() | StartDue():
                self._gate.receive(event)
            case HostEnds(why):
                self._leave_before_host_ends(why)
            case StopCompleted():
                if self._warden.is_over(event):
                    if (early := self._group.early_exit(self._state.incident)) is not None:
                        self._step(early)
                    self._step(WorkersGone(self._group.finish_round(self._state.incident)))
            case Overdue():
                if self._state.work is HandlerWork.STOPPING:
                    self._warden.kill()
            case WardenDied(reason):
                gone = handle_warden_death(self._resources, reason)
                leaving = self._state.leaving or gone
                self._leave(leaving.exit_code, leaving.why)
            case _ if isinstance(event, StarterEvent):
                self._publish(report.starter(event))
            case _:
                self._on_worker(event)

    @property
    def _round(self) -> int:
        """The number of the newest round; 0 before the first."""
        return 0 if self._state.round is None else self._state.round.number

    def _on_worker(self, event: object) -> None:
        news = self._group.handle(event)  # type: ignore[arg-type]  # all that is left is the warden's
        if isinstance(news, WorkerFailed):
            news = WorkerFailed(with_report(news.incident, self._suspected[0]))
        if isinstance(news, WorkerFailed | WorkersDone):
            if self._state.work is HandlerWork.RUNNING:
                self._port_taken = isinstance(news, WorkerFailed) and news.incident.kind is IncidentKind.PORT_TAKEN
            self._step(news)
        if isinstance(event, Stuck):
            self._leave(ExitCode.WITHDRAWN, f"process {event.pid} cannot be killed")

    def _on_sealed(self, sealed: Sealed) -> None:
        before, now = self._state.round, self._runtime.now()
        resized = self._state.reason is HaltReason.RESIZE
        if resized and before is not None and len(before.members) == len(sealed.met.round.members):
            self._quiet_until = now + FRUITLESS_ROUND_MIN_SECONDS
        self._sealed = sealed
        self._step(sealed.met)

    def _ask_count(self) -> None:
        """Ask how many nodes wait; if the last question has no answer yet, count it as failed."""
        if self._asked_at is not None:
            self._on_count(Blind(TimeoutError(f"no answer for {self._runtime.now() - self._asked_at:.0f} s")))
        elif self._state.work is HandlerWork.RUNNING:
            self._asked_at = self._runtime.now()
            self._handler_thread.count()
            self._count_later(COUNT_MAX_SECONDS)

    def _on_count(self, event: state_machine.Counted | Blind) -> None:
        """Handle an answer. A silent store is reported once, and stops healthy workers after ``fence_after`` (S4)."""
        patience, since, now = self._config.timing.fence_after, self._blind_since, self._runtime.now()
        match event:
            case Blind(error) if since is None:
                why = handler_registry.translate_error(error, "the handler cannot say how many nodes wait").message
                self._say("handler_silent", f"{why}; the workers go on for {patience:g} s", Level.WARNING)
                self._blind_since = now
            case Blind() if since is not None and now - since >= patience:
                why = f"the handler has not answered for {patience:g} s: its store is lost"
                self._step(Leaving(why, ExitCode.STORE_LOST))
            case state_machine.Counted():
                if since is not None:
                    self._say("handler_answers", "the handler says again how many nodes wait")
                self._blind_since = None
                if now >= self._quiet_until:
                    self._step(event)
        if self._blind_since is not None:
            self._count_later(max(self._config.monitor_interval, FAILED_COUNT_INTERVAL_SECONDS))
        elif self._state.work is HandlerWork.RUNNING:
            self._count_later(self._config.monitor_interval)

    def _on_failure(self, error: BaseException) -> None:
        """End, because the handler admits this node to no round; it has no workers then."""
        if not handler_registry.is_graceful_exit(error):
            raise handler_registry.translate_error(
                error, f"the rendezvous handler {self._config.rdzv_backend!r} failed"
            ) from error
        self._leave(ExitCode.SUCCESS, f"the rendezvous has no place for this node: {error}")

    def _on_shut_down(self, error: Exception | None) -> None:
        if error is not None:  # common: its store may have ended with another node
            message = handler_registry.translate_error(error, "the rendezvous handler could not be shut down").message
            self._say("handler_stays", message, Level.DEBUG)
        self._over = True

    def _on_signal(self, signum: int, *, to_warden: bool = False) -> None:
        if signum not in self._resources.signals:
            return
        name, again = signal_name(signum), self._directly and not to_warden
        self._directly = self._directly or not to_warden
        if again:
            self._say("signal", f"received {name} again: killing the workers")
            kill_workers(self._resources, self._runtime.now())
        elif self._received is not None:  # see Departure.on_signal
            return
        else:
            self._received = signum
            if to_warden:
                self._say("signal", TO_WARDEN.format(name))
            busy = self._state.work in (HandlerWork.RUNNING, HandlerWork.STOPPING)
            more = "; once more to kill the workers at once" if busy else ""
            self._say("signal", f"received {name}: leaving{more}")
        if self._ending is not None:  # only the handler's shutdown is left
            self._over = True
        self._step(Leaving.signalled(signum, name))

    def _leave_before_host_ends(self, why: str) -> None:
        """Leave as after SIGTERM: without a ledger, workers of all nodes cannot stop together."""
        if self._received is None and self._state.leaving is None:
            self._say("signal", f"{why}: leaving")
            self._step(Leaving(why, signalled(signal.SIGTERM)))

    def _ask_where(self, news: Hung | None = None) -> None:
        """Ask where the ranks of this node are if one makes no progress, as rule L14 has it, or ask later."""
        if news is not None and news.round == self._round:
            self._silence = news.seconds
        if not self._silence or self._locating or self._state.work is not HandlerWork.RUNNING:
            return
        if (due := next_question_at(*self._suspected, self._silence)) > self._runtime.now():
            self._loop.at(due, _WhereDue())
            return
        self._locating = True
        self._resources.locate_workers(Locate(self._round, full=False, judge=True), self._runtime.thread)

    def _on_located(self, found: LocalStacks) -> None:
        """Report where the ranks of this node are, unless they have gone on meanwhile; then perhaps ask again."""
        self._locating = False
        if found.answers == self._round and self._state.work is HandlerWork.RUNNING and self._silence:
            new, last = report_alone(found, self._round, self._silence, self._suspected[0]), self._hang
            self._suspected, self._hang = (new, self._runtime.now()), new if new.hang else last
            self._publish(report.hang(new, last))
            if not self._resources.explain_hang(new, last, self._runtime.thread):
                self._resources.tell_hang(new)
        self._ask_where()

    # Effects ---------------------------------------------------------------------------------------------------------

    def _step(self, event: state_machine.HandlerEvent) -> None:
        before = self._state
        self._state, effects = step(before, event)
        if (before.work, before.round) != (self._state.work, self._state.round):
            self._since = self._runtime.now()
        for effect in effects:
            self._do(effect)

    def _do(self, effect: state_machine.HandlerEffect) -> None:
        match effect:
            case state_machine.AskHandler():
                state = self._state
                self._handler_thread.meet(self._round + 1, state.restarts, state.why, new_port=self._port_taken)
                self._loop.at(self._runtime.now() + BUSY_REPORT_SECONDS, _HandlerBusy(self._round))
            case Start(current, restart_count):
                self._start(current, restart_count)
            case Stop():
                self._stop(effect)
            case state_machine.Judge(incident, restarts):
                cause = self._state.incident
                self._judge(incident if cause is None else state_machine.as_judged(cause), restarts)
            case state_machine.AwaitOthers():
                self._say("workers_done", f"all local workers of round {self._round} exited with 0")
                if self._sealed is not None:
                    self._handler_thread.finish(self._sealed.info)
                    patience = self._config.exit_barrier + SHUTDOWN_MAX_SECONDS
                    self._loop.at(self._runtime.now() + patience, state_machine.OthersFinished())  # if no answer came
            case state_machine.Close(closed):
                self.closed = closed
                summary = self._resources.summarize(
                    rounds=self._round,
                    restarts=self._state.restarts,
                    max_restarts=self._config.max_restarts,
                    nodes_lost=0,
                    seconds=round(self._runtime.now() - self._began, 1),
                    failures=self._past_failures(),
                )
                self._ending = finish(self._publish, closed, summary, known="the first failure on this node")
                self._handler_thread.shut_down()
                self._loop.at(self._runtime.now() + SHUTDOWN_MAX_SECONDS, ShutDown())
            case Exit(code, why):
                self._leave(code, why)

    def _leave(self, code: int, why: str) -> None:
        """End at once, without a shutdown of the handler, which may close the job for the others."""
        self._ending, self._over = report.leave(self._publish, code, why, self._state.incident), True

    def _start(self, current: Round, restart_count: int) -> None:
        self._publish(round_started(self._state, current, self._config.max_restarts))
        self._gate.start(current.number, lambda: self._start_workers(current, restart_count))

    def _start_workers(self, current: Round, restart_count: int) -> None:
        if current.number != self._round or self._state.work is not HandlerWork.RUNNING:
            return  # the round has ended while its workers waited
        try:
            self._group.start(current, restart_count)
        except (ElasticError, OSError) as exc:
            self._step(self._group.fail_start(current, exc))
        self._count_later(self._config.monitor_interval)
        self._suspected, self._hang, self._silence = (None, self._runtime.now()), None, 0.0

    def _count_later(self, seconds: float) -> None:
        self._count_timer += 1
        self._loop.at(self._runtime.now() + seconds, _CountDue(self._count_timer))

    def _stop(self, stop: Stop | None) -> None:
        """Stop the workers; those that may be what a failed rank waited for are asked first where they are."""
        failed, here = self._state.incident, any(worker.is_running for worker in self._group.workers)
        if stop is None or self._state.work is not HandlerWork.STOPPING:
            return  # the workers are stopped already
        if self._put_off is None and failed is not None and failed.follows_peer and here:
            self._put_off = stop
            self._loop.at(self._runtime.now() + ASK_SECONDS, StopDue())
            asked = Locate(-self._round, full=False, judge=False, brief=True)
            self._resources.locate_workers(asked, self._runtime.thread)
            return
        self._put_off = None
        if (reason := self._state.reason) is not None:
            self._publish(report.round_halted(Halt(round=self._round, reason=reason, why=stop.why)))
        early = stop_workers(self._resources, stop, self._received, self._state.incident)
        self._gate.prepare(self._round + 1)  # after the signal, since it starts a thread
        if early is not None:
            self._step(early)

    def _past_failures(self) -> tuple[Failure, ...]:
        now = self._runtime.now()
        return tuple(replace(failure, seconds_ago=now - at) for at, failure in self._failures)

    def _judge(self, incident: Incident, restarts: int) -> None:
        """Ask the policies on a new thread: the handler's may be busy, and the loop never blocks."""
        reached = progress_of(incident.round, (), self._group.progress.reached())
        history = History(
            restarts=restarts,
            max_restarts=self._config.max_restarts,
            rounds_without_progress=0,
            failures=self._past_failures(),
            new_checkpoint=reached.saved,
            moved=reached.moved,
        )
        failure = replace(as_record(incident), new_checkpoint=history.new_checkpoint, moved=history.moved)
        self._failures.append((self._runtime.now(), failure))

        def judge() -> None:
            try:
                verdict = self._plugins.judge(incident, history)
                self._publish(verdict_event(incident, history, verdict))
                self._loop.post(state_machine.Judged(verdict))
            except Exception as exc:
                self._loop.post(Crashed(exc))

        threading.Thread(target=judge, name="elastic-judge", daemon=True).start()

    def _say(self, name: str, message: str, level: Level = Level.INFO) -> None:
        self._publish(Event(name, message, level))
