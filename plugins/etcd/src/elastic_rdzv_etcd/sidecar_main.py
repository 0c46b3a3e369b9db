"""The process between an agent and its own etcd: it starts etcd, and sees to it that nothing is left of it.

It runs as ``python -I -S sidecar_main.py SOCKET_FD ETCD``, and imports only the standard library. The agent holds the
other end of the socket: end-of-file there, whether the agent let go or was killed, is the order to end. Should this
process be killed itself, the kernel kills etcd (the parent-death signal).

It says one line: ``ready PORT FOLDER``, or ``failed REASON``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ATTEMPTS = 5  # ports that are tried: another process may take a free one before etcd does
START_TIMEOUT = 20.0  # seconds that etcd may take to elect itself; one is usual

_PR_SET_PDEATHSIG = 1
_IGNORED = tuple(getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "PIPE"))
_PEER = "unix://peer:1"  # no other member is to join: a socket in the folder, rather than a second port


def main(lifeline: socket.socket, binary: str) -> None:
    """Serve until the agent lets go, or etcd ends."""
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    folder = tempfile.mkdtemp(prefix="elastic-etcd-")
    try:
        etcd = None
        for _ in range(ATTEMPTS):
            port = _free_port()
            etcd = _start(binary, Path(folder), port)
            if _is_up(etcd, port, lifeline):
                lifeline.sendall(f"ready {port} {folder}\n".encode())
                watched: list[socket.socket | int] = [lifeline, os.pidfd_open(etcd.pid)]
                select.select(watched, [], [])  # until the agent lets go, or etcd ends
                _end(etcd)
                return
            _end(etcd)
        said = (Path(folder) / "log").read_text(errors="replace").strip().splitlines()
        code = "nothing" if etcd is None else etcd.returncode
        lifeline.sendall(f"failed it ended with {code}: {said[-1] if said else 'it said nothing'}\n".encode())
    except OSError as exc:
        with contextlib.suppress(OSError):
            lifeline.sendall(f"failed {exc}\n".encode())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(binary: str, folder: Path, port: int) -> subprocess.Popen[bytes]:
    clients = f"http://127.0.0.1:{port}"
    command = [binary, "--name=elastic", "--data-dir=data", "--logger=zap", "--log-level=error"]
    command += [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
    command += [f"--listen-peer-urls={_PEER}", f"--initial-advertise-peer-urls={_PEER}"]
    command += [f"--initial-cluster=elastic={_PEER}", "--auto-compaction-mode=periodic"]
    command += ["--auto-compaction-retention=10m"]
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_us() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "peer:1").unlink(missing_ok=True)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_us,
        )


def _is_up(etcd: subprocess.Popen[bytes], port: int, lifeline: socket.socket) -> bool:
    """Wait until etcd serves; return whether it does. It does not announce that, so it is asked."""
    deadline = time.monotonic() + START_TIMEOUT
    while etcd.poll() is None and time.monotonic() < deadline and not select.select([lifeline], [], [], 0.02)[0]:
        try:
            with socket.create_connection(("127.0.0.1", port), 1.0) as asking:
                asking.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                if b'"true"' in asking.makefile("rb").read():
                    return etcd.poll() is None  # else it is another etcd
        except OSError:
            continue
    return False


def _end(etcd: subprocess.Popen[bytes]) -> None:
    etcd.kill()  # it has nothing to save
    etcd.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
