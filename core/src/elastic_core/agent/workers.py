"""The workers of one node in one round: started and stopped through the warden, with a record of how each one ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from elastic_core.agent import worker_channels
from elastic_core.agent.directories import make_directories, remove_round
from elastic_core.agent.error_files import error_file_data
from elastic_core.agent.failure_cause import EXCEPTION_EXIT_CODE, Cause, as_torchs, named_cause
from elastic_core.agent.output import Output
from elastic_core.agent.recovery_timing import Recovery, initialized, recovered, restarted
from elastic_core.agent.report import worker_lingers
from elastic_core.agent.worker import Worker, assignments, error_file, ignored_signals, line_prefix
from elastic_core.agent.worker_channels import Reports
from elastic_core.agent.worker_incidents import (
    early_exit_incident,
    exit_incident,
    failed_alike,
    has_raised,
    import_failure_path,
    start_incident,
    store_incident,
    worker_incident,
)
from elastic_core.agent.worker_row import WorkerRows
from elastic_core.assignment import Assignment
from elastic_core.config.environment import inheritable
from elastic_core.config.run import RunConfig
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import signal_name
from elastic_core.host.addresses import collective_interfaces
from elastic_core.host.oom import OomCounter, find_counter
from elastic_core.incidents import Incident, IncidentKind, distance_to_cause
from elastic_core.monitors import PlannedStop, RankFailed, RunningRound, WorkerView
from elastic_core.plugins.manager import Plugins
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressEvent, ProgressTable, StepSeen
from elastic_core.protocol import node_events
from elastic_core.protocol.entries import Round
from elastic_core.protocol.roster import LocalWorkers, NodeInfo
from elastic_core.threads import bounded, prepare_later
from elastic_core.warden import messages
from elastic_core.warden.client import Warden

DRAIN_MAX_SECONDS = 0.2  # for the end of a dead worker's streams, which its children may hold open
LAST_LOOK_MAX_SECONDS = 0.2  # for each look of a monitor after a planned stop, as at the disk
PREPARE_AFTER_SECONDS = 0.1  # after the process group is there, when the first step has the CPUs
IDLE_AFTER_SECONDS = 3.0  # after the first start of workers, for those that never have a process group
LONG_IMPORT_SECONDS = 10.0  # from the first round on which workers wait for the starter, after which a line says so


@dataclass
class LocalRound:
    """The state of one round on this node."""

    started_at: float = 0.0
    oom_kills: int = 0  # those that the kernel had counted when the round began
    fresh: str = ""  # why a worker started fresh; '' if none has
    unlearned: int = 0  # how many modules the workers import that the starter has not
    workers: dict[int, Worker] = field(default_factory=dict)  # by tag
    running: RunningRound = field(default_factory=lambda: RunningRound(0, "", (), Path()))  # as monitors see it
    recovered: Recovery | None = None  # the timing of the interruption before
    initialized: bool = False  # whether it was reported that the process group is ready
    over: bool = False  # whether the round has failed or is being stopped, so that further failures are consequences
    cause_wanted: bool = False  # whether no failure so far has its cause here for certain
    killed: set[int] = field(default_factory=set)  # the processes that the warden has sent SIGKILL to
    notice: tuple[float, float] | None = None  # when the workers were told to stop, and for how long they may go on


@dataclass
class WorkerGroup:
    """The local workers: which process is which rank, and which failure came first.

    Methods are called on the agent's loop. Each of their waits ends after 0.5 s at the latest.
    """

    config: RunConfig
    plugins: Plugins
    warden: Warden
    output: Output
    reports: Reports
    info: NodeInfo
    run_uid: str
    directory: Path
    publish: Callable[[Event], None]
    cpus: Sequence[frozenset[int]] = ()  # the CPUs of each local rank; empty if workers are not bound
    temporary: bool = False  # whether ``directory`` is removed at the end, because no logs were requested
    post: Callable[[object], None] = lambda event: None  # gives the agent's loop an event
    progress: ProgressTable = field(default_factory=ProgressTable)
    now: Callable[[], float] = time.monotonic
    prepare_after: float = PREPARE_AFTER_SECONDS  # seconds from the process group to the preparation for a failure
    interrupted_seconds: float = 0.0  # how long no workers ran between two rounds, all interruptions together
    oom: OomCounter = field(default_factory=find_counter)
    _tags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _recovery: Recovery | None = None  # the timing of the current interruption
    _reasons: set[str] = field(default_factory=set)  # the reported reasons why workers started fresh
    long_import: float = LONG_IMPORT_SECONDS  # seconds from the first round to the line about an import that goes on
    idle_after: float = IDLE_AFTER_SECONDS  # seconds from the first start until what a failure needs is imported
    _prepared: bool = False  # whether that import was scheduled
    stop_facts: dict[str, Mapping[str, Field]] = field(default_factory=dict)
    """What monitors have found out after the last planned stop, by the name of their event."""
    _rows: WorkerRows = field(default_factory=WorkerRows)
    _round: LocalRound = field(default_factory=LocalRound)  # the current one, or the last
    _directory_of: int = 0  # the round before the current one; 0 for none

    def start(self, current: Round, restart_count: int) -> None:
        """Start every local rank of a round. Failures come later, as events."""
        warm = self.warden.starter is not None
        fresh = "" if warm else "the warm start is off"
        self._round = LocalRound(started_at=self.now(), oom_kills=self.oom.read(), fresh=fresh)
        self.reports.clear()
        self.progress.begin(current.number)
        ignored = ignored_signals(self.config)
        self._begin_monitors(current)
        for assignment in assignments(
            self.config, self.run_uid, self.info.node_id, current, restart_count, self.directory
        ):
            tag = next(self._tags)
            directory = Path(assignment.error_file).parent
            with contextlib.suppress(OSError):  # the output reports what it cannot write, and goes on
                make_directories(directory)
            argv, env = self.plugins.worker_command(self.config.program, assignment), self._environment(assignment)
            streams = self.output.open(
                rank=assignment.rank,
                local_rank=assignment.local_rank,
                directory=directory,
                prefix=line_prefix(self.config.line_prefix, assignment),
            )
            self._round.workers[tag] = worker = Worker(assignment, streams, tag=tag)
            cpus = self.cpus[assignment.local_rank] if self.cpus else None
            with contextlib.closing(streams), self.reports.open(tag, worker.reported) as control:
                out, err = streams.stdout, streams.stderr
                self.warden.spawn(
                    tag,
                    argv,
                    env,
                    stdout=out,
                    stderr=err,
                    control=control.fileno(),
                    cpus=cpus,
                    ignored=ignored,
                    warm=warm,
                )
        if warm and not self._directory_of:
            prepare_later(self.long_import, lambda: self._say_import(current.number), name="elastic-import")
        remove_round(self.directory / f"round_{self._directory_of}", temporary=self.temporary)
        self._directory_of = current.number

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
        """Whether every local rank has been started and none has ended."""
        return bool(self._round.workers) and all(
            w.pid is not None and w.exit_code is None for w in self._round.workers.values()
        )

    def describe_workers(self, heartbeat: int, store: float) -> LocalWorkers | None:
        """Return what the node's row says of its workers; arguments as of :class:`WorkerRows`. None for nothing new."""
        return self._rows.look(
            self.workers,
            self.progress.newest(),
            self.progress.last_checkpoint(),
            self._newest_snapshot(),
            self._round.running.notes,
            now=self.now(),
            heartbeat=heartbeat,
            store=store,
        )

    def newest_step(self) -> int | None:
        """Return the newest step that a local rank is known to have reached; None where none is known."""
        steps = [reached.step for reached, _ in self.progress.newest().values() if reached.step is not None]
        return max(steps, default=None)

    def handle(
        self, event: messages.WardenEvent | worker_channels.Report | RankFailed | ProgressEvent
    ) -> node_events.NodeEvent | None:
        """Handle an event of the warden, a worker or a monitor; return the node event that follows, if any."""
        match event:
            case messages.Spawned(tag, pid, _, unlearned) if worker := self._round.workers.get(tag):
                worker.pid = pid
                self._round.unlearned = max(self._round.unlearned, unlearned)
                if not self._round.over and all(other.pid is not None for other in self._round.workers.values()):
                    self._say_started(worker.assignment.round)
                if worker.failed_early and worker.exit_code is None:
                    return self._fail_raised(tag, worker)
                return self._progress(worker.assignment.round)
            case worker_channels.Initialized(tag) if worker := self._round.workers.get(tag):
                worker.initialized = True
                return self._progress(worker.assignment.round)
            case worker_channels.Failed(tag) if (worker := self._round.workers.get(tag)) and worker.exit_code is None:
                if worker.pid is not None:
                    return self._fail_raised(tag, worker)
                worker.failed_early = True  # the warden reports the start over another channel
            case worker_channels.Lingers(tag) if (worker := self._round.workers.get(tag)) and worker.exit_code is None:
                self.publish(worker_lingers(worker.assignment.rank, worker.pid))
            case worker_channels.Stepped(tag) if worker := self._round.workers.get(tag):
                return self._stepped(worker, event)
            case worker_channels.Advanced(tag, progress) if worker := self._round.workers.get(tag):
                self.progress.observe(worker.assignment.rank, progress)
            case StepSeen(number) if not self._round.over and self.alive():
                return node_events.Progressed(number)
            case RankFailed():
                return self._fail_rank(event)
            case worker_channels.NotUnderstood(tag, why) if worker := self._round.workers.get(tag):
                rank = worker.assignment.rank
                message = f"what rank {rank} says to its agent is ignored where it is no report: {why}"
                self.publish(Event("report_ignored", message, Level.DEBUG, {"rank": rank, "why": why}))
            case worker_channels.ListenAgain():
                self.reports.listen_again(event)
            case messages.StartedFresh(tag, why) if worker := self._round.workers.get(tag):
                self._round.fresh = why
                if why not in self._reasons:
                    self._reasons.add(why)
                    message = f"rank {worker.assignment.rank} starts fresh, without the warm start: {why}"
                    self.publish(Event("started_fresh", message, fields={"rank": worker.assignment.rank, "why": why}))
            case messages.SpawnFailed(tag, error) if worker := self._round.workers.get(tag):
                incident = worker_incident(
                    self.info, worker, self._after(), IncidentKind.START_FAILED, cause=Cause(message=error)
                )
                return self._fail(tag, incident)
            case messages.Exited(tag, pid, code, at) if worker := self._round.workers.get(tag):
                worker.pid, worker.exit_code, worker.ended_at = pid, code, at
                if code != 0 and self._recovery is None:
                    self._recovery = Recovery(began=at, detected=self.now())
                if code != 0:
                    self.output.drain(worker.streams, DRAIN_MAX_SECONDS)
                    return self._fail(tag, *self._exit_incident(worker, code))
                self._read_steps()  # the worker's end may be known before its last report is read
                told = self._round.over or self._round.notice is not None
                if not told and worker.reported.terminated:
                    worker.terminated = True
                    self.reports.note_terminated(tag)
                if all(other.exit_code == 0 and not other.terminated for other in self._round.workers.values()):
                    self._drain_streams()
                    left = any(other.leaves for other in self._round.workers.values())
                    return node_events.SteppedDown() if left else node_events.WorkersDone()
            case worker_channels.Terminated(tag) if (
                (worker := self._round.workers.get(tag)) and worker.pid and not self._round.over
            ):
                if self._round.notice is not None:
                    return self.handle(messages.Exited(tag, worker.pid, 0, worker.ended_at))
                self._recovery = self._recovery or Recovery(began=worker.ended_at, detected=self.now())
                after = round(worker.ended_at - self._round.started_at, 6)
                return self._fail(tag, worker_incident(self.info, worker, after, cause=Cause(), exit_code=0))
            case messages.Signalled(signum, pids, names):
                self._round.killed.update(pids if signum == signal.SIGKILL else ())
                for worker in self._round.workers.values():
                    worker.told_to_end |= worker.pid in pids
                name, named = signal_name(signum), itertools.zip_longest(pids, names)
                who = ", ".join(f"{pid} ({program})" if program else str(pid) for pid, program in named)
                level = Level.DEBUG if signum == signal.SIGTERM else Level.INFO
                own = not names or any(worker.pid in pids for worker in self.workers)
                started = "" if own else ", which the workers had started"
                fields = {"signal": name, "pids": who}
                self.publish(Event("workers_signalled", f"sent {name} to {who}{started}", level, fields))
            case messages.Stuck(pid, name, wchan):
                message = (
                    f"process {pid} ({name}) does not die: it waits in the kernel, in {wchan or 'an unknown place'}"
                )
                self.publish(Event("worker_stuck", message, Level.ERROR, {"pid": pid, "wchan": wchan}))
        return None

    def notify(self, notice: node_events.Notice | None) -> tuple[int, ...] | None:
        """Send the workers the notice of a PLAN, then read their reports; return each rank's step, or None.

        None if a rank's step is unknown, or if the notice has a step. The notice None lets waiting workers go on.
        """
        living = [tag for tag, worker in self._round.workers.items() if worker.exit_code is None]
        self._note_notice(None if notice is None else notice.deadline)
        reached = [tag for tag in living if self.reports.tell(tag, worker_channels.packet(notice))]
        if notice is None or notice.step is not None or len(reached) < len(living) or not self._read_steps():
            return None
        steps = tuple(worker.step for worker in self._round.workers.values() if worker.step is not None)
        return steps if len(steps) == len(self._round.workers) else None

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
            self._note_notice(grace)
        self._round.over = True
        if self._recovery is None:
            self._recovery = Recovery(began=self.now(), detected=self.now())
        self.warden.stop(grace=grace, signum=signum, ending=ending)

    def early_exit(self, failure: Incident | None) -> node_events.WorkerFailed | None:
        """Return the first local worker that has left early, if that explains the round's failure."""
        early = early_exit_incident(self.info, self.workers, failure, self._round.started_at)
        if early is None or early.rank is None:
            return None
        step, counts_on = self.progress.step(early.rank)
        return self._publish_failure(replace(early, step=step, counts_on=counts_on))

    def note_next_round(self) -> None:
        """Note that this node has read the next round."""
        if self._recovery is not None:
            self._recovery.decided = self.now()

    def finish_round(self, failure: Incident | None = None) -> int:
        """Finish the logs of a round whose processes are all gone; return how many workers failed as ``failure`` did.

        Those that were stopped before they failed are not among them.
        """
        if self._recovery is not None:
            self._recovery.stopped = self.now()
        self._drain_streams()
        self._look_last()
        self.close()
        alike = 0 if failure is None else sum(failed_alike(worker, failure) for worker in self.workers)
        self._round.workers.clear()
        self.reports.clear()
        return alike

    def close(self) -> None:
        """Have the monitors of the last round end: the agent ends."""
        self._round.running.closed.set()

    def _note_notice(self, seconds: float | None) -> None:
        """Note from when on the workers have ``seconds`` to save; None if the notice is withdrawn."""
        if seconds is None or self._round.notice is None:
            self._round.notice = None if seconds is None else (self.now(), seconds)

    def _look_last(self) -> None:
        """Have the monitors look at a round whose workers had a notice and have ended, and publish their events."""
        if self._round.notice is None or not self._round.workers:
            return
        (began, had), ended = self._round.notice, self.now()
        self._read_steps()
        self.stop_facts = {}
        for look in self._round.running.last_looks:
            checkpoint = self.progress.last_checkpoint()
            if checkpoint is not None:
                checkpoint = checkpoint[0], max(0.0, checkpoint[1] - (self.now() - ended))
            snapshot = self._newest_snapshot()
            step = None if snapshot is None else snapshot[1]
            stop = PlannedStop(had, ended - began, self.newest_step(), checkpoint, step)
            with contextlib.suppress(TimeoutError):
                if (found := bounded(partial(look, stop), LAST_LOOK_MAX_SECONDS)) is not None:
                    self.stop_facts[found.name] = found.fields
                    self.publish(found)

    def _newest_snapshot(self) -> tuple[int, int] | None:
        """Return the round and step of the newest snapshot that workers keep in memory."""
        return self._round.running.find_snapshot(self.reports.fd_store.held)

    def error_record(self, incident: Incident | None) -> Mapping[str, Any] | None:
        """Return the error file of a failed worker of this node; None if there is none."""
        if incident is None or incident.rank is None or incident.node_id != self.info.node_id:
            return None
        recorded = error_file_data(error_file(self.directory, incident.round, incident.rank))
        return as_torchs(recorded, incident.exit_code or EXCEPTION_EXIT_CODE) or None

    def lose_store(self, current: Round, ended: messages.ServiceEnded | None) -> node_events.WorkerFailed | None:
        """End the round whose store was here and is gone; no worker failed, so no restart is spent."""
        return self._fail(0, store_incident(self.info, current, self._after(), ended))

    def fail_start(self, current: Round, error: ElasticError | OSError) -> node_events.WorkerFailed:
        """Return the failure of a round whose workers could not be started."""
        return node_events.WorkerFailed(self.plugins.explain_failure(start_incident(self.info, current, error)))

    def _after(self) -> float:
        """Return the seconds since the start of the round."""
        return round(self.now() - self._round.started_at, 6)

    def _exit_incident(self, worker: Worker, exit_code: int) -> tuple[Incident, str]:
        self._read_steps()  # the worker's end may be known before its last report is read
        sent = self._round.running.signals.get(worker.pid or 0)
        killed_for_memory = worker.pid not in self._round.killed and self.oom.read() > self._round.oom_kills
        oom = self.oom if killed_for_memory else None
        place = self.config.checkpoint_path
        return exit_incident(self.info, worker, self._after(), exit_code, sent, oom=oom, checkpoint_path=place)

    def _say_import(self, number: int) -> None:
        """Publish that the workers of a round wait for the starter, if none has started. For any thread."""
        if not self._round.over and {w.pid for w in self.workers if w.assignment.round == number} == {None}:
            names = ", ".join(self.warden.starter.imports if self.warden.starter else ())
            message = f"the workers wait for the import of {names or 'modules'} ({self._after():.0f} s so far)"
            self.publish(Event("importing", message))

    def _say_started(self, number: int) -> None:
        count, took = len(self._round.workers), self._after()
        fields: dict[str, Field] = {"round": number, "workers": count, "took_s": took}
        message = f"{count} local worker(s) of round {number} run"
        self.publish(Event("workers_started", message, Level.DEBUG, fields))
        if self._recovery is None:
            prepare_later(self.idle_after, import_failure_path, name="elastic-prepare")
        else:
            self._recovery.running = self.now()
            self.interrupted_seconds += self._recovery.running - self._recovery.began
            self.publish(recovered(number, self._recovery))
            self.publish(restarted(number, self._recovery, self._round.fresh, self._round.unlearned))
            self._round.recovered, self._recovery = self._recovery, None

    def _progress(self, number: int) -> node_events.Progressed | None:
        """Return Progressed once all local workers run and are in the process group."""
        ready = all(worker.pid is not None and worker.initialized for worker in self._round.workers.values())
        if self._round.initialized or self._round.over or not ready:
            return None
        self._round.initialized = True
        self.publish(initialized(number, len(self._round.workers), self._after(), self._round.recovered, self.now()))
        if not self._prepared:
            self._prepared = True
            prepare_later(self.prepare_after, import_failure_path, name="elastic-prepare")
        return node_events.Progressed(number)

    def _read_steps(self) -> bool:
        """Read all reports of steps that have been sent; return whether there was an end to them."""
        if (reports := self.reports.drain()) is None:
            return False
        for told in reports:
            if worker := self._round.workers.get(told.tag):
                if isinstance(told, worker_channels.Advanced):
                    self.progress.observe(worker.assignment.rank, told.progress)
                else:
                    self._stepped(worker, told)
        return True

    def _stepped(self, worker: Worker, told: worker_channels.Stepped) -> node_events.TakesNotices | None:
        """Note the step of a worker. Once all have reported one, they are known to read notices."""
        first = worker.step is None
        worker.step = max(told.step + told.ahead, worker.step or 0)
        worker.leaves = worker.leaves or told.leaves
        self.progress.observe(worker.assignment.rank, Progress(step=told.step))
        known = first and all(other.step is not None for other in self._round.workers.values())
        return node_events.TakesNotices(worker.assignment.round) if known else None

    def _fail(self, tag: int, incident: Incident, text: str = "") -> node_events.WorkerFailed | None:
        """Report the first failure, and a later one if it explains the first; ``text`` says why."""
        if incident.rank is not None:
            self._read_steps()  # the worker's end may be known before its last report is read
            step, counts_on = self.progress.step(incident.rank)
            incident = replace(incident, step=step, counts_on=counts_on)
        if self._round.over:
            return self._publish_failure(incident, text) if self._is_cause(tag, incident) else None
        self._round.over, self._round.notice = True, None
        if distance_to_cause(incident):
            self._want_cause()
        return self._publish_failure(incident, text)

    def _fail_raised(self, tag: int, worker: Worker) -> node_events.WorkerFailed | None:
        """Fail the round for a worker that reports that an exception has ended its program, and that still lives."""
        self._recovery = self._recovery or Recovery(began=self.now(), detected=self.now())
        self.output.catch_up([worker.streams], DRAIN_MAX_SECONDS)
        return self._fail(tag, *self._exit_incident(worker, EXCEPTION_EXIT_CODE))

    def _fail_rank(self, failed: RankFailed) -> node_events.WorkerFailed | None:
        """Fail the round for a living worker, as a monitor wants it."""
        for tag, worker in self._round.workers.items():
            place = worker.assignment
            if (place.round, place.rank) != (failed.round, failed.rank) or not worker.is_running or self._round.over:
                continue
            if failed.kill and worker.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.pid, signal.SIGKILL)
            cause = named_cause(failed.name, failed.message) if failed.name else Cause(message=failed.message)
            return self._fail(tag, worker_incident(self.info, worker, self._after(), cause=cause))
        return None

    def _begin_monitors(self, current: Round) -> None:
        """Show the round to the monitors, before its workers start."""
        self._round.running = running = RunningRound(
            current.number,
            self.run_uid,
            [*current.group_ranks],
            self.directory / f"round_{current.number}",
            progress=self.progress,
            post=self.post,
            publish=self.publish,
            look=self._views,
        )
        self.progress.catch_up = running.catch_up
        self.plugins.round_starts(running)
        self.output.begin(running)

    def _views(self) -> tuple[WorkerView, ...]:
        """Return the workers as monitors see them. Any thread may call this."""
        return tuple(
            WorkerView(
                worker.assignment.rank,
                worker.assignment.local_rank,
                worker.pid,
                worker.exit_code,
                worker.reported.over,
                tuple(pump.tail for pump in worker.streams.pumps.values()),
                worker.streams.has_own_stdout,
            )
            for worker in self.workers
        )

    def _note_ended(self) -> Sequence[int]:
        """Note which workers have reported the end of their programs; return those that have not exited yet."""
        self._read_steps()  # a program reports its end before its connections are closed, and its peers fail
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
            worker.raised = has_raised(worker)

    def _is_cause(self, tag: int, incident: Incident) -> bool:
        """Return whether a worker that ends during the stop failed by itself, and so caused the failure.

        A killed process may be reaped long after its peers have seen its connections close, because of a device or a
        core dump. A program may take seconds to end after an exception.
        """
        if not self._round.cause_wanted or incident.exit_code is None or distance_to_cause(incident):
            return False
        worker = self._round.workers[tag]
        own = incident.pid not in self._round.killed if incident.exit_code < 0 else worker.raised or worker.over
        self._round.cause_wanted = not own or incident.exit_code in (-signal.SIGABRT, -signal.SIGINT, -signal.SIGHUP)
        return not self._round.cause_wanted

    def _publish_failure(self, incident: Incident, text: str = "") -> node_events.WorkerFailed:
        """Publish a failure; return it for the node, with its explanation."""
        incident = self.plugins.explain_failure(incident, text)
        for lines in self._round.running.explanations:
            if lines not in incident.detail:
                incident = replace(incident, detail="\n".join(filter(None, [incident.detail.rstrip(), lines])))
        if incident.rank is None:
            self.publish(Event("store_died", incident.message, Level.WARNING, {"round": incident.round}))
            return node_events.WorkerFailed(incident)
        where = f"rank {incident.rank} (pid {incident.pid})" if incident.pid else f"rank {incident.rank}"
        consequence = " (which follows from the loss of a peer)" if incident.follows_peer else ""
        told = f"{where} {incident.describe()}{consequence}"
        fields: dict[str, Field] = {
            "rank": incident.rank,
            "pid": incident.pid,
            "exit_code": incident.exit_code,
            "round": incident.round,
            "exception": incident.exception,
            "step": incident.step,
            "message": incident.message,
            "where": incident.where,
            "log": incident.log,
        }
        self.publish(Event("worker_failed", told, Level.WARNING, fields))
        return node_events.WorkerFailed(incident)

    def _environment(self, assignment: Assignment) -> Mapping[str, str]:
        environment = self.plugins.worker_environment(self.config.program, assignment)
        defaults = collective_interfaces(self.info.address) if assignment.group_world_size > 1 else {}
        return {**defaults, **inheritable(os.environ), **environment}

    def _drain_streams(self) -> None:
        """Read what is left in the pipes of the ended workers."""
        for worker in self._round.workers.values():
            self.output.drain(worker.streams, DRAIN_MAX_SECONDS)
