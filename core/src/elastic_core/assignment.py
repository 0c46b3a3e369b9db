"""One worker's place in one round: everything that its environment is made from."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.protocol.entries import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A local rank of a node that has ``place`` in a round."""

    run_id: str
    run_uid: str
    round: int
    restart_count: int
    max_restarts: int | None
    role: str
    place: Place
    local_rank: int
    master_addr: str
    master_port: int
    error_file: str  # where torch's ``@record`` writes the exception as JSON; read when the worker fails
    use_agent_store: bool = False  # whether a store listens at the master's address, so that rank 0 opens none

    @property
    def rank(self) -> int:
        """Its rank among all workers of the round."""
        return self.place.first_rank + self.local_rank
