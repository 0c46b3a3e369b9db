"""Signals that a program handles are reported to its agent, and the program does not notice."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic_core.agent.outside_signals import SignalRecord, parse_record
from elastic_core.worker.channel import KIND

PREPARE = """
import signal, os, sys
from elastic_core.worker import outside_signals
outside_signals.prepare()
"""
HANDLE = "signal.signal(signal.SIGTERM, lambda *_: None)\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n"


@contextlib.contextmanager
def prepared(program: str, prepare: str = PREPARE) -> Iterator[tuple[subprocess.Popen[str], SignalRecord]]:
    """A process with a control channel, and the record of its signals."""
    ours, theirs = socket.socketpair(*KIND)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-c", prepare + program],
            env={**os.environ, "ELASTIC_CONTROL_FD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            packet, descriptors, _, _ = socket.recv_fds(ours, 4096, 2)
            record = parse_record(packet, descriptors)
            assert record is not None
            assert (descriptors, record.pid) == ([], process.pid)
            with record.end:
                yield process, record


def ended(process: subprocess.Popen[str]) -> str:
    """The output of a process that has ended with 0."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize(
    ("program", "reported"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", True, id="SIGTERM"),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM); os._exit(0)", True, id="no exit functions"),
        pytest.param("os.kill(os.getpid(), signal.SIGUSR1)", False, id="another signal"),
        pytest.param("pass", False, id="none"),
        pytest.param(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGTERM)", False, id="ignored"
        ),
        pytest.param(
            "if os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGTERM)\n    os._exit(0)\nos.wait()",
            False,
            id="a fork",
        ),
        pytest.param(
            "import multiprocessing\npool = multiprocessing.get_context('fork').Pool(2)\npool.terminate()\npool.join()",
            False,
            id="a pool that is terminated",
        ),
        pytest.param(
            "import subprocess\nchild = subprocess.Popen(['sleep', '100'])\nchild.terminate()\nchild.wait()",
            False,
            id="a child",
        ),
        pytest.param(
            "import asyncio\nasync def main():\n    loop, seen = asyncio.get_running_loop(), asyncio.Event()\n"
            "    loop.add_signal_handler(signal.SIGTERM, seen.set)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
            "    await seen.wait()\nasyncio.run(main())",
            False,
            id="asyncio reads the signals itself",
        ),
        pytest.param(
            "import asyncio\nasync def main():\n    loop = asyncio.get_running_loop()\n"
            "    loop.add_signal_handler(signal.SIGUSR1, print)\nasyncio.run(main())\n"
            "os.kill(os.getpid(), signal.SIGTERM)",
            True,
            id="after asyncio",
        ),
        pytest.param(
            "for _ in range(2000):\n    os.kill(os.getpid(), signal.SIGUSR1)",
            False,
            id="more signals than there is room",
        ),
    ],
)
def test_sigterm_that_reached_the_program_is_reported(program: str, reported: bool) -> None:
    with prepared(HANDLE + program) as (process, record):
        assert ended(process) == ""
        record.read(7.0)
        assert (record.terminated_at == 7.0) is reported
        assert record.at_end


@pytest.mark.parametrize(
    "early",
    ["", "import signal\nfrom signal import set_wakeup_fd\nassert set_wakeup_fd(-1) == -1\n"],
    ids=["", "bound"],
)
def test_a_program_with_a_wakeup_descriptor_of_its_own_does_not_notice(early: str) -> None:
    """As trio does, which warns of a descriptor that is not its own."""
    program = """
import io, warnings
reading, writing = os.pipe2(os.O_NONBLOCK)
assert signal.set_wakeup_fd(writing, warn_on_full_buffer=False) == -1
os.kill(os.getpid(), signal.SIGTERM)
assert os.read(reading, 10) == bytes([signal.SIGTERM])
assert signal.set_wakeup_fd(-1) == writing
assert signal.set_wakeup_fd(-1) == -1
os.close(writing)
for wrong, error in ((io, TypeError), (writing, (ValueError, OSError))):
    try:
        signal.set_wakeup_fd(wrong)
    except error:
        pass
    else:
        raise AssertionError
assert "wakeup" in signal.set_wakeup_fd.__doc__ and signal.set_wakeup_fd.__module__ == "_signal"
"""
    prepare = PREPARE.replace("outside_signals\n", "outside_signals\noutside_signals.hide()\n" + early, 1)
    with prepared(HANDLE + program, prepare) as (process, record):
        assert ended(process) == ""
        record.read(7.0)
        assert record.terminated_at < 0, "the program had its own descriptor at that time"


def test_a_write_does_not_fail_after_the_agent_is_gone() -> None:
    program = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nprint(flush=True)\nsignal.sigwait({signal.SIGUSR2})\n"
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})\n"
    with prepared(block + HANDLE + program + "os.kill(os.getpid(), signal.SIGTERM)") as (process, record):
        assert process.stdout is not None
        process.stdout.readline()
        record.end.close()
        process.send_signal(signal.SIGUSR2)
        assert ended(process) == ""


@pytest.mark.parametrize("control", ["", "x", "0", "1000000"])
def test_a_program_without_an_agent_is_left_alone(control: str) -> None:
    program = PREPARE + "assert outside_signals._real(-1) == -1"
    environment = {**os.environ, **({"ELASTIC_CONTROL_FD": control} if control else {})}
    subprocess.run([sys.executable, "-c", program], env=environment, stdin=subprocess.DEVNULL, check=True)


def test_a_program_whose_imports_have_set_a_descriptor_keeps_it() -> None:
    ours, theirs = socket.socketpair(*KIND)
    program = "import os, signal\n_, writing = os.pipe2(os.O_NONBLOCK)\nsignal.set_wakeup_fd(writing)\n" + PREPARE
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", program + "assert signal.set_wakeup_fd(-1) == writing"],
            env={**os.environ, "ELASTIC_CONTROL_FD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            check=True,
        )


@pytest.mark.parametrize(
    "packet",
    [b"", b"[" * 2000, b"1", b'{"type": "signals"}', b'{"type": "signals", "pid": "1"}', b'{"type": "hold", "pid": 1}'],
)
def test_a_packet_that_brings_no_signals(packet: bytes) -> None:
    assert parse_record(packet, [0]) is None


def test_a_descriptor_that_is_no_socket_of_packets_is_refused() -> None:
    stream, other = socket.socketpair()
    with stream, other, open(os.devnull) as null:
        for fd in (stream.fileno(), null.fileno()):
            assert parse_record(b'{"type": "signals", "pid": 1}', [fd]) is None
            os.fstat(fd)  # the caller closes it
