"""The agent's plugin: keeps snapshots for workers, and writes them to disk if the job fails for good.

Workers leave snapshots with their agent as memory files, which are gone with the agent, and a request that says where
to write them (``snapshot_format``). The agent never imports torch. The launch waits for this module, so it imports next
to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_core import hookimpl
from elastic_core.events import Event, Level
from elastic_core.threads import prepare_later

if TYPE_CHECKING:
    from elastic_core import AgentEnd
    from elastic_core.monitors import RunningRound
    from elastic_torch.memory.fd_store import FdStore


class Snapshots:
    """The memory files of one agent's workers."""

    elastic_hookspec_major = 2

    def __init__(self) -> None:
        self.store: FdStore | None = None  # once a worker asks for it

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Serve the workers' requests, and tell ``elastic status`` which snapshot is the newest."""
        for kind in ("hold", "held", "release"):
            round.serve(kind, self._obey)
        round.answer_snapshot(self.newest)

    def _obey(self, request: Mapping[str, Any], descriptors: list[int]) -> str:
        if self.store is None:
            from elastic_torch.memory.fd_store import FdStore

            self.store = FdStore()
        return self.store.obey(request, descriptors)

    def newest(self) -> tuple[int, int] | None:
        """Return the round and step of the newest snapshot in these memory files; None if there is none."""
        if self.store is None:
            return None
        from elastic_torch.memory.snapshot_format import snapshots_in

        if not (found := snapshots_in(self.store.held.values())):
            return None
        _prepare()
        return found[0].stamp.round, found[0].stamp.step

    @hookimpl
    def elastic_agent_ends(self, end: AgentEnd) -> None:
        """Write the snapshots that exist only in memory to disk, and close all files."""
        store, self.store = self.store, None
        if store is None:
            return
        try:
            if store.held and end.is_last():
                from elastic_torch.memory.rescue_files import rescue

                rescue(store.held, end)
        except Exception as error:
            names = ", ".join(sorted({name.partition("/")[0] for name in store.held}))
            message = f"what workers have left in memory as {names} is lost: writing it failed with {error!r}"
            end.publish(Event("rescue_failed", message, Level.ERROR))
        finally:
            store.close()


@cache
def _prepare() -> None:
    prepare_later(0.0, lambda: import_module("elastic_torch.memory.rescue_files"), name="elastic-prepare")
