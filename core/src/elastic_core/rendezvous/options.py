"""What a backend declares that it takes (:class:`RendezvousOptions`), and how it reads the values of its own keys."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elastic_core.errors import UsageError

MAX_NODES = 20_000
"""Nodes of a job, at most: a ROUND that names so many fits into one value of a store (``protocol/limits.py``)."""
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
}


class RendezvousOptions:
    """What a backend takes, as the hook ``elastic_rendezvous_options`` declares it.

    Args:
        endpoint: The endpoint's form for help and errors, e.g. ``HOST[:PORT]``; '' when the backend takes none.
            ``HOST`` in it says that an endpoint names a host: then nodes are reached by the way that leads there.
        endpoint_required: Whether a run without ``--rdzv_endpoint`` is refused.
        conf: The ``--rdzv_conf`` keys, each with one line of help; None for none.
        ignored: Keys of torch's that are taken and have no effect, each with the reason, where core's own does not fit.
        single_node: Whether the backend serves one node only.
        standalone: Whether the backend can start a store of its own: ``--standalone`` then leaves the choice of the
            backend as it is, and gives it no endpoint.
        handler: Whether it makes a ``RendezvousHandler``, which is asked for newcomers every ``--monitor_interval``
            seconds, and checks all of ``--rdzv_conf`` itself.
        embedded: Whether the store lives in one of the job's agents, so that nobody listens before that one starts.
    """

    __slots__ = ("conf", "embedded", "endpoint", "endpoint_required", "handler", "ignored", "single_node", "standalone")

    def __init__(
        self,
        *,
        endpoint: str = "",
        endpoint_required: bool = False,
        conf: Mapping[str, str] | None = None,
        single_node: bool = False,
        handler: bool = False,
        ignored: Mapping[str, str] | None = None,
        standalone: bool = False,
        embedded: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.endpoint_required = endpoint_required
        self.conf = dict(conf or {})
        self.single_node = single_node
        self.handler = handler
        self.ignored = dict(ignored or {})
        self.standalone = standalone
        self.embedded = embedded


def positive_seconds(key: str, text: str) -> float:
    """Return a duration among a backend's own keys.

    Raises:
        UsageError: It is no positive number of seconds.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"--rdzv_conf {f'{key}={text}'!r}: {text!r} is not a positive number of seconds.")
    return seconds


def boolean(key: str, text: str) -> bool:
    """Return a boolean among a backend's own keys, as torch spells them.

    Raises:
        UsageError: It is none.
    """
    if (value := _BOOLEANS.get(text.lower())) is None:
        raise UsageError(f"--rdzv_conf {f'{key}={text}'!r}: {text!r} is neither true nor false.")
    return value


def check_node_limit(max_nodes: int) -> None:
    """Refuse more nodes than a job can have.

    Raises:
        UsageError: They are more than MAX_NODES.
    """
    if max_nodes > MAX_NODES:
        raise UsageError(
            f"The maximum of {max_nodes} nodes is more than a job can have, {MAX_NODES}.",
            hint=f"All of them have to fit into one value of the store. Use --nnodes=MIN:{MAX_NODES} or less.",
        )
