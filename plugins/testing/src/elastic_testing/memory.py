"""A server in memory, for tests of what stands above a store: it is restarted, loses what it held, and is never slow.

It serves the threads of one process; :class:`~elastic_core.plugins.local_backend.LocalBackend` is what its connections
are.
"""

from __future__ import annotations

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugins import LocalBackend, MemoryStore
from elastic_testing.faults import Data, Keeper


class MemoryBackend(LocalBackend):
    """One connection to one job of a :class:`MemoryServer`; a restart breaks it, and :meth:`connect` makes another."""

    def __init__(self, server: MemoryServer, run_id: str) -> None:
        super().__init__(server.store(run_id))
        self.may_forget = server.may_forget
        self._server, self._run_id = server, run_id
        server.serve(self)

    def connect(self) -> MemoryBackend:
        """Another connection to the same job, as the server has it now."""
        return MemoryBackend(self._server, self._run_id)


class MemoryServer(Keeper):
    """A store's server for the suites: many jobs, many connections, and a life of its own."""

    def __init__(self, *, may_forget: bool = False) -> None:
        self.may_forget = may_forget
        self._jobs: dict[str, MemoryStore] = {}
        self._copy: dict[str, MemoryStore] = {}
        self._connections: list[LocalBackend] = []
        self.running = True

    def open(self, run_id: str) -> MemoryBackend:
        """Return a first connection to a job; raise RendezvousConnectionError if the server is stopped."""
        return MemoryBackend(self, run_id)

    def store(self, run_id: str) -> MemoryStore:
        """Return what is kept of a job; raise RendezvousConnectionError if the server is stopped."""
        if not self.running:
            raise RendezvousConnectionError("The server in memory is stopped.")
        return self._jobs.setdefault(run_id, MemoryStore())

    def serve(self, connection: LocalBackend) -> None:
        """Remember a connection, which ends when the server stops."""
        self._connections.append(connection)

    def stop(self) -> None:
        """End every connection, and refuse new ones."""
        self.running = False
        while self._connections:
            self._connections.pop().close()

    def start(self) -> None:
        """Let connections in again."""
        self.running = True

    def copy(self) -> None:
        """Keep a copy of everything."""
        self._copy = {run_id: _duplicate(store) for run_id, store in self._jobs.items()}

    def restart(self, data: Data) -> None:
        """Stop, and start with the data, the copy, or nothing."""
        self.stop()
        if data is Data.EMPTY:
            self._jobs = {}
        elif data is Data.COPY:
            self._jobs = {run_id: _duplicate(store) for run_id, store in self._copy.items()}
        self.start()


def _duplicate(store: MemoryStore) -> MemoryStore:
    twin = MemoryStore()
    with store.changed:
        twin.entries, twin.rows = list(store.entries), dict(store.rows)
        twin.arrivals, twin.version = store.arrivals, store.version
    return twin
