"""Knows which nodes are gone for good: those for whose host a file lies in a folder, whichever program puts it there.

What watches the machines (an operator, a job's epilogue, a controller that has deleted a pod) writes the file. The name
of a folder is in ``ELASTIC_GONE_HOSTS``. A plugin for a cluster asks the cluster instead, by the same hook.
"""

from __future__ import annotations

import os
from pathlib import Path

from elastic_core import hookimpl
from elastic_core.protocol import NodeInfo

FOLDER = "ELASTIC_GONE_HOSTS"


@hookimpl
def elastic_node_gone(node: NodeInfo) -> bool | None:
    """Vouch for a host that has a file; of others nothing is known."""
    folder = os.environ.get(FOLDER)
    return True if folder and (Path(folder) / node.host).exists() else None
