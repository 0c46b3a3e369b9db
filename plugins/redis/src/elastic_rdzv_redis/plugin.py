"""The hooks that core calls: what the ``redis`` backend takes, and how its first connection is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.rendezvous import RendezvousOptions, RendezvousParameters
from elastic_rdzv_redis.options import CONF, FORM, Options

if TYPE_CHECKING:
    from elastic_rdzv_redis.backend import RedisBackend


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return the endpoint, and what ``--rdzv_conf`` may say."""
    return RendezvousOptions(endpoint=FORM, endpoint_required=True, conf=CONF)


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> RedisBackend:
    """Connect to the server, and see whether it permits all that a job needs.

    Raises:
        UsageError: The endpoint or an option is wrong.
        RendezvousConnectionError: The server cannot be reached, refuses us, or will not do.
    """
    options = Options.read(params.endpoint, params.config)
    from elastic_rdzv_redis.backend import RedisBackend  # imports redis-py
    from elastic_rdzv_redis.connect import Dialler

    backend = RedisBackend(Dialler(options), params.run_id)
    try:
        backend.rehearse()
        backend.check_capacity(params.max_nodes)
    except BaseException:
        backend.close()
        raise
    return backend
