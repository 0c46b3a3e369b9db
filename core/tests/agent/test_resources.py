"""The resources of an agent are made together and released together."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic_core.agent.directories import MARK, Slot
from elastic_core.agent.resources import LEAVE_SIGNALS, Launch, Resources, WardenWatch, leave_signals, open_resources
from elastic_core.agent.start import begun
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import ResourceError
from elastic_core.events import Event
from elastic_core.host.identity import installed_versions
from elastic_core.host.processes import descendants
from elastic_core.monitors import MonitorCallbacks
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.node_events import AnswerFound, FindAnswer, Stop
from elastic_core.protocol.roster import Answer, NodeInfo
from elastic_core.protocol.settings import Versions


def config(**settings: Any) -> RunConfig:
    return RunConfig(**{"program": Program(ProgramKind.EXECUTABLE, "true"), **settings})


@contextmanager
def made(**settings: Any) -> Iterator[tuple[Resources, list[Event]]]:
    """Everything that an agent works with, and what was said while it was made."""
    said: list[Event] = []
    with ExitStack() as stack:
        warden = stack.enter_context(begun())
        slot = stack.enter_context(closing(Slot.take(f"test_hands/{uuid.uuid4()}")))
        launch = Launch(config=config(**settings), plugins=Plugins(), slot=slot, warden=warden)
        given = open_resources(launch, said.append, info(), "uid")
        yield stack.enter_context(given), said


def dispositions() -> list[Any]:
    return [signal.getsignal(signum) for signum in LEAVE_SIGNALS]


def info() -> NodeInfo:
    return NodeInfo(
        node_id="n",
        host="h",
        host_id="h",
        slot=1,
        local_world_size=1,
        role="r",
        node_rank=None,
        versions=Versions(**installed_versions()),
    )


def test_nothing_is_left_when_one_of_them_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    before, processes = dispositions(), descendants(os.getpid())
    with pytest.raises(ResourceError, match="needs a directory for temporary files"), made():
        pytest.fail("made")
    assert dispositions() == before
    assert descendants(os.getpid()) == processes


def test_everything_is_given_back_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, processes = dispositions(), descendants(os.getpid())
    with made() as (given, said):
        assert given.warden.pid in [pid for pid, _ in descendants(os.getpid())]
        assert dispositions() != before
        assert [*tmp_path.iterdir()] != []
    assert dispositions() == before
    assert descendants(os.getpid()) == processes
    assert [*tmp_path.iterdir()] == []
    assert said == []


def test_the_directory_of_a_program_may_be_removed_for_a_killed_agent_and_stays_for_one_that_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    call = tmp_path / "elastic_call_1"
    call.mkdir(mode=0o700)
    (call / "arguments").touch()
    with made(program=Program(ProgramKind.EXECUTABLE, "true", directory=str(call))):
        assert {MARK, "arguments"} == {*os.listdir(call)}
    assert os.listdir(call) == ["arguments"]


@pytest.fixture
def as_under_nohup() -> Iterator[None]:
    """Only SIGHUP is ignored, whatever this process has inherited: a shell's background job ignores others."""
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in LEAVE_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("as_under_nohup")
def test_signals_that_are_ignored_at_the_start_stay_ignored_unless_they_are_named() -> None:
    assert leave_signals(config()) == set(LEAVE_SIGNALS) - {signal.SIGHUP}
    assert leave_signals(config(signals_to_handle=(signal.SIGHUP,))) == {signal.SIGHUP}


class Called:
    """A worker group, or plugins, of which only the calls matter."""

    def __init__(self, step: int | None = None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._step = step

        self.progress = SimpleNamespace(step=lambda rank: (5, True))

    def newest_step(self) -> int | None:
        return self._step

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object, **named: object) -> str:
            self.calls.append((name, *arguments, *named.values()))
            return name

        return call


@pytest.mark.parametrize(
    ("planned", "received", "stopped"),
    [
        (True, None, ("stop", 30.0, signal.SIGTERM)),
        (True, signal.SIGINT, ("stop", 30.0, signal.SIGINT)),
        (True, signal.SIGUSR1, ("stop", 30.0, signal.SIGUSR1)),
        (False, None, ("stop", 3.0, True, None)),
        (False, signal.SIGUSR1, ("stop", 3.0, True, None)),
    ],
)
def test_how_workers_are_stopped(planned: bool, received: int | None, stopped: object) -> None:
    """After a failure a worker that exited early is looked for first, while it is known how the others ended."""
    resources: Any = SimpleNamespace(node=SimpleNamespace(config=config()), group=Called())
    broken = not planned
    early: object = Resources.stop_workers(resources, Stop("why", planned), received, None)
    assert early == ("early_exit" if broken else None)
    assert resources.group.calls == [*([("early_exit", None)] if broken else []), stopped]


@pytest.mark.parametrize(("number", "text"), [(3, '"of round 3"'), (4, "null")])
def test_monitors_of_the_round_before_answer_no_question(number: int, text: str) -> None:
    posted: list[object] = []
    callbacks = MonitorCallbacks(lambda event: None)
    callbacks.finders["load"] = lambda value: "of round 3"
    group = SimpleNamespace(round=SimpleNamespace(number=3, callbacks=callbacks))
    runtime = SimpleNamespace(ask=lambda find, then, name: then(find()))
    node: Any = SimpleNamespace(publish=None, runtime=runtime)
    loop: Any = SimpleNamespace(post=posted.append)
    unused: Any = None
    Resources(node, loop, frozenset(), unused, cast("Any", group), unused).find_answer(
        FindAnswer(7, "load", "1"), number
    )
    assert posted == [AnswerFound(Answer(7, text))]


def test_a_warden_that_does_not_run_is_noticed_once_until_it_runs_again() -> None:
    watch = WardenWatch()
    assert [watch.look(7, at) for at in (1.0, 2.0, 3.0, 4.0, 10.0)] == [0.0] * 5
    assert [watch.look(7, at) for at in (11.0, 12.0, 13.0)] == [10.0, 0.0, 0.0]
    assert watch.look(8, 14.0) == 0.0
    assert [watch.look(8, at) for at in (15.0, 16.0, 17.0, 18.0, 25.0)] == [0.0, 0.0, 0.0, 0.0, 11.0]


def test_a_warden_is_not_missed_where_heartbeats_are_rare() -> None:
    watch = WardenWatch()
    assert [watch.look(7, at) for at in (0.0, 30.0, 60.0, 90.0)] == [0.0] * 4
