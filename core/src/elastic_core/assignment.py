"""One worker's place in one round: everything that its environment is made from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A local rank's place among all workers of a round. Counts are of workers unless they say group (node)."""

    run_id: str
    run_uid: str
    round: int
    restart_count: int
    max_restarts: int | None
    role: str
    rank: int
    local_rank: int
    group_rank: int
    role_rank: int
    world_size: int
    local_world_size: int
    group_world_size: int
    role_world_size: int
    master_addr: str
    master_port: int
    error_file: str  # where torch's ``@record`` writes the exception as JSON; read when the worker fails
    use_agent_store: bool = False  # whether a store listens at the master's address, so that rank 0 opens none
