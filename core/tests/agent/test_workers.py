"""One node's workers with a real warden and real streams: what is started, and what is said of how it ended."""

from __future__ import annotations

import json
import math
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from views import info, offer

from elastic_core.agent import workers
from elastic_core.agent.output import Output, Routes
from elastic_core.agent.worker import Node as LocalNode, Worker
from elastic_core.agent.worker_channels import Failed, Initialized, Lingers, NotUnderstood, Report, Reports
from elastic_core.agent.workers import WorkerGroup
from elastic_core.causes import DETAIL_MAX_CHARACTERS, Cause, EndedWorker, last_line
from elastic_core.config.parse import Stream, StreamMap
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.hookspecs import hookimpl
from elastic_core.incidents import Explanation, FailureClass, Incident, IncidentKind
from elastic_core.monitors import PlannedStop, RankFailed, RunningRound
from elastic_core.plugins.manager import Plugins, core_plugins
from elastic_core.progress import Checkpoint, Progress
from elastic_core.progress_table import StepSeen
from elastic_core.protocol.entries import Member, Round
from elastic_core.protocol.node_events import (
    NodeEvent,
    Notice,
    Progressed,
    WorkerFailed,
    WorkersDone,
)
from elastic_core.session.runtime import Runtime
from elastic_core.starter import Starter
from elastic_core.warden.client import Warden
from elastic_core.warden.linux import become_subreaper
from elastic_core.warden.messages import Exited, Signalled, Spawned, SpawnFailed, StopCompleted, Stuck, WardenEvent

PATIENCE = 30.0
TWO = (Member("b", 1, "default"), Member("a", 2, "default"))
"""This node, a, comes second, so that its ranks are 1 and 2."""
ONE = (Member("a", 1, "default"),)


STARTER = Starter(entry="", python=(), program=(), env={}, imports=("torch",))


class Finder:
    """Finds the exception that a worker has printed last, or recorded by its name."""

    off = False
    answer: Cause | None = None  # what it finds, whatever happened

    def __init__(self) -> None:
        self.asked: list[int | None] = []  # the exit codes of the workers whose causes it was to find

    @hookimpl
    def elastic_find_cause(self, worker: EndedWorker) -> Cause | None:
        self.asked.append(worker.exit_code)
        if self.off or self.answer is not None:
            return self.answer
        line = last_line(worker.stderr)
        if Path(worker.error_file).exists():
            line = json.loads(Path(worker.error_file).read_text())["message"]["message"]
        elif worker.records and worker.exit_code is None:
            return None
        name = line.partition(":")[0]
        if not name.endswith("Error"):
            return None if worker.exit_code is None else Cause(detail=worker.stderr, text=line)
        peer = "closed by peer" in line
        return Cause(message=line, exception=name, follows_peer=peer, detail=worker.stderr, text=line)


class Node:
    """A worker group, what it said so far, and its ends."""

    def __init__(self, folder: Path, warden: Warden) -> None:
        self.folder = folder
        self.warden = warden
        self.published: list[Event] = []
        self.heard: list[WardenEvent | Report] = []
        self.later: list[tuple[float, object]] = []
        self.reports = Reports(lambda instant, event: self.later.append((instant, event)), lambda: self.time)
        self.plugins, self.finder = Plugins(), Finder()
        for name, plugin in {**core_plugins(), "finder": self.finder}.items():
            self.plugins.register(name, plugin)
        self.time = 100.0
        self.output = Output(Routes(StreamMap(Stream.ALL), StreamMap()), self.said)
        self.group: WorkerGroup

    def said(self, message: str) -> None:
        raise AssertionError(message)

    def keep_no_logs(self) -> None:
        self.output.close(PATIENCE)
        self.output = Output(Routes(StreamMap(), StreamMap()), self.said)

    def start(self, script: str, members: Sequence[Member] = ONE, *, number: int = 1, restarts: int = 0) -> None:
        """Start the workers of a round, which run a shell script."""
        program = Program(ProgramKind.EXECUTABLE, "sh", ("-c", script))
        self.start_program(program, members, number=number, restarts=restarts)

    def start_program(
        self, program: Program, members: Sequence[Member] = ONE, *, number: int = 1, restarts: int = 0
    ) -> None:
        config = RunConfig(program=program, rdzv_id="job7", role="default", max_restarts=5, nproc_per_node=2)
        if number == 1:
            runtime = Runtime(now=lambda: self.time)
            local = LocalNode(
                config, self.plugins, self.published.append, info("a"), "run1", self.folder, runtime=runtime
            )
            self.group = WorkerGroup(local, self.warden, self.output, self.reports)
        self.group.node = replace(self.group.node, config=config)
        self.group.start(self.round(members, number), restarts)

    def round(self, members: Sequence[Member] = ONE, number: int = 1) -> Round:
        return Round(number=number, offer=offer(members[0].node_id), members=tuple(members))

    def next(self) -> NodeEvent | None:
        """Return the incident of the warden's next events; None if it is StopCompleted."""
        end = time.monotonic() + PATIENCE
        while True:
            sources: list[Warden | Reports] = [self.warden, self.reports]
            ready, _, _ = select.select(sources, [], [], max(0.0, end - time.monotonic()))
            assert ready, f"nothing came of {self.heard}"
            events = [*(self.warden.receive() if self.warden in ready else ()), *self.reports.receive()]
            self.heard += events
            news = [found for event in events if (found := self.group.handle(event)) is not None]
            if news or any(isinstance(event, StopCompleted) for event in events):
                assert len(news) <= 1
                return news[0] if news else None

    def run(self) -> None:
        """Wait until all workers of the round run."""
        while not self.group.alive():
            assert select.select([self.warden], [], [], PATIENCE)[0]
            assert not any(map(self.group.handle, self.warden.receive()))

    def said_of(self, name: str) -> list[Event]:
        """The events of this name so far."""
        return [event for event in self.published if event.name == name]

    def failure(self) -> Incident:
        """The failure that is the next news."""
        news = self.next()
        assert isinstance(news, WorkerFailed), news
        return news.incident

    def read(self, name: str) -> str:
        """A file of a worker's, in the directory of its round."""
        return (self.folder / name).read_text()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    become_subreaper()
    warden = Warden()
    node = Node(tmp_path, warden)
    yield node
    warden.close(PATIENCE)
    node.output.close(PATIENCE)
    node.reports.close()


# Starting ------------------------------------------------------------------------------------------------------------


def test_every_local_rank_is_started_with_the_contract_of_torchrun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "is inherited")
    node.start("env >&2", TWO, number=1, restarts=3)
    assert node.next() == WorkersDone()
    for local_rank, rank in enumerate((1, 2)):
        lines = node.read(f"round_1/rank_{rank}/stderr.log").splitlines()
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "GROUP_RANK": "1",
            "ROLE_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.98",
            "MASTER_PORT": "29501",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "TORCHELASTIC_MAX_RESTARTS": "5",
            "TORCHELASTIC_RUN_ID": "job7",
            "TORCHELASTIC_ERROR_FILE": str(node.folder / f"round_1/rank_{rank}/error.json"),
            "MINE": "is inherited",
        }
        assert {name: environment.get(name) for name in expected} == expected


def test_a_rank_counts_among_those_of_its_own_role(node: Node) -> None:
    node.start("echo $ROLE_RANK of $ROLE_WORLD_SIZE", (Member("b", 4, "critic"), Member("a", 2, "default")))
    assert node.next() == WorkersDone()
    assert [node.read(f"round_1/rank_{rank}/stdout.log") for rank in (4, 5)] == ["0 of 2\n", "1 of 2\n"]


def test_each_round_has_directories_of_its_own(node: Node) -> None:
    for number in (1, 2):
        node.start(f"echo {number}", number=number)
        assert node.next() == WorkersDone()
        node.group.finish_round()
    assert [node.read(f"round_{number}/rank_0/stdout.log") for number in (1, 2)] == ["1\n", "2\n"]


def test_workers_are_alive_from_when_the_last_has_started_until_the_first_has_ended(node: Node) -> None:
    gate = node.folder / "gate"
    os.mkfifo(gate)
    node.start(f"test $LOCAL_RANK = 0 || read line < {gate}; test $LOCAL_RANK = 1 || exec sleep 1000", TWO)
    assert not node.group.alive()
    while sum(isinstance(event, Spawned) for event in node.heard) < 2:
        assert not node.group.alive()
        assert select.select([node.warden], [], [], PATIENCE)[0]
        for event in node.warden.receive():
            node.heard.append(event)
            assert node.group.handle(event) is None
    assert node.group.alive()
    gate.write_text("go\n")
    assert select.select([node.warden], [], [], PATIENCE)[0]
    for event in node.warden.receive():
        assert node.group.handle(event) is None  # the other one still runs
    assert not node.group.alive()


# Progress ------------------------------------------------------------------------------------------------------------


def test_a_failure_has_the_step_that_the_worker_has_reported(node: Node) -> None:
    report = '{"type": "progress", "step": 7}'
    send = f"import socket; socket.socket(fileno=int(os.environ['ELASTIC_CONTROL_FD'])).send(b'{report}')"
    program = Program(ProgramKind.EXECUTABLE, sys.executable, ("-c", f"import os; {send}; os._exit(3)"))
    node.start_program(program)
    assert node.failure().step == 7


def test_steps_are_progress_of_the_round_as_long_as_it_runs(node: Node) -> None:
    node.start("exec sleep 1000")
    assert node.group.handle(StepSeen(1)) is None, "not all workers are there"
    node.run()
    assert node.group.handle(StepSeen(1)) == Progressed(1)
    node.group.stop(0.0)
    assert node.group.handle(StepSeen(1)) is None


def test_a_monitor_fails_a_worker_that_lives(node: Node) -> None:
    node.start("exec sleep 1000", TWO)
    node.run()
    node.group.progress.observe(2, Progress(step=9, loss=math.nan))
    assert node.group.handle(RankFailed(2, 2, "NanLoss", "of another round", kill=False)) is None
    assert node.group.handle(RankFailed(1, 0, "NanLoss", "on another node", kill=False)) is None
    assert node.group.alive()
    news = node.group.handle(RankFailed(1, 2, "NanLoss", "the loss is nan since step 9", kill=False))
    assert isinstance(news, WorkerFailed)
    assert (news.incident.rank, news.incident.step, news.incident.exit_code) == (2, 9, None)
    assert (news.incident.exception, news.incident.message) == ("NanLoss", "NanLoss: the loss is nan since step 9")
    assert node.group.handle(RankFailed(1, 1, "NanLoss", "later", kill=False)) is None, "the round has failed"
    assert node.group.alive(), "it is stopped as all others"
    node.group.stop(0.0)


def test_a_monitor_kills_a_worker(node: Node) -> None:
    node.start("trap '' TERM; while :; do sleep 1; done", TWO)
    node.run()
    news = node.group.handle(RankFailed(1, 2, "", "does nothing", kill=True))
    assert isinstance(news, WorkerFailed)
    assert (news.incident.rank, news.incident.exception, news.incident.message) == (2, "", "does nothing")
    while not (ended := [event for event in node.warden.receive() if isinstance(event, Exited)]):
        assert select.select([node.warden], [], [], PATIENCE)[0]
    assert [event.returncode for event in ended] == [-signal.SIGKILL]
    assert [worker.is_running for worker in node.group.workers] == [True, True], "that of the other is not ended"
    node.group.stop(0.0)


class Monitor:
    """Registers what a test wants in each round."""

    def __init__(self, watch: Callable[[RunningRound], object]) -> None:
        self.watch = watch
        self.rounds: list[RunningRound] = []

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        self.rounds.append(round)
        self.watch(round)


def test_a_monitor_sees_a_round_from_before_its_workers_start_until_they_are_gone(node: Node) -> None:
    seen: list[object] = []
    monitor = Monitor(lambda round: seen.append((round.number, round.members, round.workers, round.directory.name)))
    node.plugins.register("monitor", monitor)
    node.start("exec sleep 1000", TWO)
    assert seen == [(1, ["b", "a"], (), "round_1")]
    node.run()
    [running] = monitor.rounds
    assert [(one.rank, one.local_rank, one.is_running) for one in running.workers] == [(1, 0, True), (2, 1, True)]
    running.note("loss", "2.5")
    told = node.group.describe_workers(1, 0.0)
    assert told is not None
    assert told.notes == {"loss": "2.5"}
    node.group.stop(0.0)
    node.group.finish_round()
    assert running.closed.is_set()
    assert running.workers == ()


def test_the_explanation_of_a_monitor_is_part_of_the_failure(node: Node) -> None:
    node.plugins.register("monitor", Monitor(lambda round: round.explain("the disk is full\nthe loss was 3")))
    node.start("echo boom >&2; exit 3")
    assert node.failure().detail == "boom\nthe disk is full\nthe loss was 3"


def test_a_signal_that_a_monitor_sends_explains_the_end_of_its_worker(node: Node) -> None:
    monitor = Monitor(lambda round: None)
    node.plugins.register("monitor", monitor)
    node.start("exec sleep 1000")
    node.run()
    [running] = monitor.rounds
    [worker] = running.workers
    assert worker.pid is not None
    running.signal(worker.pid, signal.SIGUSR1, "it used too much memory")
    assert node.failure().message == "was sent SIGUSR1 because it used too much memory"


def test_a_monitor_that_raises_is_told_and_the_round_starts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.plugins.register("monitor", Monitor(lambda round: round.note("x", "y" * 1000)))
    told: list[Event] = []
    monkeypatch.setattr(node.plugins, "publish", told.append)
    node.start("exit 0")
    assert node.next() == WorkersDone()
    assert [event.name for event in told if event.level is Level.WARNING] == ["plugin_failed"]


# How they end --------------------------------------------------------------------------------------------------------


def test_workers_are_done_when_the_last_of_them_has_exited_with_0(node: Node) -> None:
    node.start("exit 0", TWO)
    assert node.next() == WorkersDone()
    (started,) = node.published
    assert (started.name, started.level) == ("workers_started", Level.DEBUG)
    assert started.fields == {"round": 1, "workers": 2, "took_s": 0.0}


STEPS = """
import time
from elastic_core.worker.graceful_stop import should_checkpoint
step = 0
while not should_checkpoint(step):
    time.sleep(0.2)
    step += 1
"""


def test_workers_that_take_notices_answer_a_plan_and_stop_as_they_are_told(node: Node) -> None:
    node.start_program(python(STEPS), TWO)
    assert node.next() == Progressed(1, takes_notices=True)
    plan = Notice(0, 3, 60.0)
    steps = node.group.notify(plan)
    assert steps is not None
    assert len(steps) == 2
    assert node.group.notify(replace(plan, step=max(steps) + 1)) is None
    assert node.next() == WorkersDone(stepped_down=True)


def test_monitors_look_once_more_at_a_round_that_was_stopped_as_planned(node: Node) -> None:
    stops: list[PlannedStop] = []

    class Monitor:
        @hookimpl
        def elastic_round_starts(self, round: RunningRound) -> None:
            round.answer_snapshot(lambda: (1, 6))
            round.look_last(lambda stop: round.report_checkpoint(Checkpoint(5), 1.0))
            round.look_last(self.look)

        def look(self, stop: PlannedStop) -> Event:
            stops.append(stop)
            return Event("saved", "it was saved", fields={"step": 5})

    node.plugins.register("monitor", Monitor())
    node.start("exec sleep 1000")
    node.run()
    node.group.progress.observe(0, Progress(step=7))
    node.group.stop(30.0)
    node.time += 4.0
    assert node.next() is None
    node.group.finish_round()
    [stop] = stops
    assert (stop.had_s, stop.took_s, stop.step, stop.snapshot_step) == (30.0, 4.0, 7, 6)
    assert stop.checkpoint is not None
    assert stop.checkpoint[0] == 5
    assert [event.message for event in node.said_of("saved")] == ["it was saved"]
    assert node.group.stop_facts == {"saved": {"step": 5}}
    node.start("exit 1", number=2)
    node.failure()
    node.group.stop(30.0)
    node.group.finish_round()
    assert len(stops) == 1, "it was not planned"


def test_a_worker_that_stopped_as_told_has_not_finished_though_its_end_is_heard_of_first(node: Node) -> None:
    node.start_program(python(STEPS))
    assert node.next() == Progressed(1, takes_notices=True)
    plan = Notice(0, 3, 60.0)
    (step,) = node.group.notify(plan) or ()
    node.group.notify(replace(plan, step=step + 1))
    news: list[NodeEvent] = []
    while not news:
        assert select.select([node.warden], [], [], PATIENCE)[0], "its reports are not received meanwhile"
        news = [found for event in node.warden.receive() if (found := node.group.handle(event)) is not None]
    assert news == [WorkersDone(stepped_down=True)]


def test_a_step_that_was_received_and_not_dealt_with_yet_is_in_the_answer(node: Node) -> None:
    node.start_program(python(STEPS))
    assert node.next() == Progressed(1, takes_notices=True)
    assert select.select([node.reports], [], [], PATIENCE)[0]
    node.reports.receive()
    received = node.group.workers[0].reported.step
    (step,) = node.group.notify(Notice(0, 3, 60.0)) or ()
    assert received is not None
    assert step >= received, "as where the PLAN came in the same turn of the loop, and before it"


def test_workers_that_wait_for_a_step_can_be_let_go(node: Node) -> None:
    node.start_program(python(STEPS.replace("while not", "while step < 3 and not")))
    assert node.next() == Progressed(1, takes_notices=True)
    assert node.group.notify(Notice(0, 3, 60.0)) is not None
    assert node.group.notify(None) is None
    assert node.next() == WorkersDone()


def test_a_script_that_ends_before_it_is_to_stop_has_finished(node: Node) -> None:
    node.start_program(python(STEPS.replace("while not", "while step < 3 and not")))
    assert node.next() == Progressed(1, takes_notices=True)
    node.group.notify(Notice(0, 3, 60.0))
    node.group.notify(Notice(0, 3, 60.0, 1000))
    assert node.next() == WorkersDone()


def test_where_one_has_reported_nothing_there_is_no_answer(node: Node) -> None:
    node.start("exec sleep 1000", TWO)
    node.run()
    assert node.group.notify(Notice(0, 3, 60.0)) is None


def test_a_failure_is_told_with_all_that_is_known_of_it(node: Node) -> None:
    node.start("test $RANK = 1 && exec sleep 1000; echo 'ValueError: boom' >&2; exit 7", TWO)
    node.time = 112.5
    incident = node.failure()
    spawned = {event.tag: event.pid for event in node.heard if isinstance(event, Spawned)}
    assert incident == Incident(
        kind=IncidentKind.WORKER_FAILED,
        round=1,
        node_id="a",
        host="host-a",
        after=12.5,
        rank=2,
        local_rank=1,
        pid=spawned[2],
        exit_code=7,
        message="ValueError: boom",
        exception="ValueError",
        detail="ValueError: boom\n",
        log=str(node.folder / "round_1/rank_2/stderr.log"),
    )
    assert [event for event in node.published if event.name != "workers_started"] == [
        Event(
            "worker_failed",
            f"rank 2 (pid {incident.pid}) exited with code 7: ValueError: boom",
            Level.WARNING,
            {
                "rank": 2,
                "pid": incident.pid,
                "exit_code": 7,
                "round": 1,
                "exception": "ValueError",
                "step": None,
                "message": "ValueError: boom",
                "where": "",
                "log": incident.log,
            },
        )
    ]


def test_the_signal_that_kills_a_worker_is_named(node: Node) -> None:
    node.start("kill -SEGV $$")
    incident = node.failure()
    assert incident.exit_code == -signal.SIGSEGV
    assert "was killed by SIGSEGV" in node.published[-1].message


def test_only_the_first_failure_is_told_since_the_others_follow_from_it(node: Node) -> None:
    gate = node.folder / "gate"
    os.mkfifo(gate)
    node.start(f"test $RANK = 1 && read line < {gate}; exit $RANK", TWO)
    assert node.failure().rank == 2
    gate.write_text("go\n")
    node.group.stop(PATIENCE)
    assert node.next() is None
    assert [event.name for event in node.published].count("worker_failed") == 1


PEER_FAILS = "test $RANK = 1 && echo 'RuntimeError: gloo: Connection closed by peer' >&2 && exit 1"


def test_a_kill_that_is_known_only_after_a_peer_has_failed_of_it_is_told_as_well(node: Node) -> None:
    """A killed process is reaped when its devices are closed, and its peers may see it go long before."""
    gate = node.folder / "gate"
    os.mkfifo(gate)
    node.start(f"{PEER_FAILS}; trap '' TERM; echo > {gate}; sleep 300", TWO)
    gate.read_text()
    assert node.failure().rank == 1
    killed = next(worker for worker in node.group.workers if worker.assignment.rank == 2)
    while killed.pid is None:  # the warden may report its start after the end of the other one
        assert select.select([node.warden], [], [], PATIENCE)[0]
        assert not any(map(node.group.handle, node.warden.receive()))
    node.group.stop(PATIENCE, broken=True)
    pid = killed.pid
    os.kill(pid, signal.SIGKILL)
    cause = node.failure()
    assert (cause.rank, cause.exit_code) == (2, -signal.SIGKILL)


def test_a_rank_that_failed_by_itself_comes_before_sigterm_of_unknown_origin(node: Node) -> None:
    raised, stopped = node.folder / "raised", node.folder / "stopped"
    os.mkfifo(raised)
    os.mkfifo(stopped)
    terminated = f"test $RANK = 1 && read line < {raised} && kill -TERM $$"
    node.start(f"{terminated}; trap '' TERM; echo 'ValueError: boom' >&2; echo > {raised}; cat {stopped}; exit 1", TWO)
    failure = node.failure()
    assert (failure.rank, failure.exit_code) == (1, -signal.SIGTERM)
    assert "(by a person, a scheduler or an out-of-memory daemon)" in node.published[-1].message
    assert "follows from" not in node.published[-1].message
    node.group.stop(PATIENCE, broken=True)
    stopped.write_text("")
    cause = node.failure()
    assert (cause.rank, cause.message) == (2, "ValueError: boom")


def test_a_worker_that_the_stop_ends_is_not_the_cause_of_sigterm(node: Node) -> None:
    ready = node.folder / "ready"
    os.mkfifo(ready)
    node.start(f"test $RANK = 1 && read line < {ready} && kill -TERM $$; echo > {ready}; sleep 300", TWO)
    assert node.failure().rank == 1
    node.group.stop(PATIENCE, broken=True)
    assert node.next() is None


def test_a_rank_that_exited_before_explains_what_follows_from_a_peers_loss_and_nothing_else(node: Node) -> None:
    gate = node.folder / "gate"
    os.mkfifo(gate)
    node.start(f"test $RANK = 2 && exit 0; read line < {gate}; {PEER_FAILS}", TWO)
    while all(worker.exit_code is None for worker in node.group.workers):
        assert select.select([node.warden], [], [], PATIENCE)[0]
        assert not any(map(node.group.handle, node.warden.receive()))
    gate.write_text("go\n")
    peer = node.failure()
    assert (peer.rank, peer.exit_code) == (1, 1)
    assert (early := node.group.early_exit(peer)) is not None
    assert early.incident.kind is IncidentKind.EXITED_EARLY
    assert (early.incident.rank, early.incident.exit_code) == (2, 0)
    assert "it had finished when rank 1 on" in node.published[-1].message
    for failure in (None, replace(peer, follows_peer=False)):
        assert node.group.early_exit(failure) is None


def ended(node: Node, rank: int) -> Worker:
    """Wait until the warden has reported the end of a rank, which is no news."""
    [worker] = [worker for worker in node.group.workers if worker.assignment.rank == rank]
    while worker.exit_code is None:
        assert select.select([node.warden], [], [], PATIENCE)[0]
        assert not any(map(node.group.handle, node.warden.receive()))
    return worker


@pytest.mark.parametrize(("end", "grace", "code"), [("exit 0", PATIENCE, 0), ("sleep 300", 0.5, None)])
def test_a_worker_whose_program_was_over_before_its_peer_failed_has_left_early(
    node: Node, end: str, grace: float, code: int | None
) -> None:
    """It gets no SIGTERM, which would hide its exit code. That stays unknown if it is killed after the grace."""
    over, gate = node.folder / "over", node.folder / "gate"
    for path in (over, gate):
        os.mkfifo(path)
    reports = "; ".join(f'report("{what}")' for what in ("recording", "over"))
    says_over = f"{sys.executable} -c 'from elastic_core.worker.channel import report; {reports}'"
    ends = f"{says_over}; echo > {over}; read line < {gate}; {end}"
    node.start(f"if test $RANK = 1; then read line < {over}; {PEER_FAILS}; fi; {ends}", TWO)
    peer = node.failure()
    assert node.group.early_exit(peer) is None, "it has not exited yet"
    node.group.stop(grace, broken=True, failure=peer)
    gate.write_text("go\n")
    ended(node, 2)
    assert (early := node.group.early_exit(peer)) is not None
    assert (early.incident.rank, early.incident.exit_code) == (2, code)
    assert early.incident.kind is IncidentKind.EXITED_EARLY


def test_a_worker_that_exits_with_0_when_it_is_told_to_end_has_not_left_early(node: Node) -> None:
    ready = node.folder / "ready"
    os.mkfifo(ready)
    wait = "while :; do sleep 0.05; done"
    node.start(f"test $RANK = 1 && read line < {ready}; {PEER_FAILS}; trap 'exit 0' TERM; echo > {ready}; {wait}", TWO)
    peer = node.failure()
    node.group.stop(PATIENCE, broken=True, failure=peer)
    ended(node, 2)
    assert node.group.early_exit(peer) is None


def test_workers_that_failed_alike_are_counted_at_the_end_of_the_round(node: Node) -> None:
    node.start("echo 'ValueError: boom' >&2; exit 1", TWO)
    failure = node.failure()
    assert failure.message == "ValueError: boom"
    while any(worker.exit_code is None for worker in node.group.workers):
        assert select.select([node.warden], [], [], PATIENCE)[0]
        assert not any(map(node.group.handle, node.warden.receive()))
    assert node.group.finish_round(failure) == 2
    assert node.group.finish_round(failure) == 0
    assert node.finder.asked == [1, 1], "once for each worker"


def test_a_cause_that_is_a_message_only_is_reported_with_the_end_of_stderr_and_the_record(node: Node) -> None:
    node.finder.answer = Cause(message="found")
    record = '{"message": {"message": "recorded", "extraInfo": {"timestamp": "1"}}}'
    node.start(f"echo '{record}' > $TORCHELASTIC_ERROR_FILE; echo 'no value' >&2; exit 3")
    failure = node.failure()
    assert (failure.message, failure.detail) == ("found", "no value\n")
    assert (node.group.error_record(failure) or {})["message"]["message"] == "recorded"


@pytest.mark.parametrize("recorded", [True, False])
def test_a_worker_that_is_stopped_after_its_exception_failed_alike_if_that_is_recorded(
    node: Node, recorded: bool
) -> None:
    """Its ``atexit`` functions ran when the stop came; then SIGTERM has ended it, with the exception in its record."""
    gate = node.folder / "gate"
    os.mkfifo(gate)
    error = {"type": "ValueError", "text": "boom", "frames": [], "group": False}
    member = {"by": "exception", "code": 1, "exceptions": [error], "paths": []}
    record = json.dumps({"message": {"message": "ValueError: boom"}, "elastic": member})
    write = f"echo '{record}' > $TORCHELASTIC_ERROR_FILE"
    first = f"{write}; read line < {gate}; exit 1"
    node.start(f"test $RANK = 1 && {{ {first}; }}; {write if recorded else ':'}; echo > {gate}; exec sleep 300", TWO)
    failure = node.failure()
    assert (failure.rank, failure.exception) == (1, "ValueError")
    node.group.stop(PATIENCE, broken=True)
    ended(node, 2)
    assert node.group.finish_round(failure) == (2 if recorded else 1)


def test_workers_that_refuse_their_arguments_fail_alike(node: Node) -> None:
    node.start("echo 'usage: train.py [--lr LR]' >&2; exit $((RANK + 1))", TWO)
    failure = replace(node.failure(), exit_code=2)
    for rank in (1, 2):
        ended(node, rank)
    assert (failure.message, failure.detail) == ("", "usage: train.py [--lr LR]\n")
    assert node.group.finish_round(failure) == 1


@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_a_worker_that_the_warden_kills_after_a_peers_failure_is_no_cause(node: Node, grace: float) -> None:
    gate = node.folder / "gate"
    os.mkfifo(gate)
    node.start(f"{PEER_FAILS}; trap '' TERM; echo > {gate}; sleep 300", TWO)
    gate.read_text()
    assert node.failure().rank == 1
    node.group.stop(grace, broken=True)
    assert node.next() is None


def test_an_exception_that_was_printed_before_a_peer_failed_of_it_is_told_as_well(node: Node) -> None:
    """Its program takes seconds to end, and closes its connections on the way."""
    said, gate = node.folder / "said", node.folder / "gate"
    os.mkfifo(said)
    os.mkfifo(gate)
    script = f"test $RANK = 2 && echo 'ValueError: boom' >&2 && trap '' TERM && echo > {said} && read line < {gate}"
    node.start(f"{PEER_FAILS}; {script}; exit 1", TWO)
    said.read_text()
    assert node.failure().rank == 1
    node.group.stop(PATIENCE, broken=True)
    gate.write_text("go\n")
    assert (cause := node.failure()).rank == 2
    assert cause.message == "ValueError: boom"


def test_a_worker_that_says_that_it_has_failed_is_not_waited_for(node: Node) -> None:
    node.start_program(
        python(
            "import signal, sys\nfrom elastic_core.worker.channel import report\n"
            "print('ValueError: boom', file=sys.stderr)\nreport('failed')\nsignal.pause()"
        )
    )
    incident = node.failure()
    assert (incident.exit_code, incident.message, incident.detail) == (1, "ValueError: boom", "ValueError: boom\n")
    node.group.stop(0.0)
    assert node.next() is None
    assert [event.name for event in node.published].count("worker_failed") == 1


def test_a_failure_that_is_reported_before_the_start_of_its_worker_is_told_with_its_pid(node: Node) -> None:
    """The worker and the warden report over channels of their own, and the agent may read either one first."""
    node.start("exec sleep 1000")
    assert node.group.handle(Failed(1)) is None
    incident = node.failure()
    (spawned,) = (event for event in node.heard if isinstance(event, Spawned))
    assert incident.pid == spawned.pid
    [told] = node.said_of("worker_failed")
    assert (told.fields["pid"], told.message) == (spawned.pid, f"rank 0 (pid {spawned.pid}) exited with code 1")
    node.group.stop(0.0)
    assert node.next() is None


def test_a_signal_of_the_warden_counts_though_the_start_of_the_worker_is_told_later(node: Node) -> None:
    node.start("exec sleep 1000")
    node.group.handle(Signalled(signal.SIGKILL, (4711,)))
    node.group.handle(Spawned(1, 4711))
    assert node.group.workers[0].sent == signal.SIGKILL
    node.group.stop(0.0)
    node.next()


def test_a_worker_that_is_dead_has_not_failed_once_more(node: Node) -> None:
    node.start("exit 3")
    assert node.failure().exit_code == 3
    assert node.group.handle(Failed(1)) is None


def test_a_worker_that_dies_of_a_stop_is_no_failure(node: Node) -> None:
    node.start("echo ready; exec sleep 1000", TWO)
    node.group.stop(PATIENCE)
    assert node.next() is None  # StopCompleted, and no news
    assert {event.name for event in node.published} <= {"workers_started", "workers_signalled"}


def test_a_round_that_has_failed_by_the_time_its_last_worker_starts_is_not_said_to_run(node: Node) -> None:
    node.start("exec sleep 1000", TWO)
    assert isinstance(node.group.handle(SpawnFailed(1, "no such program")), WorkerFailed)
    for tag in (1, 2):
        node.group.handle(Spawned(tag, 4711))
    assert [event.name for event in node.published] == ["worker_failed"]


def test_after_a_stop_the_next_round_can_fail_again(node: Node) -> None:
    for number in (1, 2):
        node.start("exit 1", number=number)
        assert node.failure().round == number
        node.group.stop(0)
        while node.next() is not None:
            pass
        node.group.finish_round()
    assert not node.group.alive()


def test_without_a_plugin_the_file_of_the_record_decorator_explains_a_failure_better_than_stderr(node: Node) -> None:
    error = {"message": {"message": "KeyError: 'lr'", "extraInfo": {"py_callstack": "the\ntraceback\n"}}}
    (node.folder / "written.json").write_text(json.dumps(error))
    node.finder.off = True
    copy = f'cp {node.folder}/written.json "$TORCHELASTIC_ERROR_FILE"'
    node.start(f"{copy}; echo 'ValueError: not this' >&2; exit 1")
    incident = node.failure()
    assert incident.message == "KeyError: 'lr'"
    assert node.group.error_record(incident) == error


def test_a_long_explanation_is_kept_short_from_the_right_end(node: Node) -> None:
    script = "import sys; sys.exit('x' * 9000 + '\\nValueError: ' + 'm' * 900)"
    node.start_program(Program(ProgramKind.EXECUTABLE, sys.executable, ("-I", "-S", "-c", script)))
    incident = node.failure()
    assert incident.message == "ValueError: " + "m" * 488
    assert len(incident.detail) <= DETAIL_MAX_CHARACTERS
    assert incident.detail.endswith("m\n")


class Explainer:
    """Knows why workers exit with 7, or cannot be started."""

    def __init__(self) -> None:
        self.asked: list[tuple[Incident, str]] = []

    @hookimpl
    def elastic_explain_failure(self, incident: Incident, text: str) -> Explanation | None:
        """Return None for any other failure."""
        self.asked.append((incident, text))
        if incident.exit_code == 7 or incident.kind is IncidentKind.START_FAILED:
            return Explanation(failure_class=FailureClass.INFRASTRUCTURE, name="the licence server is down")
        return None


@pytest.mark.parametrize(("code", "name"), [(7, "the licence server is down"), (1, "")])
def test_a_plugin_explains_a_failure_by_its_text_before_it_is_reported(node: Node, code: int, name: str) -> None:
    node.plugins.register("licences", explainer := Explainer())
    node.start(f"echo 'ValueError: boom' >&2; exit {code}", ONE)
    failed = node.failure()
    assert failed.explanation.name == name
    assert failed.failure_class is (FailureClass.INFRASTRUCTURE if name else FailureClass.UNKNOWN)
    ((asked, text),) = explainer.asked
    assert text == "ValueError: boom"
    assert replace(asked, explanation=failed.explanation) == failed


def test_a_plugin_explains_why_a_round_could_not_be_started(node: Node) -> None:
    node.start("exit 0")
    node.plugins.register("licences", Explainer())
    failed = node.group.fail_start(node.round(), OSError(28, "No space left on device")).incident
    assert failed.explanation.name == "the licence server is down"


# What cannot be started ----------------------------------------------------------------------------------------------


def test_a_program_that_does_not_exist_is_a_failure_with_its_reason(node: Node) -> None:
    node.start_program(Program(ProgramKind.EXECUTABLE, "no-such-program"))
    incident = node.failure()
    assert (incident.kind, incident.pid, incident.exit_code) == (IncidentKind.START_FAILED, None, None)
    assert incident.message == "[Errno 2] No such file or directory: 'no-such-program'"
    assert node.published[0].message == f"rank 0 {incident.message}"


class BrokenPlugin:
    """Raises when a worker is to be started."""

    @hookimpl
    def elastic_worker_environment(self) -> Mapping[str, str]:
        """Fails."""
        raise ValueError("not today")


def test_a_round_that_a_plugin_forbids_is_a_failure_of_this_nodes_first_rank(node: Node) -> None:
    node.plugins.register("broken", BrokenPlugin())
    with pytest.raises(ElasticError, match="'broken' raised in elastic_worker_environment: ValueError: not today") as e:
        node.start("true", TWO)
    event = node.group.fail_start(node.round(TWO), e.value)
    assert event.incident.kind is IncidentKind.START_FAILED
    assert (event.incident.rank, event.incident.node_id, event.incident.round) == (1, "a", 1)
    assert event.incident.message.startswith("the workers could not be started: The plugin 'broken' raised")


def test_a_full_disk_is_a_failure_too(node: Node) -> None:
    (node.folder / "round_1").write_text("a file where a directory should be")
    with pytest.raises(OSError, match="round_1") as caught:
        node.start("true")
    message = node.group.fail_start(node.round(), caught.value).incident.message
    assert message.startswith("the workers could not be started: [Errno ")


# What they report ----------------------------------------------------------------------------------------------------


def python(code: str) -> Program:
    return Program(ProgramKind.EXECUTABLE, sys.executable, ("-c", code))


def test_a_worker_reports_over_the_channel_that_it_inherits(node: Node) -> None:
    node.start_program(
        python("import signal\nfrom elastic_core.worker.channel import report\nreport('initialized')\nsignal.pause()")
    )
    assert node.next() == Progressed(1)
    [event] = node.said_of("initialized")
    assert event.fields == {"round": 1, "workers": 1, "took_s": 0.0}
    node.group.stop(0.0)
    assert node.next() is None


def test_a_round_has_progressed_once_all_local_workers_are_in_the_process_group(node: Node) -> None:
    node.start("sleep 1000", TWO)
    node.run()
    node.time += 0.25
    assert [node.group.handle(Initialized(tag)) for tag in (2, 2, 1, 1)] == [None, None, Progressed(1), None]
    [event] = node.said_of("initialized")
    assert event.fields == {"round": 1, "workers": 2, "took_s": 0.25}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[str]:
    """The threads that have prepared for a failure."""
    threads: queue.SimpleQueue[str] = queue.SimpleQueue()
    prepare = lambda: threads.put(threading.current_thread().name)  # noqa: E731
    monkeypatch.setattr(workers, "import_failure_path", prepare)
    return threads


def test_a_failure_is_prepared_for_once_when_all_are_in_the_process_group(
    node: Node, prepared: queue.SimpleQueue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start("sleep 1000", TWO)
    node.run()
    monkeypatch.setattr(workers, "PREPARE_AFTER_SECONDS", 0.0)
    node.group.handle(Initialized(1))
    assert prepared.empty()  # the start of the other worker does not wait for it
    node.group.handle(Initialized(2))
    assert prepared.get(timeout=PATIENCE) == "elastic-prepare"
    node.group.stop(0.0)
    assert node.next() is None
    node.group.finish_round()
    node.start("sleep 1000", number=2)
    node.run()
    assert node.group.handle(Initialized(3)) == Progressed(2)
    assert prepared.empty()


def test_a_failure_is_prepared_for_where_there_is_no_process_group(
    node: Node, prepared: queue.SimpleQueue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start("sleep 1000")
    monkeypatch.setattr(workers, "IDLE_AFTER_SECONDS", 0.0)
    node.run()
    assert prepared.get(timeout=PATIENCE) == "elastic-prepare"


def test_workers_that_wait_for_a_long_import_are_told_of(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    published: queue.SimpleQueue[Event] = queue.SimpleQueue()
    node.start("sleep 1000")
    node.run()
    node.group.stop(0.0)
    assert node.next() is None
    node.warden.starter = STARTER  # the warden has none, so each worker starts fresh
    monkeypatch.setattr(workers, "LONG_IMPORT_SECONDS", 0.0)
    waiting = replace(node.group, node=replace(node.group.node, publish=published.put), _round=workers.LocalRound())
    node.time += 12.0
    waiting.start(node.round(), 0)
    event = published.get(timeout=PATIENCE)
    assert (event.name, event.level) == ("importing", Level.INFO)
    assert event.message == "the workers wait for the import of torch (0 s so far)"
    waiting.stop(0.0)


def test_a_later_round_is_not_told_of_the_import_that_the_first_one_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Callable[[], object]] = []
    monkeypatch.setattr(workers, "prepare_later", lambda _, prepare, *, name: late.append(prepare))
    node.start("sleep 1000")
    node.run()
    late.clear()
    node.warden.starter = STARTER
    waiting = replace(node.group, _round=workers.LocalRound())
    waiting.start(node.round(), 0)
    [say_import] = late
    waiting.start(node.round(number=2), 0)
    say_import()
    assert node.said_of("importing") == []
    waiting.stop(0.0)


def test_a_report_may_be_heard_before_it_is_known_that_its_worker_runs(node: Node) -> None:
    node.start("sleep 1000")
    assert node.group.handle(Initialized(1)) is None
    assert node.next() == Progressed(1)
    assert [event.name for event in node.published] == ["workers_started", "initialized"]


def test_a_round_that_has_failed_is_not_said_to_have_a_process_group(node: Node) -> None:
    node.start('[ "$LOCAL_RANK" = 1 ] || exec sleep 1000; exit 3', TWO)
    assert node.failure().exit_code == 3
    assert [node.group.handle(Initialized(tag)) for tag in (1, 2)] == [None, None]
    assert node.said_of("initialized") == []


def test_a_recovery_is_over_when_the_process_group_is_there_again(node: Node) -> None:
    node.start("exit 1")
    node.failure()
    node.group.stop(0.0)
    node.group.note_next_round()
    assert node.next() is None
    node.group.finish_round()
    node.start("sleep 1000", number=2)
    node.run()
    assert node.group.handle(Initialized(1)) is None  # the old round's
    assert node.group.handle(Initialized(2)) == Progressed(2)
    [event] = node.said_of("initialized")
    parts = ["detected_s", "decided_s", "stopped_s", "running_s", "initialized_s"]
    assert [*event.fields] == ["round", "workers", "took_s", *parts]
    [restarted] = node.said_of("restarted")
    assert {part: restarted.fields[part] for part in parts[:-1]}.items() <= event.fields.items()


def test_a_malformed_report_is_ignored_and_published(node: Node) -> None:
    node.start("sleep 1000", TWO)
    assert node.group.handle(NotUnderstood(2, "it is not JSON")) is None
    assert node.published == [
        Event(
            "report_ignored",
            "what rank 2 says to its agent is ignored where it is no report: it is not JSON",
            Level.DEBUG,
            {"rank": 2, "why": "it is not JSON"},
        )
    ]


FLOOD = """
import os, signal, socket, sys
if os.environ["LOCAL_RANK"] == "1":
    sys.exit(len(open(sys.argv[1]).read()))
channel = socket.socket(fileno=int(os.environ["ELASTIC_CONTROL_FD"]))
channel.setblocking(False)
try:
    while True:
        channel.send(b"x" * 1000)
except BlockingIOError:
    open(sys.argv[1], "w").write("now")
channel.setblocking(True)
while True:
    channel.send(b"x" * 1000)
"""


def test_a_worker_that_floods_its_channel_keeps_the_agent_from_nothing(node: Node, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "full")
    node.start_program(Program(ProgramKind.EXECUTABLE, sys.executable, ("-c", FLOOD, str(tmp_path / "full"))), TWO)
    assert node.failure().exit_code == 3
    while not (again := [event for _, event in node.later if not isinstance(event, Lingers)]):  # the flood goes on
        assert select.select([node.reports], [], [], PATIENCE)[0]
        assert not any(map(node.group.handle, node.reports.receive()))
    node.group.stop(0.0)
    assert node.next() is None
    assert len(node.said_of("report_ignored")) == 1
    assert len(again) == 1  # it was listened to for a while only


# What is said meanwhile ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            Signalled(15, (7, 8)),
            Event("workers_signalled", "sent SIGTERM to 7, 8", Level.DEBUG, {"signal": "SIGTERM", "pids": "7, 8"}),
        ),
        (
            Signalled(9, (7,)),
            Event("workers_signalled", "sent SIGKILL to 7", Level.INFO, {"signal": "SIGKILL", "pids": "7"}),
        ),
        (
            Signalled(9, (7, 8), ("sh", "rclone")),
            Event(
                "workers_signalled",
                "sent SIGKILL to 7 (sh), 8 (rclone), which the workers had started",
                Level.INFO,
                {"signal": "SIGKILL", "pids": "7 (sh), 8 (rclone)"},
            ),
        ),
        (
            Stuck(7, "python", "nfs_wait"),
            Event(
                "worker_stuck",
                "process 7 (python) does not die: it waits in the kernel, in nfs_wait",
                Level.ERROR,
                {"pid": 7, "wchan": "nfs_wait"},
            ),
        ),
        (
            Stuck(7, "python", ""),
            Event(
                "worker_stuck",
                "process 7 (python) does not die: it waits in the kernel, in an unknown place",
                Level.ERROR,
                {"pid": 7, "wchan": ""},
            ),
        ),
    ],
)
def test_signals_and_processes_that_do_not_die_are_told(node: Node, event: WardenEvent, said: Event) -> None:
    node.start("true")
    assert node.group.handle(event) is None
    assert node.published == [said]


def test_a_worker_whose_interpreter_does_not_end_after_its_program_is_named(node: Node) -> None:
    node.start("exec sleep 1000", TWO)
    node.run()
    first, second = node.group._round.workers
    assert node.group.handle(Lingers(second)) is None
    [said] = node.said_of("worker_lingers")
    pid = said.fields["pid"]
    assert said.message.startswith(f"rank 2 (pid {pid}) has finished its program and does not exit: ")
    node.group.stop(0.0)
    assert node.next() is None
    for tag in (first, second):
        assert node.group.handle(Lingers(tag)) is None
    assert len(node.said_of("worker_lingers")) == 1, "those are gone"


def test_news_of_a_worker_of_an_earlier_round_is_ignored(node: Node) -> None:
    node.start("exit 1")
    node.group.finish_round()
    assert node.group.handle(Spawned(1, 4711)) is None
    heard: list[Any] = []
    while not any(type(event).__name__ == "Exited" for event in heard):
        assert select.select([node.warden], [], [], PATIENCE)[0]
        heard += node.warden.receive()
    assert [node.group.handle(event) for event in heard] == [None] * len(heard)
    assert node.published == []


@pytest.mark.parametrize("temporary", [True, False], ids=["nobody asked for logs", "logs are kept"])
def test_a_round_leaves_no_directory_that_nobody_can_ask_for(node: Node, temporary: bool) -> None:
    node.keep_no_logs()
    for number in range(1, 4):
        node.start('echo "{}" > "$(dirname $TORCHELASTIC_ERROR_FILE)/kept_$RANK"; exit 1', number=number)
        node.group.node = replace(node.group.node, temporary=temporary)
        node.failure()
        node.group.stop(1.0)
        assert node.next() is None
        node.group.finish_round()
    rounds = sorted(path.name for path in node.folder.glob("round_*"))
    assert rounds == (["round_3"] if temporary else ["round_1", "round_2", "round_3"])


def test_a_round_whose_workers_left_nothing_leaves_no_directory(node: Node) -> None:
    node.keep_no_logs()
    for number in range(1, 4):
        node.start("exit 1", number=number)
        node.failure()
        node.group.stop(1.0)
        assert node.next() is None
        node.group.finish_round()
    assert [path.name for path in node.folder.glob("round_*")] == ["round_3"]
