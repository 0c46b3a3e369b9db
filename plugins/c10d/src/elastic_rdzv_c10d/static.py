"""The ``static`` backend: nodes numbered by hand, as ``torchrun --node_rank --master_addr --master_port`` has it.

It is ``c10d`` with the question of the host answered: node 0 holds the store, at ``--master_addr:--master_port``. Ranks
go by ``--node_rank``, not by arrival; a node that is replaced keeps its rank.

The workers use the same store, as under torchrun, so that a script that was told the port by hand finds it there. Each
round finds it without the keys of earlier rounds' workers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.errors import UsageError
from elastic_core.rendezvous import FORM, RendezvousOptions, RendezvousParameters
from elastic_rdzv_c10d.plugin import Options, connect

if TYPE_CHECKING:
    from elastic_rdzv_c10d.backend import C10dBackend


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return the endpoint, which the command line makes from ``--master_addr`` and ``--master_port``."""
    return RendezvousOptions(
        endpoint=FORM,
        endpoint_required=True,
        embedded=True,
        conf={
            "read_timeout": f"seconds that one answer of the store may take [{Options().read_timeout:g}]",
            "connect_timeout": f"seconds to wait for node 0 to come up [{Options().connect_timeout:g}]",
        },
        ignored={"is_host": "node 0 hosts the store; say --node_rank"},
    )


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> C10dBackend:
    """Host the store on node 0, and connect to it.

    Raises:
        UsageError: The endpoint or an option is wrong, or this node has no rank.
        RendezvousConnectionError: No server listens there, or this is node 0 and the port is taken.
    """
    if params.node_rank is None:
        raise UsageError("The static backend needs to know which node this is.", hint="Add --node_rank=N, from 0.")
    options = replace(Options.read(params.config), is_host=params.node_rank == 0)
    return connect(params, options, serves_workers=True)
