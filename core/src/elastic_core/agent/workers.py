"""The workers of one node in one round: started and stopped through the warden, with a record of how each one ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any

from elastic_core.agent import worker_channels
from elastic_core.agent.directories import make_directories, remove_round
from elastic_core.agent.output import Output
from elastic_core.agent.report import Interruptions, Recovery, initialized, restarted
from elastic_core.agent.worker import Node, Worker, ignored_signals, killed_by, worker_failed, worker_lingers
from elastic_core.agent.worker_channels import Reports
from elastic_core.causes import DETAIL_MAX_CHARACTERS, EXCEPTION_EXIT_CODE, MESSAGE_MAX_CHARACTERS, Cause
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import describe_exit, signal_name
from elastic_core.incidents import Incident, IncidentKind, describe_early_exit, distance_to_cause
from elastic_core.monitors import Assignment, PlannedStop, RankFailed, RunningRound, WorkerView
from elastic_core.plugins.manager import worker_cpus
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressEvent, ProgressTable, StepSeen
from elastic_core.protocol import node_events
from elastic_core.protocol.entries import Round, place
from elastic_core.protocol.roster import LocalWorkers, SavedStep
from elastic_core.threads import bounded, prepare_later
from elastic_core.warden import messages
from elastic_core.warden.client import SpawnRequest, Warden

DRAIN_MAX_SECONDS = 0.2  # for the end of a dead worker's streams, which its children may hold open
LAST_LOOK_MAX_SECONDS = 0.2  # for each look of a monitor after a planned stop, as at the disk
PREPARE_AFTER_SECONDS = 0.1  # after the process group is there, when the first step has the CPUs
IDLE_AFTER_SECONDS = 3.0  # after the first start of workers, for those that never have a process group
LONG_IMPORT_SECONDS = 10.0  # from the first round on which workers wait for the starter, after which a line says so


def import_failure_path() -> None:
    """Import what only a failure needs: a recovery would wait 20 ms of CPU, and an upgrade may remove it until then."""
    from elastic_core.worker.library import failure_writer

    import_module("elastic_core.plugins.verdicts")
    failure_writer()


@dataclass
class LocalRound:
    """The state of one round on this node."""

    started_at: float = 0.0
    fresh: str = ""  # why a worker started fresh; '' if none has
    unlearned: int = 0  # how many modules the workers import that the starter has not
    workers: dict[int, Worker] = field(default_factory=dict)  # by tag
    running: RunningRound = field(default_factory=lambda: RunningRound(0, "", (), Path()))  # as monitors see it
    recovered: Recovery | None = None  # the timing of the interruption before
    initialized: bool = False  # whether it was reported that the process group is ready
    records: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # error files of failed workers, by rank
    over: bool = False  # whether the round has failed or is being stopped, so that further failures are consequences
    sent: dict[int, int] = field(default_factory=dict)  # by pid: the last signal that the warden has sent to end it
    cause_wanted: bool = False  # whether no failure so far has its cause here for certain
    notice: tuple[float, float] | None = None  # when the workers were told to stop, and for how long they may go on

    @property
    def has_started(self) -> bool:
        """True if every worker has a process."""
        return all(worker.pid is not None for worker in self.workers.values())

    def views(self) -> tuple[WorkerView, ...]:
        """Return the workers as monitors see them. Any thread may call this."""
        return tuple(worker.view() for worker in tuple(self.workers.values()))

    def note_notice(self, seconds: float | None, now: float) -> None:
        """Note that from now on the workers have ``seconds`` to save; None if the notice is withdrawn."""
        if seconds is None or self.notice is None:
            self.notice = None if seconds is None else (now, seconds)

    def is_cause(self, worker: Worker | None, incident: Incident) -> bool:
        """Return whether a worker that ends during the stop failed by itself, and so caused the failure.

        A killed process may be reaped long after its peers have seen its connections close, because of a device or a
        core dump. A program may take seconds to end after an exception.
        """
        if not self.cause_wanted or worker is None or incident.exit_code is None or distance_to_cause(incident):
            return False
        own = worker.sent != signal.SIGKILL if incident.exit_code < 0 else worker.raised or worker.over
        self.cause_wanted = not own or incident.exit_code in (-signal.SIGABRT, -signal.SIGINT, -signal.SIGHUP)
        return not self.cause_wanted


@dataclass
class WorkerGroup:
    """The local workers: which process is which rank, and which failure came first.

    Methods are called on the agent's loop. Each of their waits ends after 0.5 s; causes have a little more in a round.
    """

    node: Node
    warden: Warden
    output: Output
    reports: Reports
    post: Callable[[object], None] = lambda event: None  # gives the agent's loop an event
    progress: ProgressTable = field(default_factory=ProgressTable)
    interruptions: Interruptions = field(default_factory=Interruptions)
    stop_facts: dict[str, Mapping[str, Field]] = field(default_factory=dict)
    """The findings of monitors after the last planned stop, by the name of their event."""
    _round: LocalRound = field(default_factory=LocalRound)  # the current one, or the last
    _snapshot: tuple[tuple[int, int] | None, float] = (None, 0.0)  # the newest in memory, and when it was noticed
    _described: object = None  # what the node's row was given last, with instants in place of ages
    _tags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _reasons: set[str] = field(default_factory=set)  # the reported reasons why workers started fresh

    def start(self, current: Round, restart_count: int) -> None:
        """Start every local rank of a round. Failures come later, as events."""
        node, warm, before = self.node, self.warden.starter is not None, self._round.running.number  # 0 for none
        fresh = "" if warm else "the warm start is off"
        self._round = LocalRound(started_at=node.now(), fresh=fresh)
        self.reports.clear()
        self.progress.begin(current.number)
        self._begin_monitors(current)
        for assignment in node.assignments(current, restart_count):
            self._start_worker(assignment, warm=warm)
        if warm and not before:
            prepare_later(LONG_IMPORT_SECONDS, lambda: self._say_import(current.number), name="elastic-import")
        remove_round(node.round_directory(before), temporary=node.temporary)

    def _start_worker(self, assignment: Assignment, *, warm: bool) -> None:
        config, plugins, tag = self.node.config, self.node.plugins, next(self._tags)
        directory = Path(assignment.error_file).parent
        with contextlib.suppress(OSError):  # the output reports what it cannot write, and goes on
            make_directories(directory)
        argv, env = plugins.worker_command(config.program, assignment), self.node.environment(assignment)
        cpus = worker_cpus(plugins, config.program, assignment)
        streams = self.output.open(
            rank=assignment.rank,
            local_rank=assignment.local_rank,
            directory=directory,
            prefix=Template(config.line_prefix).safe_substitute(  # unknown names stay as they are
                role_name=assignment.role, rank=assignment.rank, local_rank=assignment.local_rank
            ),
        )
        self._round.workers[tag] = worker = Worker(assignment, streams, tag=tag)
        observe = partial(self.progress.observe, assignment.rank)
        with contextlib.closing(streams), self.reports.open(tag, worker.reported, observe) as control:
            self.warden.spawn(
                tag,
                SpawnRequest(
                    argv, env, cpus=cpus, ignored=ignored_signals(config), warm=warm, startup=plugins.worker_startup
                ),
                stdout=streams.stdout,
                stderr=streams.stderr,
                control=control.fileno(),
            )

    @property
    def round(self) -> RunningRound:
        """The current round, or the last, as monitors see it. Any thread may read this."""
        return self._round.running

    @property
    def started_at(self) -> float:
        """When the current round started, or the last."""
        return self._round.started_at

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The local ranks of the current round, in order. Any thread may read this."""
        return tuple(self._round.workers.values())

    def alive(self) -> bool:
        """Return True if every local rank has been started and none has ended."""
        return bool(self._round.workers) and all(worker.is_running for worker in self.workers)

    def describe_workers(self, heartbeat: int, store: float) -> LocalWorkers | None:
        """Return the part of the node's row about its workers; None if only ages have changed since the last call.

        ``heartbeat`` is the number of the last one, which the store took ``store`` seconds to answer.
        """
        now, progress, checkpoint = self.node.now(), self.progress.newest(), self.progress.last_checkpoint()
        known = [progress.get(worker.assignment.rank, (Progress(), None)) for worker in self.workers]
        if (snapshot := self._round.running.callbacks.find_snapshot()) != self._snapshot[0]:
            self._snapshot = (snapshot, now)
        found = LocalWorkers(
            heartbeat=heartbeat,
            pids=tuple(worker.pid for worker in self.workers),
            steps=tuple(reached.step for reached, _ in known),
            seconds=tuple(None if ago is None else round(ago, 1) for _, ago in known),
            snapshot=None if snapshot is None else SavedStep(snapshot[1], round(now - self._snapshot[1], 1)),
            checkpoint=None if checkpoint is None else SavedStep(checkpoint[0], round(checkpoint[1], 1)),
            store=round(store, 4),
            notes={**self._round.running.notes},
        )
        moved = [None if ago is None else round(now - ago) for _, ago in known]
        saved = None if checkpoint is None else round(now - checkpoint[1])
        described = (found.pids, found.steps, moved, self._snapshot, saved, found.notes)
        if described == self._described:
            return None
        self._described = described
        return found

    def handle(
        self, event: messages.WardenEvent | worker_channels.Report | RankFailed | ProgressEvent
    ) -> node_events.NodeEvent | None:
        """Handle an event of the warden, a worker or a monitor; return the node event that follows, if any."""
        match event:
            case StepSeen(number) if not self._round.over and self.alive():
                return node_events.Progressed(number)
            case RankFailed():
                return self._fail_rank(event)
            case messages.Signalled():
                self._round.sent.update(dict.fromkeys(event.pids, event.signum))
                own = [worker for worker in self.workers if worker.pid in event.pids]
                for each in own:
                    each.sent = event.signum
                self.node.publish(workers_signalled(event, of_workers=bool(own)))
            case messages.Stuck():
                where = event.wchan or "an unknown place"
                message = f"process {event.pid} ({event.name}) does not die: it waits in the kernel, in {where}"
                fields: dict[str, Field] = {"pid": event.pid, "wchan": event.wchan}
                self.node.publish(Event("worker_stuck", message, Level.ERROR, fields))
            case _ if worker := self._round.workers.get(getattr(event, "tag", 0)):
                return self._handle_of(worker, event)
        return None

    def _handle_of(self, worker: Worker, event: object) -> node_events.NodeEvent | None:
        """Handle an event of one worker of the current round."""
        rank = worker.assignment.rank
        match event:
            case messages.Spawned():
                worker.pid, worker.sent = event.pid, self._round.sent.get(event.pid, 0)
                self._round.unlearned = max(self._round.unlearned, event.unlearned)
                if not self._round.over and self._round.has_started:
                    self._say_started()
                return self._fail_exit(worker, EXCEPTION_EXIT_CODE) if worker.failed_early else self._progress()
            case worker_channels.Initialized():
                worker.initialized = True
                return self._progress()
            case worker_channels.Failed() if worker.is_running:
                return self._fail_exit(worker, EXCEPTION_EXIT_CODE)
            case worker_channels.Failed():
                worker.failed_early = True
            case worker_channels.Lingers() if worker.exit_code is None:
                self.node.publish(worker_lingers(rank, worker.pid))
            case worker_channels.Stepped():
                worker.steps = True
                if all(other.steps for other in self.workers):
                    return node_events.Progressed(worker.assignment.round, takes_notices=True)
            case worker_channels.NotUnderstood(why=why):
                message = f"what rank {rank} says to its agent is ignored where it is no report: {why}"
                self.node.publish(Event("report_ignored", message, Level.DEBUG, {"rank": rank, "why": why}))
            case messages.StartedFresh():
                self._say_fresh(rank, event.why)
            case messages.SpawnFailed(error=error):
                return self._fail(worker, Cause(message=error, kind=IncidentKind.START_FAILED))
            case messages.Exited(pid=pid, returncode=code, at=at):
                worker.pid, worker.exit_code, worker.ended_at = pid, code, at
                worker.sent = self._round.sent.get(pid, worker.sent)
                return self._exited(worker) if code == 0 else self._fail_exit(worker, code)
            case worker_channels.Terminated() if worker.pid and not self._round.over:
                if self._round.notice is not None:
                    return self._exited(worker)
                self.interruptions.begin(self.node.now(), worker.ended_at)
                return self._fail(worker, Cause(), 0, at=worker.ended_at)
        return None

    def _exited(self, worker: Worker) -> node_events.NodeEvent | None:
        """Note that a worker has exited with 0; return the node event that follows if it was the last."""
        self.reports.drain()  # the worker's end may be known before its last report is read
        if not (self._round.over or self._round.notice is not None) and worker.reported.terminated:
            worker.terminated = True
            self.reports.note_terminated(worker.tag)
        if any(other.exit_code != 0 or other.terminated for other in self.workers):
            return None
        self.output.drain([one.streams for one in self.workers], DRAIN_MAX_SECONDS)
        return node_events.WorkersDone(stepped_down=any(other.reported.leaves for other in self.workers))

    def notify(self, notice: node_events.Notice | None) -> tuple[int, ...] | None:
        """Send the workers the notice of a PLAN, then read their reports; return each rank's step, or None.

        None if a rank's step is unknown, or if the notice has a step. The notice None lets waiting workers go on.
        """
        living = [tag for tag, worker in self._round.workers.items() if worker.exit_code is None]
        self._round.note_notice(None if notice is None else notice.deadline, self.node.now())
        reached = [tag for tag in living if self.reports.tell(tag, worker_channels.packet(notice))]
        if notice is None or notice.step is not None or len(reached) < len(living) or not self.reports.drain():
            return None
        steps = tuple(worker.reported.step for worker in self.workers if worker.reported.step is not None)
        return steps if len(steps) == len(self.workers) else None

    def stop(
        self, grace: float, *, broken: bool = False, failure: Incident | None = None, signum: int = signal.SIGTERM
    ) -> None:
        """Stop all workers with ``signum``, and SIGKILL after ``grace`` seconds; the warden answers StopCompleted.

        A ``broken`` round is stopped for a ``failure``, whose cause may be a worker here that is about to end. If the
        failure follows from the loss of a peer, a worker whose program has ended gets no SIGTERM: it may be that peer,
        and its exit code tells.
        """
        if broken and not self._round.over:
            self._want_cause()
        ending = self._note_ended() if failure is not None and failure.follows_peer else ()
        if not broken and not self._round.over:
            self._round.note_notice(grace, self.node.now())
        self._round.over = True
        self.interruptions.begin(self.node.now())
        self.warden.stop(grace=grace, signum=signum, ending=ending)

    def early_exit(self, failure: Incident | None) -> node_events.WorkerFailed | None:
        """Return the first local worker that has left early, if that explains the round's failure."""
        left = [worker for worker in self.workers if worker.has_left_early]
        if not left or failure is None or not failure.follows_peer:
            return None
        first = min(left, key=lambda worker: worker.ended_at)
        code = None if first.exit_code else 0  # one whose program had ended was killed before it exited
        cause = Cause(detail=first.streams.tail())
        if not first.terminated:
            cause = replace(cause, kind=IncidentKind.EXITED_EARLY, message=describe_early_exit(failure))
        return self._publish_failure(self._incident(first, cause, code, at=first.ended_at))

    def note_next_round(self) -> None:
        """Note that this node has read the next round."""
        if self.interruptions.current is not None:
            self.interruptions.current.decided = self.node.now()

    def finish_round(self, failure: Incident | None = None) -> int:
        """Finish the logs of a round whose processes are all gone; return how many workers failed as ``failure`` did.

        Those that were stopped before they failed are not among them.
        """
        if self.interruptions.current is not None:
            self.interruptions.current.stopped = self.node.now()
        self.output.drain([one.streams for one in self.workers], DRAIN_MAX_SECONDS)
        self._look_last()
        self.close()
        alike = sum(one.failed_alike(self.node, failure, self._after()) for one in self.workers) if failure else 0
        self._round.workers.clear()
        self.reports.clear()
        return alike

    def close(self) -> None:
        """Have the monitors of the last round end: the agent ends."""
        self._round.running.closed.set()

    def _look_last(self) -> None:
        """Have the monitors look at a round whose workers had a notice and have ended, and publish their events."""
        if self._round.notice is None or not self._round.workers:
            return
        (began, had), ended = self._round.notice, self.node.now()
        self.reports.drain()
        steps = [reached.step for reached, _ in self.progress.newest().values() if reached.step is not None]
        self.stop_facts = {}
        for look in self._round.running.callbacks.last_looks:
            checkpoint = self.progress.last_checkpoint()
            if checkpoint is not None:
                checkpoint = checkpoint[0], max(0.0, checkpoint[1] - (self.node.now() - ended))
            snapshot = self._round.running.callbacks.find_snapshot()
            step = None if snapshot is None else snapshot[1]
            stop = PlannedStop(had, ended - began, max(steps, default=None), checkpoint, step)
            with contextlib.suppress(TimeoutError):
                if (found := bounded(partial(look, stop), LAST_LOOK_MAX_SECONDS)) is not None:
                    self.stop_facts[found.name] = found.fields
                    self.node.publish(found)

    def error_record(self, incident: Incident | None) -> Mapping[str, Any] | None:
        """Return the error file of a failed worker of this node; None if there is none."""
        if incident is None or incident.rank is None or incident.node_id != self.node.info.node_id:
            return None
        return self._round.records.get(incident.rank) or None if incident.round == self._round.running.number else None

    def lose_store(self, current: Round, returncode: int | None) -> node_events.WorkerFailed | None:
        """End the round whose store was here and is gone; no worker failed, so no restart is spent."""
        how = "was not there" if returncode is None else describe_exit(returncode)
        message = f"the process that holds the workers' store {how}"
        return self._report_failure(
            self.node.incident(IncidentKind.STORE_DIED, current.number, self._after(), message=message)
        )

    def fail_start(self, current: Round, error: ElasticError | OSError) -> node_events.WorkerFailed:
        """Return the failure of a round whose start failed: no descriptors, a full disk, a plugin that raised."""
        rank = place(current.members, self.node.info.node_id).first_rank
        message = f"the workers could not be started: {getattr(error, 'message', error)}"[:500]
        incident = self.node.incident(IncidentKind.START_FAILED, current.number, rank=rank, message=message)
        return node_events.WorkerFailed(self.node.plugins.explain_failure(incident))

    def _after(self, at: float | None = None) -> float:
        """Return the seconds from the start of the round until an instant, by default now."""
        return (self.node.now() if at is None else at) - self._round.started_at

    def _say_import(self, number: int) -> None:
        """Publish that the workers of a round wait for the starter, if none has started. For any thread."""
        if not self._round.over and {w.pid for w in self.workers if w.assignment.round == number} == {None}:
            names = ", ".join(self.warden.starter.imports if self.warden.starter else ())
            message = f"the workers wait for the import of {names or 'modules'} ({self._after():.0f} s so far)"
            self.node.publish(Event("importing", message))

    def _say_fresh(self, rank: int, why: str) -> None:
        """Publish why a worker starts fresh, once for each reason."""
        self._round.fresh = why
        if why not in self._reasons:
            self._reasons.add(why)
            message = f"rank {rank} starts fresh, without the warm start: {why}"
            self.node.publish(Event("started_fresh", message, fields={"rank": rank, "why": why}))

    def _say_started(self) -> None:
        number, count, took = self._round.running.number, len(self._round.workers), round(self._after(), 6)
        fields: dict[str, Field] = {"round": number, "workers": count, "took_s": took}
        message = f"{count} local worker(s) of round {number} run"
        self.node.publish(Event("workers_started", message, Level.DEBUG, fields))
        self._round.recovered = recovery = self.interruptions.end(self.node.now())
        if recovery is None:
            prepare_later(IDLE_AFTER_SECONDS, import_failure_path, name="elastic-prepare")
        else:
            self.node.publish(restarted(number, recovery, self._round.fresh, self._round.unlearned))

    def _progress(self) -> node_events.Progressed | None:
        """Return Progressed once all local workers run and are in the process group."""
        current, recovery = self._round, self._round.recovered
        ready = current.has_started and all(worker.initialized for worker in self.workers)
        if current.initialized or current.over or not ready:
            return None
        current.initialized, number, took = True, current.running.number, round(self._after(), 6)
        self.node.publish(initialized(number, len(current.workers), took, recovery, self.node.now()))
        if recovery is None:
            prepare_later(PREPARE_AFTER_SECONDS, import_failure_path, name="elastic-prepare")
        return node_events.Progressed(number)

    def _fail_exit(self, worker: Worker, code: int) -> node_events.WorkerFailed | None:
        """Fail the round for a worker that has exited with ``code``, or will, as an exception has ended its program."""
        self.interruptions.begin(self.node.now(), worker.ended_at or None)
        read = self.output.catch_up if worker.is_running else self.output.drain
        read([worker.streams], DRAIN_MAX_SECONDS)
        self.reports.drain()  # the worker's end may be known before its last report is read
        if self._round.over and not self._round.cause_wanted:
            return None  # a consequence
        sent = self._round.running.signals.get(worker.pid or 0)
        cause, record = worker.cause(self.node, code, self._after())
        if sent is not None and code == -sent.signum:
            return self._fail(worker, killed_by(sent, cause))
        if record and code != -worker.sent:
            self._round.records[worker.assignment.rank] = record
        return self._fail(worker, cause, code)

    def _fail(
        self, worker: Worker, cause: Cause, exit_code: int | None = None, *, at: float | None = None
    ) -> node_events.WorkerFailed | None:
        """Fail the round for a worker that failed at an instant, by default now."""
        self.reports.drain()
        return self._report_failure(self._incident(worker, cause, exit_code, at), cause.text, worker)

    def _incident(self, worker: Worker, cause: Cause, exit_code: int | None, at: float | None = None) -> Incident:
        step, counts_on = self.progress.step(worker.assignment.rank)
        return self.node.incident(
            cause.kind,
            worker.assignment.round,
            self._after(at),
            rank=worker.assignment.rank,
            local_rank=worker.assignment.local_rank,
            pid=worker.pid,
            exit_code=exit_code,
            message=cause.message[:MESSAGE_MAX_CHARACTERS],
            exception=cause.exception,
            follows_peer=cause.follows_peer,
            detail=cause.detail[-DETAIL_MAX_CHARACTERS:],
            log=worker.streams.stderr_path or "",
            step=step,
            where=cause.where,
            checkpoint=cause.checkpoint,
            counts_on=counts_on,
        )

    def _report_failure(
        self, incident: Incident, text: str = "", worker: Worker | None = None
    ) -> node_events.WorkerFailed | None:
        """Report the first failure, and a later one if it explains the first; ``text`` says why."""
        if self._round.over:
            return self._publish_failure(incident, text) if self._round.is_cause(worker, incident) else None
        self._round.over, self._round.notice = True, None
        if distance_to_cause(incident):
            self._want_cause()
        return self._publish_failure(incident, text)

    def _fail_rank(self, failed: RankFailed) -> node_events.WorkerFailed | None:
        """Fail the round for a living worker, as a monitor wants it."""
        for worker in self.workers:
            place = worker.assignment
            if (place.round, place.rank) != (failed.round, failed.rank) or not worker.is_running or self._round.over:
                continue
            if failed.kill and worker.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.pid, signal.SIGKILL)
            message = f"{failed.name}: {failed.message}" if failed.name else failed.message
            return self._fail(worker, Cause(message=message, exception=failed.name))
        return None

    def _begin_monitors(self, current: Round) -> None:
        """Show the round to the monitors, before its workers start."""
        self._round.running = running = RunningRound(
            current.number,
            self.node.run_uid,
            [*current.group_ranks],
            self.node.round_directory(current.number),
            progress=self.progress,
            post=self.post,
            publish=self.node.publish,
            look=self._round.views,
        )
        self.progress.catch_up, self.reports.obey = running.readers.catch_up, running.callbacks.obey
        self.node.plugins.round_starts(running)
        self.output.begin(running.readers)

    def _note_ended(self) -> Sequence[int]:
        """Note which workers have reported the end of their programs; return those that have not exited yet."""
        self.reports.drain()  # a program reports its end before its connections are closed, and its peers fail
        over = [one for one in self.workers if one.reported.over and one.reported.records]  # without an exception
        for worker in over:
            worker.over = True
        return [worker.pid for worker in over if worker.pid is not None and worker.is_running]

    def _want_cause(self) -> None:
        """From now on, look for a failure here that has its cause in the worker."""
        self._round.cause_wanted = True
        living = [worker for worker in self.workers if worker.exit_code is None]
        self.output.catch_up([worker.streams for worker in living], DRAIN_MAX_SECONDS)
        for worker in living:
            worker.raised = self.node.plugins.find_cause(worker.ended(self.node, None, self._after())) is not None

    def _publish_failure(self, incident: Incident, text: str = "") -> node_events.WorkerFailed:
        """Publish a failure; return it for the node, with its explanation."""
        incident = self.node.plugins.explain_failure(incident, text)
        for lines in dict.fromkeys(self._round.running.explanations):
            incident = replace(incident, detail=f"{incident.detail.rstrip()}\n{lines}".lstrip("\n"))
        if incident.rank is None:
            self.node.publish(Event("store_died", incident.message, Level.WARNING, {"round": incident.round}))
        else:
            self.node.publish(worker_failed(incident))
        return node_events.WorkerFailed(incident)


def workers_signalled(sent: messages.Signalled, *, of_workers: bool) -> Event:
    """Return the event of a signal that the warden has sent to processes, perhaps to those ``of_workers``."""
    name, named = signal_name(sent.signum), itertools.zip_longest(sent.pids, sent.names)
    pids = ", ".join(f"{pid} ({program})" if program else str(pid) for pid, program in named)
    level = Level.DEBUG if sent.signum == signal.SIGTERM else Level.INFO
    started = "" if of_workers or not sent.names else ", which the workers had started"
    return Event("workers_signalled", f"sent {name} to {pids}{started}", level, {"signal": name, "pids": pids})
