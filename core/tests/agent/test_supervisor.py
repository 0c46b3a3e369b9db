"""The resources that an agent releases, or writes out, if it never takes part, or fails."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core import JoinedRun, RunSummary, hookimpl
from elastic_core.agent import membership, worker_store
from elastic_core.agent.directories import Slot
from elastic_core.agent.membership import connect_and_run
from elastic_core.agent.resources import Launch
from elastic_core.agent.start import begun
from elastic_core.agent.supervisor import Supervisor
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import RendezvousRefusedError, ResourceError
from elastic_core.gates import AgentEnd
from elastic_core.host.addresses import HeldPort
from elastic_core.monitors import RunningRound
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.plugins.manager import Plugins, core_plugins
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.node_events import AnswerFound, Stop
from elastic_core.protocol.roster import Answer, Phase
from elastic_core.rendezvous.backend import HeartbeatReply
from elastic_core.rendezvous.options import RendezvousOptions
from elastic_core.session.ledger_reader import decode_roster_row, load

CONFIG = RunConfig(program=Program(ProgramKind.EXECUTABLE, "true"), local_addr="127.0.0.1")


class Job:
    """One agent's job in memory, and the ports that it takes."""

    def __init__(self, slot: Slot) -> None:
        self.store, self.ports, self._slot = MemoryStore(), list[HeldPort](), slot

    def take(self, address: str) -> HeldPort:
        self.ports.append(HeldPort.take(address))
        return self.ports[-1]

    take_at = take

    def run(
        self,
        config: RunConfig = CONFIG,
        backend: Callable[[MemoryStore], LocalBackend] = LocalBackend,
        **others: object,
    ) -> None:
        plugins: Any = Plugins()
        for name, plugin in {**core_plugins(), **others}.items():
            plugins.register(name, plugin)
        plugins.make_rendezvous = lambda _: backend(self.store)
        plugins.rendezvous_options = RendezvousOptions
        try:
            with begun() as warden:
                connect_and_run(Launch(config=config, plugins=plugins, slot=self._slot, warden=warden))
        finally:
            plugins.close(10.0)

    def let_go(self) -> bool:
        return bool(self.ports) and all(port.fileno() == -1 for port in self.ports)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with contextlib.closing(Slot.take(str(tmp_path))) as slot:
        found = Job(slot)
        monkeypatch.setattr(worker_store, "HeldPort", found)
        yield found


def test_a_refused_node_lets_its_port_go(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RendezvousRefusedError("not you")

    monkeypatch.setattr(membership, "join", refuse)
    with pytest.raises(RendezvousRefusedError, match="not you"):
        job.run()
    assert job.let_go()


def test_a_node_that_has_joined_and_cannot_begin_leaves_no_row(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(ResourceError, match="needs a directory for temporary files"):
        job.run()
    store = LocalBackend(job.store)
    assert load(store, 0.0) is not None, "it had joined"
    assert store.roster() == []
    assert job.let_go()


class Rescuer:
    """A plugin that keeps memory files for workers, and reads them in the end; it makes a file once it has one."""

    def __init__(self, mark: Path) -> None:
        self.found: dict[str, bytes] = {}
        self.decisions: set[str] = set()
        self.failed = False
        self._mark, self._held = mark, dict[str, int]()

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        round.serve("keep", self._keep)

    def _keep(self, packet: Mapping[str, Any], descriptors: list[int]) -> str:
        self._held[packet["name"]] = descriptors.pop()
        self._mark.touch()
        return ""

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        self._decisions = run.decisions

    @hookimpl
    def elastic_agent_ends(self, end: AgentEnd) -> None:
        self.failed, self.decisions = end.failed, {call.function for call in self._decisions()}
        for name, fd in self._held.items():
            if end.is_last():
                self.found[name] = os.pread(fd, 100, 0)
            os.close(fd)


def test_an_agent_that_fails_has_plugins_rescue_memory_and_shows_its_decisions(job: Job, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    rescuer = Rescuer(mark)

    class Defective(LocalBackend):
        def connect(self) -> Defective:
            return Defective(job.store)

        def heartbeat(self, *args: Any, **more: Any) -> HeartbeatReply:
            if mark.exists():
                raise ValueError("a defect")
            return super().heartbeat(*args, **more)

    command = (str(Path(__file__).with_name("keeper.py")),)
    program = Program(ProgramKind.EXECUTABLE, sys.executable, command)
    with pytest.raises(RuntimeError, match="a thread of the session failed"):
        job.run(replace(CONFIG, program=program), Defective, rescuer=rescuer)
    assert rescuer.failed
    assert rescuer.decisions == {"step", "decide"}
    assert rescuer.found == {"train": b"step 7"}
    [row] = LocalBackend(job.store).roster()
    assert (decode_roster_row(row).phase, decode_roster_row(row).leaving) == (Phase.STOPPED, True), (
        "nobody waits for it meanwhile"
    )


def test_plugins_learn_how_the_job_has_ended_while_the_node_is_in_the_roster(job: Job) -> None:
    found: list[tuple[bool, int, int]] = []

    class Broken:
        @hookimpl
        def elastic_job_closed(self) -> None:
            raise ValueError("of one plugin")

    class Reader:
        @hookimpl
        def elastic_job_closed(self, closed: Closed, summary: RunSummary) -> None:
            found.append((closed.success, summary.rounds, len(LocalBackend(job.store).roster())))

    job.run(reader=Reader(), broken=Broken())
    assert found == [(True, 1, 1)]


def test_a_late_answer_to_a_question_does_not_end_the_wait_for_the_last_words_of_monitors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, stopped = Supervisor.__new__(Supervisor), list[Stop]()
    resources: Any = SimpleNamespace(loop=SimpleNamespace(later=lambda *_: None))
    waiting.resources = resources
    waiting._put_off = Stop("round 1 is halted", halt=7)
    for name, action in {"step": lambda event: None, "_stop_now": stopped.append}.items():
        monkeypatch.setattr(waiting, name, action)
    waiting._handle(AnswerFound(Answer(5, "null")))
    assert stopped == []
    waiting._handle(AnswerFound(Answer(7, "null")))
    assert stopped == [waiting._put_off]
