"""The options that a backend declares (:class:`RendezvousOptions`), and parsers of the values of its keys."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elastic_core.errors import UsageError

MAX_NODES = 20_000
"""Most nodes of a job: a ROUND that names as many fits into one value of a store (``protocol/limits.py``)."""
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
}


class RendezvousOptions:
    """The options that a backend takes, as the hook ``elastic_rendezvous_options`` declares them.

    Args:
        endpoint: The endpoint's form for help and errors, e.g. ``HOST[:PORT]``; '' if the backend takes none. With
            ``HOST`` in it, the address of this node is the one from which that host is reached.
        endpoint_required: Whether a run without ``--rdzv_endpoint`` is refused.
        conf: The ``--rdzv_conf`` keys, each with one line of help; None for none.
        ignored: Keys of torch that are accepted without effect, each with the reason, if core's reason does not fit.
        single_node: Whether the backend serves one node only.
        standalone: Whether the backend can start a store by itself. ``--standalone`` then keeps the backend and gives
            it no endpoint.
        handler: Whether the store is private, this node's own, over a ``RendezvousHandler``. It is neither guarded nor
            sealed, and the handler checks all of ``--rdzv_conf`` itself.
        embedded: Whether the store lives in one of the job's agents, so that it cannot be reached before that agent
            starts.
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
        self.endpoint, self.endpoint_required = endpoint, endpoint_required
        self.conf, self.ignored = dict(conf or {}), dict(ignored or {})
        self.single_node, self.handler = single_node, handler
        self.standalone, self.embedded = standalone, embedded


def positive_seconds(key: str, text: str) -> float:
    """Return the duration of a backend's key.

    Raises:
        UsageError: It is not a positive number of seconds.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"--rdzv_conf {f'{key}={text}'!r}: {text!r} is not a positive number of seconds.")
    return seconds


def boolean(key: str, text: str) -> bool:
    """Return the boolean of a backend's key, in torch's spelling.

    Raises:
        UsageError: It is not a boolean.
    """
    if (value := _BOOLEANS.get(text.lower())) is None:
        raise UsageError(f"--rdzv_conf {f'{key}={text}'!r}: {text!r} is neither true nor false.")
    return value


def check_node_limit(max_nodes: int) -> None:
    """Refuse more than MAX_NODES nodes, with a UsageError."""
    if max_nodes > MAX_NODES:
        raise UsageError(
            f"The maximum of {max_nodes} nodes is more than a job can have, {MAX_NODES}.",
            hint=f"All of them have to fit into one value of the store. Use --nnodes=MIN:{MAX_NODES} or less.",
        )
