"""A starter that has nothing of this project but the public names: what any plugin can bring."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wardens import PATIENCE, Listener

import elastic_core
from elastic_core.agent.membership import starter_problem
from elastic_core.agent.start import begin_starter
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import PluginError
from elastic_core.events import Level
from elastic_core.starter import FOLDER, Starter, find_starter
from elastic_core.warden.client import SpawnRequest, Warden
from elastic_core.warden.linux import become_subreaper
from elastic_core.warden.messages import Exited, ServiceEnded, Spawned, StartedFresh, StarterDied, StarterReady

SOURCE = """
import os, select, signal, socket
from elastic_core.warden import Channel, close_all, die_once_adopted, take_descriptors

def run(control, usual, execute):
    channel = Channel(socket.socket(fileno=control))
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    greeting = None
    while True:
        select.select([channel], [], [])
        for message, descriptors in channel.receive():
            if greeting is None:
                greeting = message["greeting"]
                ready = {"event": "ready", "text": "a stranger forks", "fields": {"answer": 42}}
                channel.send({**ready, "complete": False})
                continue
            if message["kind"] == "COMPLETE":
                parent = os.getpid()
                if (pid := os.fork()) != 0:
                    channel.send({**ready, "pid": pid})
                    os._exit(0)
                die_once_adopted(parent, os.getppid())
                continue
            given = dict(zip(message["descriptors"], descriptors))
            pipe, parent = given["pipe"], os.getpid()
            if message["kind"] != "WORKER":
                os.write(pipe, b"no it forks workers only")
            elif (first := os.fork()) == 0:
                parent = os.getpid()
                if (second := os.fork()) != 0:
                    os.write(pipe, b"pid %d\\n" % second)
                    os._exit(0)
                if not die_once_adopted(parent, message["warden"]):
                    os._exit(127)
                os.setsid()
                take_descriptors(given, os.environ)
                os.environ.update(message["env"], GREETING=greeting)
                execute(message["startup"])
                os.write(pipe, b"ok %d 3\\n" % os.getpid())
                close_all(descriptors)
                channel.close()
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                return
            else:
                os.waitpid(first, 0)
            close_all(descriptors)
        if channel.closed:
            os._exit(0)
"""
MADE = """
from elastic_core.starter import Starter

def starter(config, environ):
    return Starter(entry="strangers_starter:run", python=(), program=(), env=environ, imports=())

def none(config, environ):
    return None

def broken(config, environ):
    return Starter(entry="strangers_starter:run", python=(), program=(), env={}, imports=(), order={"a": object()})
"""
PROGRAM = """
import os, sys
left = [name for name in os.environ if "ELASTIC_START" in name]
print(os.environ["GREETING"], os.environ["RANK"], "elastic_core" in sys.modules, left)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages with one more starter."""
    (tmp_path / "strangers_starter.py").write_text(SOURCE)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "stranger.txt").write_text("strangers_starter:run\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("strangers_starter", None)


CONFIG = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"))


def test_the_first_file_whose_function_returns_a_starter_names_it(site: Path) -> None:
    with (site / "strangers_starter.py").open("a") as module:
        module.write(MADE)
    (site / FOLDER / "earlier.txt").write_text("strangers_starter:none\n")
    (site / FOLDER / "stranger.txt").write_text("strangers_starter:starter\n")
    found = find_starter(CONFIG, {"A": "1"})
    assert found is not None
    assert (found.entry, found.env) == ("strangers_starter:run", {"A": "1"})
    assert found.request()["roots"] == [str(Path(elastic_core.__file__).parents[1]), str(site)]


@pytest.mark.parametrize("named", ["no_such_module:run", "strangers_starter:nothing", "strangers_starter:broken"])
def test_a_file_that_names_no_starter_is_reported_with_its_path(site: Path, named: str) -> None:
    with (site / "strangers_starter.py").open("a") as module:
        module.write(MADE)
    (path := site / FOLDER / "stranger.txt").write_text(f"{named}\n")
    with pytest.raises(PluginError, match=re.escape(f"The file {path} names {named!r}, which fails: ")):
        find_starter(CONFIG, {})
    warden: Any = SimpleNamespace(begin_starter=lambda starter: None)
    begin_starter(CONFIG, warden)
    event = starter_problem(warden, CONFIG)
    assert event is not None
    assert (event.name, event.level) == ("no_starter", Level.WARNING)
    assert str(path) in event.message


@pytest.mark.parametrize("replaced", [False, True])
def test_a_worker_is_forked_and_a_service_that_it_refuses_starts_fresh(
    site: Path, tmp_path: Path, replaced: bool
) -> None:
    become_subreaper()
    (script := tmp_path / "train.py").write_text(PROGRAM)
    listener = Listener(Warden())
    try:
        python, env = (sys.executable, "-u"), dict(os.environ)
        starter = Starter(
            entry="strangers_starter:run",
            python=python,
            program=(str(script),),
            env=env,
            imports=(),
            order={"greeting": "hello"},
        )
        listener.warden.begin_starter(starter)
        ready = listener.wait(StarterReady)
        assert (ready.text, ready.more, ready.complete) == ("a stranger forks", {"answer": 42}, False)
        if replaced:
            listener.warden.complete_starter()
            ready = listener.wait(StarterReady, lambda event: event.complete)
        tag = listener.tag()
        with (tmp_path / "out").open("wb") as out:
            command = [*python, str(script)]
            listener.warden.spawn(tag, SpawnRequest(command, {**env, "RANK": "7"}, warm=True), stdout=out.fileno())
        started = listener.wait(Spawned)
        assert (started.warm, started.unlearned) == (True, 3), listener.heard
        assert listener.wait(Exited).returncode == 0
        assert (tmp_path / "out").read_text() == "hello 7 False []\n"
        assert listener.all_of(StartedFresh) == []
        listener.warden.serve(1, "builtins:print", {})
        assert listener.wait(ServiceEnded) == ServiceEnded(1, 0)
        assert listener.all_of(StarterDied) == []
        os.kill(ready.pid, signal.SIGKILL)
        assert listener.wait(StarterDied) == StarterDied("was killed by SIGKILL")
    finally:
        listener.warden.close(PATIENCE)
