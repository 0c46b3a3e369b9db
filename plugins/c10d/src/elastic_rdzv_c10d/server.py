"""The process that holds the store. It ends with the agent that started it, however that ends.

It is forked from the agent, right after that has imported torch and while it has one thread: up in milliseconds, with
torch's pages shared. It is a process of its own so that neither can stall the other.

Nothing else ends it: it has a session of its own, so that Ctrl-C in a terminal does not reach it, and it ignores what a
scheduler sends to every process of a job. The agent decides when it leaves, and the store is needed until then.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
from datetime import timedelta
from typing import NoReturn

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous import StoreWarning
from elastic_rdzv_c10d.quiet_torch import TCPStore

START_TIMEOUT = 30.0
"""Seconds that the process may take to start. Milliseconds are usual; a resolver that drops questions costs 5 s."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NAME = b"elastic-store"
_IGNORED = tuple(getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "PIPE"))
_READY = b"r"

CONNECTIONS_PER_NODE = 4
"""Connections that a node has to the store: those of its reader, its writer and its heartbeat, and its first one."""
OTHER_FILES = 32  # open files of the store's process that are no node's connection, at most


def limit_warning(max_nodes: int, hard_limit: int) -> StoreWarning | None:
    """Return a warning if the store's process may not open enough files for a job of ``max_nodes`` nodes."""
    needed = CONNECTIONS_PER_NODE * max_nodes + OTHER_FILES
    if hard_limit == resource.RLIM_INFINITY or needed <= hard_limit:
        return None
    fit = max(0, (hard_limit - OTHER_FILES) // CONNECTIONS_PER_NODE)
    return StoreWarning(
        f"The store's process on this host may open {hard_limit} files, which is enough for {fit} nodes; the job may "
        f"have {max_nodes} (--nnodes) and needs {needed}.",
        f"Raise the hard limit where this agent is started: ulimit -Hn {needed}.",
    )


class StoreServer:
    """A running store, for as long as this object's process lives or until :meth:`close`."""

    def __init__(self, pid: int, lifeline: socket.socket) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._lifeline: socket.socket | None = lifeline

    @classmethod
    def start(cls, listener: socket.socket) -> StoreServer:
        """Serve on ``listener``, which is closed here. Call it on the main thread, before there are others.

        (The parent-death signal comes when the *thread* that forked is gone.)

        Raises:
            RendezvousConnectionError: The process did not start.
        """
        ours, theirs = socket.socketpair()
        agent, libc = os.getpid(), ctypes.CDLL(None)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the agent's handlers are not for it
        try:
            pid = os.fork()
            if pid == 0:
                _become_server(listener, theirs, agent, libc)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        listener.close()
        server = cls(pid, ours)
        try:
            server._await_ready(ours)
        except BaseException:
            server.close()
            raise
        return server

    def _await_ready(self, lifeline: socket.socket) -> None:
        lifeline.settimeout(START_TIMEOUT)
        try:
            answer = lifeline.recv(1)
        except TimeoutError:
            answer = b""
        if answer != _READY:
            raise RendezvousConnectionError(
                f"The store's process, {self.pid}, did not start.", hint="Its own message, if it left one, is above."
            )

    def close(self) -> None:
        """End the process, and with it the store. Called twice, the second call does nothing."""
        if self._lifeline is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # another part of this process has reaped it
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        self._lifeline.close()
        self._lifeline = None


def _become_server(listener: socket.socket, lifeline: socket.socket, agent: int, libc: ctypes.CDLL) -> NoReturn:
    try:
        _leave_the_agent(keep={listener.fileno(), lifeline.fileno()})
        libc.prctl(_PR_SET_NAME, _NAME)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == agent:  # else it died before it could be waited for
            host, port = listener.getsockname()[:2]
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            store = TCPStore(
                host,
                port,
                is_master=True,
                timeout=timedelta(seconds=START_TIMEOUT),
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                use_libuv=True,  # the other kind does not wake waiters on compare_set
            )
            lifeline.sendall(_READY)
            lifeline.recv(1)  # end-of-file, when the agent has closed its end or is gone
            del store
    except Exception as exc:
        os.write(2, f"[elastic] the store's process cannot start: {exc}\n".encode())
    finally:
        os._exit(0)


def _leave_the_agent(keep: set[int]) -> None:
    """Let go of all that a fork inherits: signals, terminal, descriptors; stderr stays, for last words."""
    gc.disable()  # an abandoned file of the agent's must not close a descriptor that is ours by then
    signal.set_wakeup_fd(-1)
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):  # the one that listed the directory
                os.close(fd)
