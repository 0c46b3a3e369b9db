"""An agent over a handler, with a real warden and real workers; the handler does what a test wants to happen."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core import AgentEnd, AgentState, JoinedRun, RunSummary
from elastic_core.agent.directories import Slot
from elastic_core.agent.membership import connect_and_run
from elastic_core.agent.report import Ending
from elastic_core.agent.resources import Launch
from elastic_core.agent.start import begun
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig, Timing
from elastic_core.errors import RendezvousClosedError, RendezvousError, RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode
from elastic_core.hookspecs import hookimpl
from elastic_core.host.processes import descendants
from elastic_core.incidents import Action, Incident, Verdict
from elastic_core.monitors import RunningRound
from elastic_core.plugins.manager import Plugins, core_plugins
from elastic_core.protocol import Closed
from elastic_core.questions import AskedQuestion, NodeAnswer
from elastic_torchrun.errors import HandlerError
from elastic_torchrun.foreign import backend as foreign_backend
from elastic_torchrun.foreign.exchange import Card
from elastic_torchrun.foreign.registry import HandlerPlugin
from elastic_torchrun.rendezvous_api import BootstrapStoreInfo, RendezvousHandler, RendezvousInfo

PATIENCE = 60.0
ROUND = 'round=$(basename $(dirname $(dirname "$TORCHELASTIC_ERROR_FILE"))); '
"""Shell: ``$round`` is ``round_1`` in the first."""


class Scripted(RendezvousHandler):
    """A handler of one node, unless a test says otherwise."""

    shares = False

    def __init__(
        self,
        meet: Callable[[int], Any] = lambda number: (None, 0, 1),
        waiting: Callable[[int], int] = lambda number: 0,
    ) -> None:
        self._meet, self._waiting = meet, waiting
        self.rounds = 0
        self.looks = 0
        self.shut = 0
        self.threads: set[str] = set()

    def next_rendezvous(self) -> Any:
        self.threads.add(threading.current_thread().name)
        self.rounds += 1
        return self._meet(self.rounds)

    def num_nodes_waiting(self) -> int:
        self.threads.add(threading.current_thread().name)
        self.looks += 1
        return self._waiting(self.looks)

    def shutdown(self) -> bool:
        self.threads.add(threading.current_thread().name)
        self.shut += 1
        return True

    @property
    def use_agent_store(self) -> bool:
        return self.shares


def polled(config: RunConfig, plugins: Plugins, handler: Any) -> Ending:
    """Run an agent over a handler."""
    backend = HandlerPlugin(config.rdzv_backend, lambda: handler)
    plugins.register_backend(config.rdzv_backend, backend)
    plugins.configure(config)
    with ExitStack() as stack:
        slot = stack.enter_context(closing(Slot.take(config.rdzv_id)))
        warden = stack.enter_context(begun())
        return connect_and_run(Launch(config=config, plugins=plugins, slot=slot, warden=warden))


class Run:
    """One agent, run in this process, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[Event] = []
        self.on: dict[str, Callable[[], None]] = {}
        self.plugins = Plugins()
        for name, plugin in core_plugins().items():
            if name != "log-lines":
                self.plugins.register(name, plugin)
        self.plugins.register("listener", self)

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        self.heard.append(event)
        self.on.get(event.name, lambda: None)()

    def __call__(self, handler: Any, script: str, **settings: Any) -> Ending:
        program = Program(ProgramKind.EXECUTABLE, "sh", ("-c", script))
        given = {"rdzv_id": "job7", "log_dir": self.folder / "logs", "monitor_interval": 0.01, **settings}
        try:
            config = RunConfig(program=program, **given)
            return polled(config, self.plugins, handler)
        finally:
            assert self.plugins.close(PATIENCE) == ()

    def said(self, name: str) -> list[str]:
        return [event.message for event in self.heard if event.name == name]

    def printed(self, number: int, rank: int = 0) -> str:
        """Return the output of a rank in a round."""
        (path,) = (self.folder / "logs").glob(f"*/round_{number}/rank_{rank}/stdout.log")
        return path.read_text()

    def environment(self, number: int, rank: int = 0) -> dict[str, str]:
        """The same, of a worker that printed its environment."""
        return dict(line.split("=", 1) for line in self.printed(number, rank).splitlines() if "=" in line)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    before = set(descendants(os.getpid()))
    yield Run(tmp_path)
    assert set(descendants(os.getpid())) <= before, "processes that outlived their agent"


# A round -------------------------------------------------------------------------------------------------------------


def test_a_bare_tuple_is_enough_for_a_job(run: Run) -> None:
    handler = Scripted()
    ending = run(handler, "env", nproc_per_node=2, max_restarts=5)
    assert (ending.exit_code, ending.why) == (ExitCode.SUCCESS, "all workers of round 1 exited with 0")
    environment = run.environment(1, rank=1)
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "job7",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    assert {name: environment[name] for name in expected} == expected
    assert 0 < int(environment["MASTER_PORT"]) < 1 << 16
    assert (handler.rounds, handler.shut) == (1, 1)
    assert len(handler.threads) == 1
    assert handler.threads != {threading.current_thread().name}


def test_the_cost_of_a_handler_is_published_once(run: Run) -> None:
    run(Scripted(), ROUND + "test $round = round_3", max_restarts=2)
    (cost,) = [event for event in run.heard if event.name == "store_warning"]
    assert cost.level is Level.WARNING
    for word in ("lost node", "--on_node_loss", "joins", "finished"):
        assert word in cost.message


@pytest.mark.parametrize(
    ("answer", "shares", "address", "port"),
    [
        pytest.param(
            RendezvousInfo(None, 0, 1, BootstrapStoreInfo("10.0.0.7", 4711)), False, "10.0.0.7", "4711", id="told"
        ),
        pytest.param(
            (SimpleNamespace(host="10.0.0.8", port=4712), 0, 1), True, "10.0.0.8", "4712", id="the shared store's"
        ),
    ],
)
def test_workers_are_sent_where_the_handler_says(run: Run, answer: Any, shares: bool, address: str, port: str) -> None:
    handler = Scripted(lambda number: answer)
    handler.shares = shares
    run(handler, "env")
    environment = run.environment(1)
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == (address, port)
    assert environment["TORCHELASTIC_USE_AGENT_STORE"] == str(shares)


def test_the_handlers_job_id_goes_before_the_runs(run: Run) -> None:
    handler = Scripted()
    handler.get_run_id = lambda: "theirs"  # type: ignore[method-assign]  # as if it were written in the class
    run(handler, "env")
    assert run.environment(1)["TORCHELASTIC_RUN_ID"] == "theirs"


def test_a_handler_of_torchs_kind_will_do(run: Run) -> None:
    class Theirs:
        """Not a subclass of ours, and without ``use_agent_store``."""

        def __getattr__(self, name: str) -> Any:
            if name == "use_agent_store":
                raise AttributeError(name)
            return getattr(handler, name)

    handler = Scripted(lambda number: SimpleNamespace(store=None, rank=0, world_size=1, bootstrap_store_info=None))
    assert run(Theirs(), "exit 0").exit_code == 0
    assert handler.shut == 1


# Failures ------------------------------------------------------------------------------------------------------------


def test_a_failure_is_restarted_while_the_budget_lasts(run: Run) -> None:
    handler = Scripted()
    ending = run(handler, "echo restart $TORCHELASTIC_RESTART_COUNT; echo ValueError: boom >&2; exit 3", max_restarts=2)
    assert [run.printed(number) for number in (1, 2, 3)] == ["restart 0\n", "restart 1\n", "restart 2\n"]
    assert ending.exit_code == ExitCode.JOB_FAILED
    assert ending.incident is not None
    assert (ending.incident.exit_code, ending.incident.message) == (3, "ValueError: boom")
    assert (handler.rounds, handler.shut) == (3, 1)
    (closed,) = run.said("job_closed")
    assert "all restarts of --max_restarts=2 are spent" in closed
    assert "Root cause (the first failure on this node)" in closed
    assert [event.fields["cause"] for event in run.heard if event.name == "round_started"] == [
        None,
        "failure",
        "failure",
    ]
    assert run.said("round_started")[2] == ("round 3: 1 worker(s) on 1 node(s), restart 2 of 2")


def test_the_other_workers_of_the_node_are_stopped(run: Run) -> None:
    assert run(Scripted(), "test $RANK = 0 || exec sleep 1000; exit 1", nproc_per_node=2).exit_code == 1


def test_a_program_that_is_not_there_is_a_failure(run: Run) -> None:
    handler = Scripted()
    program = Program(ProgramKind.EXECUTABLE, "/no/such/program")
    config = RunConfig(program=program, log_dir=run.folder, max_restarts=1)
    ending = polled(config, run.plugins, handler)
    assert (ending.exit_code, handler.rounds) == (1, 2)
    assert ending.incident is not None
    assert "No such file or directory" in ending.incident.message


def test_the_workers_store_of_each_round_has_a_port_of_its_own(run: Run) -> None:
    assert run(Scripted(), "env; exit $((1 - TORCHELASTIC_RESTART_COUNT))", max_restarts=1).exit_code == 0
    assert run.environment(1)["MASTER_PORT"] != run.environment(2)["MASTER_PORT"]


# Nodes that wait -----------------------------------------------------------------------------------------------------


def test_nodes_that_wait_are_let_in_without_spending_a_restart(run: Run) -> None:
    handler = Scripted(waiting=lambda look: int(look == 3))
    script = ROUND + "env; test $round = round_2 || exec sleep 1000"
    assert run(handler, script).exit_code == 0
    assert handler.rounds == 2
    assert run.environment(2)["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert "1 node(s) wait to join" in run.said("round_started")[1]
    assert run.said("round_halted") == ["round 1 ends for a resize: 1 node(s) wait to join"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that asks a handler that fails again at once."""
    monkeypatch.setattr(foreign_backend, "FAILED_COUNT_INTERVAL_SECONDS", 0.01)


@pytest.fixture
def curt(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for no answer, either."""
    monkeypatch.setattr(foreign_backend, "COUNT_MAX_SECONDS", 0.01)


QUICK = Timing(beat_interval=0.05, lost_after=0.2, fence_after=1.0)
SILENT = "The handler cannot say how many nodes wait: ConnectionError: no route"
LOST = "the store is gone, and nothing can be agreed on without it"


@pytest.mark.usefixtures("impatient")
def test_a_handler_that_loses_its_store_does_not_stop_healthy_workers(run: Run, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    told, back = threading.Event(), threading.Event()
    run.on |= {"store_unreachable": told.set, "store_back": back.set}

    def look(number: int) -> int:
        if not told.is_set():
            raise ConnectionError("no route")
        return 0

    def go_on() -> None:
        assert back.wait(PATIENCE)
        gate.write_text("go\n")

    releases = threading.Thread(target=go_on)
    releases.start()
    handler = Scripted(waiting=look)
    assert run(handler, f"read line < {gate}", timing=replace(QUICK, fence_after=600.0)).exit_code == 0
    releases.join()
    [silent] = run.said("store_unreachable")
    assert silent.endswith(SILENT)
    assert "workers go on" in silent
    assert len(run.said("store_back")) == 1
    assert handler.rounds == 1


@pytest.mark.usefixtures("impatient")
def test_a_node_whose_handler_stays_silent_leaves(run: Run) -> None:
    def look(number: int) -> int:
        raise ConnectionError("no route")

    ending = run(Scripted(waiting=look), "exec sleep 1000", timing=QUICK)
    assert (ending.exit_code, ending.why) == (ExitCode.STORE_LOST, LOST)
    assert any("the handler has not answered for 1 s: its store is lost" in said for said in run.said("store_lost"))


def hanging(answers: threading.Event, after: int = 1) -> Callable[[int], int]:
    """Yield a wait for a handler that answers only so many times until it is released."""

    def look(number: int) -> int:
        if number > after:
            answers.wait(PATIENCE)
        return 0

    return look


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """Lets a handler go that hangs."""
    answers = threading.Event()
    yield answers
    answers.set()


@pytest.mark.usefixtures("curt")
def test_a_node_whose_handler_hangs_leaves(run: Run, answers: threading.Event) -> None:
    ending = run(Scripted(waiting=hanging(answers)), "exec sleep 1000", timing=QUICK)
    assert (ending.exit_code, ending.why) == (ExitCode.STORE_LOST, LOST)
    assert re.search(r"TimeoutError: no answer for \d+ s", run.said("store_unreachable")[0])


@pytest.mark.usefixtures("curt")
def test_a_failure_while_the_handler_hangs_does_not_keep_the_node_waiting_for_ever(
    run: Run, answers: threading.Event, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def look(number: int) -> int:
        gate.write_text("fail\n")
        return hanging(answers, after=0)(number)

    ending = run(Scripted(waiting=look), f"read line < {gate}; exit 3", max_restarts=1, timing=QUICK)
    assert ending.exit_code == ExitCode.STORE_LOST


@pytest.mark.usefixtures("curt")
def test_workers_that_finish_while_the_handler_hangs_have_finished(
    run: Run, answers: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_backend, "SHUTDOWN_MAX_SECONDS", 0.05)
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def look(number: int) -> int:
        gate.write_text("done\n")
        return hanging(answers, after=0)(number)

    assert run(Scripted(waiting=look), f"read line < {gate}", exit_barrier=0.05).exit_code == 0


def test_nodes_that_wait_in_vain_stop_the_workers_ever_more_seldom(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_backend, "FRUITLESS_ROUND_MIN_SECONDS", 0.2)
    handler = Scripted(waiting=lambda number: 1)
    assert run(handler, "exec sleep 2").exit_code == 0
    assert 5 <= handler.rounds <= 7, "after 0.2, 0.4, 0.8 and 1.6 s"


def test_nodes_that_wait_in_vain_do_not_stop_the_workers_over_and_over(run: Run, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def look(number: int) -> int:
        if number == 20:
            gate.write_text("done\n")
        return 1

    handler = Scripted(waiting=look)
    assert run(handler, ROUND + f"test $round = round_2 || exec sleep 1000; read line < {gate}").exit_code == 0
    assert handler.rounds == 2


def test_a_handler_that_exits_is_a_handler_that_failed(run: Run) -> None:
    def meet(number: int) -> Any:
        raise SystemExit("no more")

    with pytest.raises(RendezvousError, match="failed: SystemExit: no more"):
        run(Scripted(meet), "true")


def test_a_handler_that_takes_long_is_mentioned(run: Run, answers: threading.Event) -> None:
    def meet(number: int) -> Any:
        answers.wait(PATIENCE)
        return None, 0, 1

    run.on["waiting"] = answers.set
    assert run(Scripted(meet), "true").exit_code == 0
    assert run.said("waiting") == ["waiting for the handler to give a round"]


# No round ------------------------------------------------------------------------------------------------------------


def torchs(name: str) -> Exception:
    """An error of torch's."""
    error: Exception = type(name, (Exception,), {})("it is said so")
    return error


def failing(error: Exception) -> Callable[[int], Any]:
    def meet(number: int) -> Any:
        raise error

    return meet


@pytest.mark.parametrize(
    ("meet", "kind", "message"),
    [
        (failing(torchs("RendezvousClosedError")), RendezvousClosedError, "RendezvousClosedError: it is said so"),
        (failing(KeyError("rank")), RendezvousError, "The rendezvous handler 'mine' failed: KeyError: 'rank'"),
        (lambda number: "soon", HandlerError, "next_rendezvous() returned 'soon'"),
        (lambda number: (None, 1, 2), HandlerError, "no store for a round of 2 nodes"),
    ],
)
def test_a_handler_that_has_no_round_ends_the_agent_and_closes_nothing(
    run: Run, meet: Callable[[int], Any], kind: type[Exception], message: str
) -> None:
    handler = Scripted(meet)
    with pytest.raises(kind) as failed:
        run(handler, "exit 0", rdzv_backend="mine")
    assert message in str(failed.value)
    if isinstance(failed.value, HandlerError):  # as elastic_torchrun.launch raises it
        assert isinstance(failed.value.cause, RendezvousStateError)
    assert handler.shut == 0


def test_if_a_handler_has_no_other_round_the_memory_of_the_node_is_the_last(run: Run) -> None:
    """Other nodes have the same handler, and may not go on either."""
    last: list[bool] = []

    class Memory:
        @hookimpl
        def elastic_agent_ends(self, end: AgentEnd) -> None:
            last.append(end.is_last())

    def meet(number: int) -> Any:
        if number == 2:
            raise TimeoutError("nobody came")
        return None, 0, 1

    run.plugins.register("memory", Memory())
    with pytest.raises(RendezvousError, match="nobody came"):
        run(Scripted(meet), "exit 1", max_restarts=1)
    assert last == [True]


def test_plugins_learn_how_the_job_has_ended(run: Run, tmp_path: Path) -> None:
    found: list[RunSummary] = []

    class Reader:
        @hookimpl
        def elastic_job_closed(self, closed: Closed, summary: RunSummary) -> None:
            assert not closed.success
            found.append(summary)

    run.plugins.register("reader", Reader())
    run(Scripted(), "exit 1", log_dir=tmp_path)
    [summary] = found
    assert summary.logs is not None
    assert summary.logs.is_relative_to(tmp_path)


def test_a_node_that_is_not_needed_ends_well(run: Run) -> None:
    ending = run(Scripted(failing(torchs("RendezvousGracefulExitError"))), "exit 0")
    assert ending == Ending(0, "the rendezvous has no place for this node: it is said so")


# Leaving -------------------------------------------------------------------------------------------------------------


def test_a_node_leaves_at_once_while_its_handler_waits_for_others(run: Run) -> None:
    released = threading.Event()

    def meet(number: int) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        assert released.wait(PATIENCE)
        return None, 0, 1

    handler = Scripted(meet)
    ending = run(handler, "exit 0")
    released.set()
    assert ending == Ending(143, "received SIGTERM")
    assert (handler.shut, run.said("round_started")) == (0, [])


def test_a_node_that_leaves_stops_its_workers_and_does_not_close_the_job(run: Run) -> None:
    def look(number: int) -> int:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return 0

    handler = Scripted(waiting=look)
    assert run(handler, "exec sleep 1000").exit_code == 143
    assert (handler.rounds, handler.shut) == (1, 0)


class HostEnds:
    """A plugin that says so once the workers of a round run."""

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        self.leave = run.leave

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        if event.name == "workers_started":
            self.leave("AWS terminates it", 120.0)
            self.leave("AWS terminates it", 60.0)


def test_a_node_leaves_before_its_host_is_taken_away(run: Run) -> None:
    run.plugins.register("host-ends", HostEnds())
    handler = Scripted()
    assert run(handler, "exec sleep 1000") == Ending(143, "AWS terminates it")
    assert re.match(r"AWS terminates it: leaving within 1[01]\d(\.\d)? s, ", run.said("signal")[0])
    assert handler.shut == 0


def test_a_second_signal_kills(run: Run, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def look(number: int) -> int:
        if ready.exists() and not run.said("signal"):
            os.kill(os.getpid(), signal.SIGTERM)
        return 0

    script = f"trap 'sleep 1.2; kill -TERM {os.getpid()}' TERM; touch {ready}; while true; do sleep 0.05; done"
    ending = run(Scripted(waiting=look), script, shutdown_timeout=PATIENCE)
    assert ending.exit_code == 143
    assert "again: killing the workers" in run.said("signal")[1]


def test_a_node_without_its_warden_withdraws(run: Run) -> None:
    def look(number: int) -> int:
        for pid, _ in descendants(os.getpid()):
            if b"elastic_core.warden.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        return 0

    assert run(Scripted(waiting=look), "exec sleep 1000").exit_code == ExitCode.WITHDRAWN


# Two nodes -----------------------------------------------------------------------------------------------------------


class Memory:
    """The least that a store can be."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def set(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def get(self, key: str) -> Any:
        return self.kept.get(key)


def peer(store: Memory, **card: Any) -> None:
    """The other node of a round: rank 0, with one worker, which has finished already."""
    given = {"node_id": "other", "host": "other", "role": "default", "local_world_size": 1, **card}
    store.set("elastic/node/0", json.dumps(asdict(Card(**given))))
    store.set("elastic/finished/0", "1")


def test_ranks_follow_those_of_the_nodes_before_and_workers_go_where_rank_0_is(run: Run) -> None:
    store = Memory()
    peer(store, address="10.0.0.9", port=4713, local_world_size=3, role="actor", restarts=2)
    handler = Scripted(lambda number: (store, 1, 2))
    assert run(handler, "env", nproc_per_node=2, role="critic").exit_code == 0
    environment = run.environment(1, rank=4)
    expected = {
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "1",
        "ROLE_NAME": "critic",
        "WORLD_SIZE": "5",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": "4713",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    assert {name: environment[name] for name in expected} == expected


def test_restarts_that_other_nodes_have_spent_count_here_too(run: Run) -> None:
    store = Memory()
    peer(store, address="10.0.0.9", port=4713, restarts=2)
    ending = run(Scripted(lambda number: (store, 1, 2)), "exit 3", max_restarts=2)
    assert ending.exit_code == ExitCode.JOB_FAILED
    assert "all restarts of --max_restarts=2 are spent" in ending.why


class Excludes:
    """A policy that leaves out each host that fails; ``seconds``: for so long."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    @hookimpl
    def elastic_judge_failure(self, incident: Incident) -> Verdict:
        return Verdict(Action.EXCLUDE_HOST, "it has failed", exclude_for=self.seconds)


@pytest.mark.parametrize(("seconds", "code"), [(None, ExitCode.WITHDRAWN), (60.0, ExitCode.SUCCESS)])
def test_a_policy_excludes_only_the_host_of_this_node(run: Run, seconds: float | None, code: ExitCode) -> None:
    run.plugins.register("excludes", Excludes(seconds))
    store = Memory()
    peer(store, address="10.0.0.9", port=4713)
    handler = Scripted(lambda number: (store, 1, 2))
    ending = run(handler, ROUND + "test $round = round_2", min_nodes=1, max_nodes=2)
    assert (ending.exit_code, handler.rounds) == (code, 1 if code else 2)
    assert handler.shut == (code == ExitCode.SUCCESS)


def test_workers_have_their_grace_when_nodes_wait_though_the_round_is_full(run: Run, tmp_path: Path) -> None:
    store, ready = Memory(), tmp_path / "ready"
    peer(store, address="10.0.0.9", port=4713)
    handler = Scripted(lambda number: (store, 1, 2), waiting=lambda look: int(ready.exists() and handler.rounds == 1))
    script = ROUND + "test $round = round_2 && exit; trap 'echo saved; exit 1' TERM; "
    script += f"touch {ready}; while true; do sleep 0.05; done"
    assert run(handler, script, failure_grace=0.0, shutdown_timeout=PATIENCE, max_restarts=0).exit_code == 0
    assert run.printed(1, rank=1) == "saved\n"
    assert run.said("round_halted") == ["round 1 ends for a resize: 1 node(s) wait to join"]


def test_the_state_of_an_agent_says_that_it_waits_for_the_handler(run: Run) -> None:
    class Describes:
        @hookimpl
        def elastic_run_starts(self, run: JoinedRun) -> None:
            self.look = run.look

    describes, told = Describes(), list[AgentState]()
    run.plugins.register("describes", describes)

    def meet(number: int) -> Any:
        while not hasattr(describes, "look") or describes.look().waits_for != "the handler to give a round":
            time.sleep(0.01)
        told.append(describes.look())
        return None, 0, 1

    assert run(Scripted(meet), "true").exit_code == 0
    assert told[0].node.ledger.round is None


def test_a_node_whose_store_ends_with_the_others_has_finished_too(run: Run) -> None:
    class Ends(Memory):
        def set(self, key: str, value: Any) -> None:
            if "finished" in key and key.endswith("1"):
                raise ConnectionError("the store is gone")
            super().set(key, value)

    store = Ends()
    peer(store, address="10.0.0.9", port=4713)
    assert run(Scripted(lambda number: (store, 1, 2)), "exit 0").exit_code == 0


# A hang --------------------------------------------------------------------------------------------------------------

WAITS = f"exec {sys.executable} -c 'import threading; threading.Event().wait()'"


class Silent:
    """A monitor that asks all nodes of round 1 for their silent ranks; ``ends``: it ends the first one."""

    rounds: tuple[int, ...] = (1,)

    def __init__(self, *, ends: bool = False, again: bool = False) -> None:
        self.ends, self.again, self.asked = ends, again, list[object]()

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        def take(report: str) -> None:
            round.publish(Event("silent", report))
            round.explain(report)
            if self.ends:
                round.fail(0, "hangs", name="Hang", kill=True)
            if self.again:
                round.ask("silent", 1)

        if round.number in self.rounds:
            round.answer("silent", lambda value: self.locate(round, value))
            round.follow_answers("silent", take)
            round.ask("silent", 1)

    @hookimpl
    def elastic_sum_up_answers(self, question: AskedQuestion, answers: Sequence[NodeAnswer], before: object) -> object:
        return f"round {question.round}: silent are {[one.value for one in answers]}"

    def locate(self, round: RunningRound, value: object) -> list[int]:
        while not all(worker.is_running for worker in round.workers):
            time.sleep(0.01)
        self.asked.append(value)
        return [worker.rank for worker in round.workers]


def test_a_question_is_answered_for_this_nodes_ranks_and_ends_nothing(run: Run) -> None:
    run.plugins.register("silent", Silent())
    run.on["silent"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    ending = run(Scripted(), WAITS, nproc_per_node=2, max_restarts=0)
    assert ending.exit_code == 128 + signal.SIGTERM, "it left only on the signal"
    assert not run.said("worker_failed")
    assert run.said("silent") == ["round 1: silent are [[0, 1]]"]


def test_a_monitor_ends_a_rank_and_the_handler_is_asked_for_the_next_round(run: Run) -> None:
    run.plugins.register("silent", Silent(ends=True))
    handler = Scripted()
    ending = run(handler, ROUND + f"test $round = round_2 || {WAITS}", max_restarts=1)
    assert ending.exit_code == ExitCode.SUCCESS
    assert handler.rounds == 2
    [failure] = [event for event in run.heard if event.name == "worker_failed"]
    assert "Hang: hangs" in failure.message


def test_a_hang_that_ends_the_job_is_its_first_failure(run: Run) -> None:
    run.plugins.register("silent", Silent(ends=True))
    ending = run(Scripted(), WAITS, max_restarts=0)
    assert ending.exit_code == ExitCode.JOB_FAILED
    assert ending.incident is not None
    assert ending.incident.detail == "round 1: silent are [[0]]"


def test_a_monitor_may_ask_again_and_again(run: Run) -> None:
    silent = Silent(again=True)
    run.plugins.register("silent", silent)
    run(Scripted(), "sleep 1")
    assert len(silent.asked) > 1


def test_ranks_are_asked_in_the_next_round_though_an_answer_of_the_last_one_is_late(run: Run) -> None:
    class Late(Silent):
        rounds = 1, 2

        def locate(self, round: RunningRound, value: object) -> list[int]:
            found = super().locate(round, value)
            if round.number == 1:
                round.fail(0, "fails", kill=True)
                assert second.wait(PATIENCE)
            return found

    def started() -> None:
        if len(run.said("workers_started")) == 2:
            second.set()

    second, late = threading.Event(), Late()
    run.plugins.register("silent", late)
    run.on["workers_started"] = started
    run.on["silent"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    run(Scripted(), WAITS, max_restarts=1)
    assert len(late.asked) == 2
    assert run.said("silent")[0].startswith("round 2: ")
