"""A starter that has nothing of this project but the public names: what any plugin can bring."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wardens import PATIENCE, Listener

from elastic_core.starter import FOLDER, Starter, find_starter
from elastic_core.warden.client import Warden
from elastic_core.warden.linux import become_subreaper
from elastic_core.warden.messages import Exited, ServiceEnded, Spawned, StartedFresh, StarterReady

SOURCE = """
import os, select, signal, socket
from elastic_core.warden.forks import Channel, close_all, die_once_adopted, take_descriptors

def run(control, usual):
    channel = Channel(socket.socket(fileno=control))
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    greeting, served = None, 0
    while True:
        select.select([channel], [], [])
        for message, descriptors in channel.receive():
            if greeting is None:
                greeting = message["greeting"]
                channel.send({"event": "ready", "text": "a stranger forks", "fields": {"answer": 42}})
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
PROGRAM = "import os, sys; print(os.environ['GREETING'], os.environ['RANK'], 'elastic_core' in sys.modules)"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages with one more starter."""
    (tmp_path / "strangers_starter.py").write_text(SOURCE)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "stranger.txt").write_text("strangers_starter:run\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("strangers_starter", None)


def test_the_first_file_on_the_path_names_the_starter(site: Path) -> None:
    found = find_starter()
    assert found is not None
    assert found.__module__ == "strangers_starter"


def test_a_file_that_names_no_function_is_an_error_of_its_import(site: Path) -> None:
    (site / FOLDER / "stranger.txt").write_text("no_such_module:run\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        find_starter()


def test_a_worker_is_forked_and_a_service_that_it_refuses_starts_fresh(site: Path, tmp_path: Path) -> None:
    become_subreaper()
    (script := tmp_path / "train.py").write_text(PROGRAM)
    listener = Listener(Warden.start())
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
        assert (ready.text, ready.more) == ("a stranger forks", {"answer": 42})
        tag = listener.tag()
        with (tmp_path / "out").open("wb") as out:
            command = [*python, str(script)]
            listener.warden.spawn(tag, command, {**env, "RANK": "7"}, stdout=out.fileno(), warm=True)
        started = listener.wait(Spawned)
        assert (started.warm, started.unlearned) == (True, 3), listener.heard
        assert listener.wait(Exited).returncode == 0
        assert (tmp_path / "out").read_text() == "hello 7 False\n"
        assert listener.all_of(StartedFresh) == []
        listener.warden.serve(1, "builtins:print", {})
        assert listener.wait(ServiceEnded) == ServiceEnded(1, 0)
    finally:
        listener.warden.close(PATIENCE)
