"""When descriptors are scarce, no node is taken for dead, nothing leaks, and nothing waits."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from views import info, offer

from elastic_core.agent.output import Output, Routes
from elastic_core.agent.worker import Node
from elastic_core.agent.worker_channels import Reports
from elastic_core.agent.workers import WorkerGroup
from elastic_core.config.parse import Stream, StreamMap
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import PluginError
from elastic_core.hookspecs import hookimpl
from elastic_core.host import processes
from elastic_core.host.processes import descendants, keep_a_spare
from elastic_core.plugins.manager import Plugins, core_plugins
from elastic_core.protocol.entries import Member, Round
from elastic_core.warden.channel import Channel
from elastic_core.warden.client import Warden
from elastic_core.warden.linux import kill


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Exactly so many descriptors can still be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]  # close the gaps below
    free, fillers = fillers[len(fillers) - count :], fillers[: len(fillers) - count]
    top = max([*fillers, *free])
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("left", [1, 0])
def test_a_process_is_found_and_killed_with_the_spare_descriptor(left: int) -> None:
    keep_a_spare()
    with subprocess.Popen(["sleep", "1000"]) as process, free_descriptors(left):
        [found] = [one for one in descendants(os.getpid()) if one[0] == process.pid]
        assert kill(found)


def test_without_any_descriptor_nobody_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_spares", [])
    with subprocess.Popen(["sleep", "1000"]) as process:
        [found] = [one for one in descendants(os.getpid()) if one[0] == process.pid]
        with free_descriptors(0), pytest.raises(OSError, match="Too many open files"):
            kill(found)
        process.kill()


def test_a_message_whose_descriptors_cannot_be_copied_leaks_none() -> None:
    ours, theirs = socket.socketpair()
    channel, before = Channel(ours), open_descriptors()
    with free_descriptors(1), pytest.raises(OSError, match="Too many open files"):
        channel.send({}, [1, 2])
    assert open_descriptors() == before
    channel.close()
    theirs.close()


class BrokenPlugin:
    """Raises whenever a worker is to be started."""

    @hookimpl
    def elastic_worker_environment(self) -> dict[str, str]:
        raise ValueError("not today")


def test_a_round_that_a_plugin_forbids_leaves_no_stream_open(tmp_path: Path) -> None:
    plugins = Plugins()
    for name, plugin in {**core_plugins(), "broken": BrokenPlugin()}.items():
        plugins.register(name, plugin)
    warden = Warden()
    output = Output(Routes(StreamMap(Stream.OUT), StreamMap(Stream.ERR)), print)
    config = RunConfig(program=Program(ProgramKind.EXECUTABLE, "true"))
    reports = Reports(lambda instant, event: None)
    node = Node(config, plugins, lambda event: None, info("a"), "run1", tmp_path)
    group = WorkerGroup(node, warden, output, reports)
    before = open_descriptors()
    with pytest.raises(PluginError, match="not today"):
        group.start(Round(number=1, offer=offer("a"), members=(Member("a", 1, "default"),)), 0)
    assert open_descriptors() == before
    warden.close(5)
    output.close()
    reports.close()


def test_a_log_file_that_is_a_fifo_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stderr.log")
    script = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from elastic_core.agent.output import Output, Routes\n"
        "from elastic_core.config.parse import Stream, StreamMap\n"
        "signal.alarm(30)\n"
        "output = Output(Routes(StreamMap(Stream.ERR), StreamMap()), print)\n"
        "output.open(rank=0, local_rank=0, directory=Path(sys.argv[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode not in (0, -signal.SIGALRM)
    assert "No such device or address" in done.stderr
