"""One node's workers of one round: start them, notice how they end, say what went wrong.

The warden does the deeds; this module keeps the books: which process is which rank, whose failure was first, what it
left in its error file and on its stderr.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from elastic_core.agent.error_files import error_file_data, last_exception_line, read_error_file
from elastic_core.agent.output import Output, WorkerStreams
from elastic_core.agent.recovery_timing import Recovery, initialized, recovered, restarted
from elastic_core.agent.report import worker_lingers
from elastic_core.agent.watchdog import StatesDue, Timer, TimersDue, Watchdog, WatchdogEvent
from elastic_core.agent.worker_channels import (
    Failed,
    Initialized,
    Lingers,
    ListenAgain,
    NotUnderstood,
    Report,
    Reports,
    Stepped,
    packet,
)
from elastic_core.assignment import Assignment
from elastic_core.config.environment import inheritable
from elastic_core.config.run import RunConfig
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import describe_exit, signal_name
from elastic_core.incidents import Incident, IncidentKind, follows_peer_loss
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.entries import Round
from elastic_core.protocol.node_events import (
    NodeEvent,
    Notice,
    Progressed,
    SteppedDown,
    TakesNotices,
    WorkerFailed,
    WorkersDone,
)
from elastic_core.protocol.ranks import place
from elastic_core.protocol.roster import NodeInfo
from elastic_core.warden.client import Warden
from elastic_core.warden.linux import waits_in
from elastic_core.warden.messages import (
    Exited,
    ServiceEnded,
    ServiceFailed,
    Signalled,
    Spawned,
    SpawnFailed,
    StartedFresh,
    Stuck,
    WardenEvent,
)

DRAIN = 0.2
"""Seconds to wait for the end of a dead worker's streams; a child of its may hold them open."""
UNCAUGHT = 1
"""The exit code of a program that an exception has ended."""
OPENS_STORE_WITHIN = 30.0
"""Seconds after its start within which rank 0 can fail for want of its port; what fails later has another cause."""
DETAIL = 4096
"""Most characters of an incident's detail."""


@dataclass(slots=True)
class Worker:
    """One local rank of the present round."""

    assignment: Assignment
    streams: WorkerStreams
    pid: int | None = None
    exit_code: int | None = None
    ended_at: float = 0.0
    """When it was reaped, where it has an exit code."""
    initialized: bool = False
    step: int | None = None
    """The last one that it can come to without having reported another."""
    leaves: bool = False
    """Whether it has said that it stops, as it was told."""


@dataclass
class WorkerGroup:
    """The local workers. Everything runs on the agent's loop, and nothing here blocks it for longer than ``DRAIN``."""

    config: RunConfig
    plugins: Plugins
    warden: Warden
    output: Output
    reports: Reports
    info: NodeInfo
    run_uid: str
    directory: Path
    publish: Callable[[Event], None]
    cpus: Sequence[frozenset[int]] = ()
    """The CPUs of each local rank; none when they are not bound."""
    warm: bool = False
    """Whether the warden's fork server is to fork them."""
    temporary: bool = False
    """Whether ``directory`` is removed at the end, since nobody asked for logs."""
    watchdog: Watchdog | None = None
    """Where somebody asked for one."""
    now: Callable[[], float] = time.monotonic
    started_at: float = 0.0
    _tags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _workers: dict[int, Worker] = field(default_factory=dict)
    _recovery: Recovery | None = None
    """Of the interruption under way."""
    _recovered: Recovery | None = None
    """Of the one that led to the present round."""
    _initialized: bool = False
    """Whether it has been said that the process group of the present round is there."""
    _fresh: str = ""
    """Why a worker of the present round started fresh; '' while none has."""
    _unlearned: int = 0
    """How many modules the workers of the present round import that the fork server could have learned and has not."""
    _reasons: set[str] = field(default_factory=set)
    """Why workers started fresh, as far as it has been said."""
    _over: bool = False
    """Whether the round is already lost, or being stopped: what fails now is a consequence."""
    _cause_wanted: bool = False
    """Whether the round is being stopped for a failure, and what is known of that follows from a peer's loss."""
    _killed: set[int] = field(default_factory=set)
    """The processes that the warden has sent SIGKILL."""
    _expired: dict[int, Timer] = field(default_factory=dict)
    """The timers for which processes of this round were sent a signal, by process."""
    _raised: dict[int, str] = field(default_factory=dict)
    """The exception of each local worker that had not ended when the stop began, by tag."""
    _directory_of: int = 0
    """The round whose workers were started before the present ones; 0 for none."""

    def start(self, current: Round, restart_count: int) -> None:
        """Start every local rank of a round. What fails comes back later, as an event."""
        self.started_at, self._over, self._cause_wanted = self.now(), False, False
        self._killed.clear()
        self._expired.clear()
        self._raised.clear()
        self._recovered, self._initialized = None, False
        self._fresh, self._unlearned = "" if self.warm else "there is no warm start", 0
        self._workers.clear()
        self.reports.clear()
        for assignment in self._assignments(current, restart_count):
            tag = next(self._tags)
            directory = Path(assignment.error_file).parent
            with contextlib.suppress(OSError):  # the output says what it cannot keep there, and goes on without it
                directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            argv, env = self.plugins.worker_command(self.config.program, assignment), self._environment(assignment)
            streams = self.output.open(
                rank=assignment.rank,
                local_rank=assignment.local_rank,
                directory=directory,
                prefix=_line_prefix(self.config.line_prefix, assignment),
            )
            self._workers[tag] = Worker(assignment, streams)
            try:
                cpus = self.cpus[assignment.local_rank] if self.cpus else None
                out, err = streams.stdout, streams.stderr
                with self.reports.open(tag) as control:
                    self.warden.spawn(
                        tag, argv, env, stdout=out, stderr=err, control=control.fileno(), cpus=cpus, warm=self.warm
                    )
            finally:
                streams.close()
        self._remove_directory_of(self._directory_of)
        self._directory_of = current.number

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The local ranks of the present round, in order; from any thread."""
        return tuple(self._workers.values())

    def alive(self) -> bool:
        """Whether every local rank has been started and none has ended."""
        return bool(self._workers) and all(w.pid is not None and w.exit_code is None for w in self._workers.values())

    def handle(self, event: WardenEvent | Report | WatchdogEvent) -> NodeEvent | None:
        """Note what the warden, a worker or the watchdog says; the node event that it amounts to, if any."""
        match event:
            case Spawned(tag, pid, _, unlearned) if worker := self._workers.get(tag):
                worker.pid = pid
                self._unlearned = max(self._unlearned, unlearned)
                if not self._over and all(other.pid is not None for other in self._workers.values()):
                    self._say_started(worker.assignment.round)
                return self._progress(worker.assignment.round)
            case Initialized(tag) if worker := self._workers.get(tag):
                worker.initialized = True
                return self._progress(worker.assignment.round)
            case Failed(tag) if (worker := self._workers.get(tag)) and worker.exit_code is None:
                if self._recovery is None:
                    self._recovery = Recovery(began=self.now(), detected=self.now())
                self.output.catch_up([worker.streams], DRAIN)
                return self._fail(tag, self._died(worker, UNCAUGHT))
            case Lingers(tag) if (worker := self._workers.get(tag)) and worker.exit_code is None:
                self.publish(worker_lingers(worker.assignment.rank, worker.pid))
            case Stepped(tag, step, leaves) if worker := self._workers.get(tag):
                return self._stepped(worker, step, leaves)
            case NotUnderstood(tag, why) if worker := self._workers.get(tag):
                rank = worker.assignment.rank
                message = f"what rank {rank} says to its agent is ignored where it is no report: {why}"
                self.publish(Event("report_ignored", message, Level.DEBUG, {"rank": rank, "why": why}))
            case ListenAgain():
                self.reports.listen_again(event)
            case StartedFresh(tag, why) if worker := self._workers.get(tag):
                self._fresh = why
                if why not in self._reasons:
                    self._reasons.add(why)
                    message = f"rank {worker.assignment.rank} starts fresh, without the warm start: {why}"
                    self.publish(Event("started_fresh", message, fields={"rank": worker.assignment.rank, "why": why}))
            case SpawnFailed(tag, error) if worker := self._workers.get(tag):
                return self._fail(tag, self._incident(worker, IncidentKind.START_FAILED, message=error))
            case Exited(tag, pid, code, at) if worker := self._workers.get(tag):
                worker.pid, worker.exit_code, worker.ended_at = pid, code, at
                if code != 0 and self._recovery is None:
                    self._recovery = Recovery(began=at, detected=self.now())
                if code != 0:
                    self.output.drain(worker.streams, DRAIN)
                    return self._fail(tag, self._died(worker, code))
                if all(other.exit_code == 0 for other in self._workers.values()):
                    self._settle()
                    self._take_in_steps()  # that it stops it has said before, which may not have been received yet
                    left = any(other.leaves for other in self._workers.values())
                    return SteppedDown() if left else WorkersDone()
            case Signalled(signum, pids):
                self._killed.update(pids if signum == signal.SIGKILL else ())
                name, who = signal_name(signum), ", ".join(map(str, pids))
                level = Level.DEBUG if signum == 15 else Level.INFO
                self.publish(Event("workers_signalled", f"sent {name} to {who}", level, {"signal": name, "pids": who}))
            case TimersDue() if self.watchdog is not None:
                for timer in self.watchdog.expired():
                    self._end_for(timer)
            case StatesDue() if self.watchdog is not None:
                return self._fail_stuck(self.watchdog)
            case Stuck(pid, name, wchan):
                message = (
                    f"process {pid} ({name}) does not die: it waits in the kernel, in {wchan or 'an unknown place'}"
                )
                self.publish(Event("worker_stuck", message, Level.ERROR, {"pid": pid, "wchan": wchan}))
        return None

    def notify(self, notice: Notice | None) -> tuple[int, ...] | None:
        """Tell the workers of a PLAN, and then take in their reports: each rank's step, or None where one is unknown.

        For a notice with a step nothing is taken in; None is for workers that need not wait any longer.
        """
        living = [tag for tag, worker in self._workers.items() if worker.exit_code is None]
        reached = [tag for tag in living if self.reports.tell(tag, packet(notice))]
        if notice is None or notice.step is not None or len(reached) < len(living) or not self._take_in_steps():
            return None
        steps = tuple(worker.step for worker in self._workers.values() if worker.step is not None)
        return steps if len(steps) == len(self._workers) else None

    def lost_store(self, current: Round, event: ServiceEnded | ServiceFailed | None = None) -> WorkerFailed | None:
        """The round's store was here and is gone; nobody's restart, but the end of the round."""
        how = describe_exit(event.returncode) if isinstance(event, ServiceEnded) else "was not there"
        incident = Incident(
            kind=IncidentKind.STORE_DIED,
            round=current.number,
            node_id=self.info.node_id,
            host=str(self.info),
            after=round(self.now() - self.started_at, 6),
            message=f"the process that holds the workers' store {how}",
        )
        return self._fail(0, incident)

    def stop(self, grace: float, *, broken: bool = False, signum: int = signal.SIGTERM) -> None:
        """Stop them all with ``signum``, SIGKILL after ``grace`` seconds; the warden answers Gone.

        A round that is ``broken`` is stopped for a failure, and its cause may be a worker here that is about to end.
        """
        if broken and not self._over:
            self._want_cause()
        self._over = True
        if self._recovery is None:
            self._recovery = Recovery(began=self.now(), detected=self.now())
        self.warden.stop(grace=grace, signum=signum)

    def decided(self) -> None:
        """There is a next round, and it is known here."""
        if self._recovery is not None:
            self._recovery.decided = self.now()

    def gone(self) -> None:
        """Every process of the round is gone: finish its logs."""
        if self._recovery is not None:
            self._recovery.stopped = self.now()
        self._settle()
        self._workers.clear()
        self.reports.clear()

    def recorded(self, incident: Incident | None) -> Mapping[str, Any] | None:
        """What a failed worker of this node's has written into its error file, of the newest round that it was in."""
        if incident is None or incident.rank is None or incident.node_id != self.info.node_id:
            return None
        return error_file_data(self._error_file(incident.round, incident.rank)) or None

    def _error_file(self, number: int, rank: int) -> Path:
        return self.directory / f"round_{number}" / f"rank_{rank}" / "error.json"

    def _say_started(self, number: int) -> None:
        count, took = len(self._workers), round(self.now() - self.started_at, 6)
        fields: dict[str, Field] = {"round": number, "workers": count, "took_s": took}
        message = f"{count} local worker(s) of round {number} run"
        self.publish(Event("workers_started", message, Level.DEBUG, fields))
        if self._recovery is not None:
            self._recovery.running = self.now()
            self.publish(recovered(number, self._recovery))
            self.publish(restarted(number, self._recovery, self._fresh, self._unlearned))
            self._recovered, self._recovery = self._recovery, None

    def _progress(self, number: int) -> Progressed | None:
        """Once all local workers run and are in the process group; one alone may be there without the others."""
        ready = all(worker.pid is not None and worker.initialized for worker in self._workers.values())
        if self._initialized or self._over or not ready:
            return None
        self._initialized, now = True, self.now()
        took = round(now - self.started_at, 6)
        self.publish(initialized(number, len(self._workers), took, self._recovered, now))
        return Progressed(number)

    def _take_in_steps(self) -> bool:
        """Note all steps that were reported, received before or not; whether there was an end to them."""
        if (reports := self.reports.drain()) is None:
            return False
        for told in reports:
            if worker := self._workers.get(told.tag):
                self._stepped(worker, told.step, told.leaves)
        return True

    def _stepped(self, worker: Worker, step: int, leaves: bool) -> TakesNotices | None:
        """A worker has come so far; the first time that all have, they are known to take notices."""
        first = worker.step is None
        worker.step = step if worker.step is None else max(step, worker.step)
        worker.leaves = worker.leaves or leaves
        known = first and all(other.step is not None for other in self._workers.values())
        return TakesNotices(worker.assignment.round) if known else None

    def _fail(self, tag: int, incident: Incident) -> WorkerFailed | None:
        """The first failure; and another one after it, if that explains more."""
        if self._over:
            return self._told(incident) if self._is_cause(tag, incident) else None
        self._over = True
        if follows_peer_loss(incident):
            self._want_cause()
        return self._told(incident)

    def _end_for(self, timer: Timer) -> None:
        """Send a process the signal that its expired timer names."""
        name = signal_name(timer.signum) if timer.signum else "no signal"
        message = f"the timer {timer.scope[:200]!r} of process {timer.pid} has expired: it is sent {name}"
        fields: dict[str, Field] = {"pid": timer.pid, "scope": timer.scope[:200], "signal": timer.signum}
        self.publish(Event("timer_expired", message, Level.WARNING, fields))
        if timer.signum:
            self._expired[timer.pid] = timer
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(timer.pid, timer.signum)

    def _fail_stuck(self, watchdog: Watchdog) -> WorkerFailed | None:
        """Fail the round for a worker that has waited in the kernel for too long; SIGKILL does not reach it there."""
        living = {worker.pid: tag for tag, worker in self._workers.items() if worker.pid and worker.exit_code is None}
        for pid, seconds in watchdog.stuck(living).items():
            tag = living[pid]
            message = f"has waited in the kernel, in {waits_in(pid) or 'an unknown place'}, for {seconds:.0f} s"
            failure = self._fail(tag, self._incident(self._workers[tag], IncidentKind.WORKER_FAILED, message=message))
            if failure is not None:
                return failure
        return None

    def _want_cause(self) -> None:
        """From now on, look for a failure here that does not follow from a peer's loss."""
        self._cause_wanted = True
        living = {tag: worker for tag, worker in self._workers.items() if worker.exit_code is None}
        self.output.catch_up([worker.streams for worker in living.values()], DRAIN)
        self._raised = {tag: self._exception(worker)[0] for tag, worker in living.items()}

    def _is_cause(self, tag: int, incident: Incident) -> bool:
        """Whether the failure of a worker that ends while all are being stopped is none of the stop's, and a cause.

        A killed process may be reaped long after its peers have seen its connections close: a device, or a core dump,
        keeps it. An exception may take its program seconds to end.
        """
        if not self._cause_wanted or incident.exit_code is None or follows_peer_loss(incident):
            return False
        own = incident.pid not in self._killed if incident.exit_code < 0 else bool(self._raised.get(tag))
        self._cause_wanted = not own or incident.exit_code in (-signal.SIGABRT, -signal.SIGINT, -signal.SIGHUP)
        return not self._cause_wanted

    def _told(self, incident: Incident) -> WorkerFailed:
        """Tell people, and the node."""
        if incident.rank is None:
            self.publish(Event("store_died", incident.message, Level.WARNING, {"round": incident.round}))
            return WorkerFailed(incident)
        where = f"rank {incident.rank} (pid {incident.pid})" if incident.pid else f"rank {incident.rank}"
        fields = {"rank": incident.rank, "pid": incident.pid, "exit_code": incident.exit_code, "round": incident.round}
        self.publish(Event("worker_failed", f"{where} {incident.cause()}", Level.WARNING, fields))
        return WorkerFailed(incident)

    def _died(self, worker: Worker, exit_code: int) -> Incident:
        tail = worker.streams.tail()
        message, detail = self._exception(worker)
        if worker.pid is not None and (timer := self._expired.get(worker.pid)) and exit_code == -timer.signum:
            message = f"was sent {signal_name(timer.signum)} because its timer {timer.scope[:200]!r} expired"
            return self._incident(worker, IncidentKind.WORKER_FAILED, message=message, detail=detail)
        young = self.now() - self.started_at < OPENS_STORE_WITHIN
        port = re.compile(rf"\b{worker.assignment.master_port}\b")
        taken = worker.assignment.rank == 0 and young and any(map(port.search, _lines_about_use(message, tail)))
        kind = IncidentKind.PORT_TAKEN if taken else IncidentKind.WORKER_FAILED
        return self._incident(worker, kind, message=message, detail=detail, exit_code=exit_code)

    def _exception(self, worker: Worker) -> tuple[str, str]:
        """The exception that a worker has recorded or printed, in a line, and what there is to say of it."""
        if (recorded := read_error_file(Path(worker.assignment.error_file))) is not None:
            return recorded
        tail = worker.streams.tail()
        return last_exception_line(tail), tail

    def _incident(
        self, worker: Worker, kind: IncidentKind, *, message: str, detail: str = "", exit_code: int | None = None
    ) -> Incident:
        assignment = worker.assignment
        return Incident(
            kind=kind,
            round=assignment.round,
            node_id=self.info.node_id,
            host=str(self.info),
            after=round(self.now() - self.started_at, 6),
            rank=assignment.rank,
            local_rank=assignment.local_rank,
            pid=worker.pid,
            exit_code=exit_code,
            message=message[:500],
            detail=detail[-DETAIL:],
            log=worker.streams.stderr_path or "",
        )

    def _remove_directory_of(self, number: int) -> None:
        """Remove what nobody can ask for of a round that is over: all of it, or its empty directories beside logs."""
        base = self.directory / f"round_{number}"
        if self.temporary:
            shutil.rmtree(base, ignore_errors=True)
            return
        for directory in (*base.glob("rank_*"), base):
            with contextlib.suppress(OSError):  # there is a log in it
                directory.rmdir()

    def _settle(self) -> None:
        """Take in what the ended workers' pipes still hold."""
        for worker in self._workers.values():
            self.output.drain(worker.streams, DRAIN)

    def _assignments(self, current: Round, restart_count: int) -> list[Assignment]:
        mine = place(current.members, self.info.node_id)
        return [
            Assignment(
                run_id=self.config.rdzv_id,
                run_uid=self.run_uid,
                round=current.number,
                restart_count=restart_count,
                max_restarts=self.config.max_restarts,
                role=self.config.role,
                rank=mine.first_rank + local_rank,
                local_rank=local_rank,
                group_rank=mine.group_rank,
                role_rank=mine.first_role_rank + local_rank,
                world_size=mine.world_size,
                local_world_size=mine.local_world_size,
                group_world_size=mine.group_world_size,
                role_world_size=mine.role_world_size,
                master_addr=current.offer.address,
                master_port=current.offer.port,
                use_agent_store=current.offer.hosted,
                error_file=str(self._error_file(current.number, mine.first_rank + local_rank)),
            )
            for local_rank in range(mine.local_world_size)
        ]

    def _environment(self, assignment: Assignment) -> Mapping[str, str]:
        told = {} if self.watchdog is None else self.watchdog.environment
        environment = self.plugins.worker_environment(self.config.program, assignment)
        return {**inheritable(os.environ), **told, **environment}


def _lines_about_use(*texts: str) -> list[str]:
    """The lines that say that an address is in use, in torch's words or the system's."""
    lines = [line for text in texts for line in text.splitlines()]
    return [line for line in lines if "EADDRINUSE" in line or "already in use" in line]


def _line_prefix(fork_server: str, assignment: Assignment) -> str:
    """What stands before each teed line of one worker; what the fork server names and we do not know stays as it is."""
    place = {"role_name": assignment.role, "rank": assignment.rank, "local_rank": assignment.local_rank}
    return Template(fork_server).safe_substitute(place)


def start_failure(group: WorkerGroup, current: Round, error: ElasticError | OSError) -> WorkerFailed:
    """The event for a round that could not even be prepared: no descriptors, a full disk, a plugin that raised."""
    mine = place(current.members, group.info.node_id)
    return WorkerFailed(
        Incident(
            kind=IncidentKind.START_FAILED,
            round=current.number,
            node_id=group.info.node_id,
            host=str(group.info),
            rank=mine.first_rank,
            message=f"the workers could not be started: {getattr(error, 'message', error)}"[:500],
        )
    )
