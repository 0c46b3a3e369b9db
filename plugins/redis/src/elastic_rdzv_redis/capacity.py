"""The number of clients that a Redis server takes, compared with that of a job."""

from __future__ import annotations

import re

from elastic_core.rendezvous import StoreWarning

CONNECTIONS_PER_NODE = 4
"""Connections that a node has to the server: those of its reader, its writer and its heartbeat, and its first one."""


def capacity_warning(clients: str, max_nodes: int, where: str) -> StoreWarning | None:
    """Return a warning if the server will refuse some nodes of a job; None if all fit, or if it does not tell.

    ``clients`` is the answer to ``INFO clients`` (https://redis.io/docs/latest/commands/info/).
    """
    told = {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)\s*$", clients, re.MULTILINE)}
    if "maxclients" not in told:
        return None
    others = max(0, told.get("connected_clients", 1) - 1)
    needed = others + CONNECTIONS_PER_NODE * max_nodes
    if needed <= told["maxclients"]:
        return None
    return StoreWarning(
        f"The Redis server at {where} takes {told['maxclients']} clients (maxclients). The job may have {max_nodes} "
        f"nodes (--nnodes), each with {CONNECTIONS_PER_NODE} connections, and there are {others} other clients: in all "
        f"{needed}.",
        "Raise maxclients, and the server's limit of open files with it.",
    )
