"""The options that a backend declares, the parameters that it gets, and parsers of its endpoint and keys."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from elastic_core.errors import UsageError
from elastic_core.rendezvous.job_token import JobToken

MAX_NODES = 20_000
"""Most nodes of a job: a ROUND that names as many fits into one value of a store (``protocol/limits.py``)."""
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousOptions:
    """The options that a backend takes, as the hook ``elastic_rendezvous_options`` declares them."""

    endpoint: str = ""
    """The endpoint's form for help and errors, e.g. ``HOST[:PORT]``; '' if the backend takes none. With ``HOST`` in it,
    the address of this node is the one from which that host is reached."""
    endpoint_required: bool = False  # whether a run without ``--rdzv_endpoint`` is refused
    conf: Mapping[str, str] = field(default_factory=dict)  # the ``--rdzv_conf`` keys, each with one line of help
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Keys of torch that are accepted without effect, each with the reason, if core's reason does not fit."""
    single_node: bool = False  # whether the backend serves one node only
    standalone: bool = False
    """True if the backend can start a store by itself. ``--standalone`` then keeps it and gives it no endpoint."""
    handler: bool = False
    """True if the store is private, this node's own, over a handler in torch's form. It is neither guarded nor sealed,
    and the handler checks all of ``--rdzv_conf`` itself."""
    embedded: bool = False
    """True if the store lives in one of the job's agents, so that it cannot be reached before that agent starts."""


@dataclass(frozen=True, slots=True, init=False)
class RendezvousParameters:
    """The parameters of a backend, with torch's names and arguments. Any other keyword is a key of ``config``.

    Raises:
        UsageError: The backend has no name, min_nodes < 1, max_nodes < min_nodes, or max_nodes is more than a job can
            have.
    """

    backend: str
    endpoint: str = field(repr=False)
    """As the user typed it, perhaps with a password; '' if none was given. Each backend declares its own form."""
    run_id: str  # the job id (``--rdzv_id``), which selects the roster and the ledger in the store
    min_nodes: int
    max_nodes: int
    local_addr: str | None  # the address at which peers reach this node (``--local_addr``); None to find it
    node_rank: int | None  # ``--node_rank``: this node's rank; None to have it assigned
    token: JobToken | None = field(repr=False)
    """The job's token, with which core seals the values in the store. Backends do not need it."""
    config: Mapping[str, str] = field(repr=False)
    """``--rdzv_conf`` without the keys that core reads, checked against the options that the backend declares."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        *,
        node_rank: int | None = None,
        token: JobToken | None = None,
        config: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        if not backend:
            raise UsageError("The rendezvous backend has no name.")
        if min_nodes < 1:
            raise UsageError(f"The minimum of nodes is {min_nodes}; it must be at least 1.")
        check_node_limit(max_nodes)
        if max_nodes < min_nodes:
            raise UsageError(
                f"The minimum of nodes, {min_nodes}, is greater than the maximum, {max_nodes}.",
                hint=f"Write --nnodes={max_nodes}:{min_nodes}, or one number for a fixed size.",
            )
        values = (backend, endpoint, run_id, min_nodes, max_nodes, local_addr, node_rank, token)
        for item, value in zip(fields(self), (*values, {**(config or {}), **more}), strict=True):
            object.__setattr__(self, item.name, value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of :attr:`config`, as it was typed."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the value of a key as a boolean; raise UsageError if it is none."""
        value: Any = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, bool):  # not typed, but given by a caller in Python
            return value
        return boolean(key, str(value))

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the value of a key as a whole number; raise UsageError if it is none."""
        value: Any = self.config.get(key)
        if value is None:
            return default
        try:
            return int(value)
        except (TypeError, ValueError):
            raise UsageError(f"--rdzv_conf {f'{key}={value}'!r}: {value!r} is not a whole number.") from None


def positive_seconds(key: str, text: str) -> float:
    """Return the duration of a backend's key; raise UsageError if it is not a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"--rdzv_conf {f'{key}={text}'!r}: {text!r} is not a positive number of seconds.")
    return seconds


def boolean(key: str, text: str) -> bool:
    """Return the boolean of a backend's key, in torch's spelling; raise UsageError if it is none."""
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


# The endpoint's most common form, and the timeouts of connections to it ----------------------------------------------

FORM = "HOST[:PORT]"
_PARTS = re.compile(r"(?:\[(?P<ipv6>[^\s\[\]]*)\]|(?P<name>[^\s\[\]:/?#@,%\\]*))(?::(?P<port>[^\s:]*))?")
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_ONE_HOST = "Name the one host where the store is, or is to be."


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host, by its name or its address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int, *, endpoint: str | None = None, hint: str = "") -> HostPort:
        """Return the host and the port of ``HOST``, ``HOST:PORT``, ``[IPV6]`` or ``[IPV6]:PORT``.

        Errors show the whole ``endpoint``, without a password, or else ``text``; ``hint`` tells what to write.

        Raises:
            UsageError: The text is not of the form, or names all hosts or a group of hosts.
        """
        example = f"e.g. 10.0.0.1, node0.example:{default_port} or [fd00::1]:{default_port}"

        def refused(why: str, hint: str = hint or f"Write {FORM}, {example}.") -> UsageError:
            return UsageError(f"--rdzv_endpoint {text if endpoint is None else endpoint!r}: {why}.", hint=hint)

        if not text:
            raise refused("it names no host")
        try:
            host, port = split_host_port(text)
        except ValueError:
            raise refused(f"{text!r} is not of the form {FORM}") from None
        if text == host and ":" in host:  # what would be the port?
            raise refused(f"{text!r} is not of the form {FORM}: an address of IPv6 has brackets, [{text}]")
        if port is not None and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise refused(f"{port!r} is not a port from 1 to 65535")
        literal = ip_address(host)
        if literal is not None and literal.is_unspecified:
            raise refused(f"{host!r} is every address of every host, and so no host that others could find", _ONE_HOST)
        if literal is not None and (literal.is_multicast or literal == _BROADCAST):
            raise refused(f"{host!r} is the address of a group of hosts, to which no client can connect", _ONE_HOST)
        return cls(host, default_port if port is None else int(port))


def split_host_port(text: str) -> tuple[str, str | None]:
    """Return host and port as they are written, None for no port; raise ValueError if the text is not of the form.

    An address of IPv6 may have no brackets.
    """
    if ":" in text and ip_address(text) is not None:
        return text, None
    parts = _PARTS.fullmatch(text)
    host = "" if parts is None else parts["ipv6"] or parts["name"] or ""
    if parts is None or not host or (parts["ipv6"] is not None and ip_address(host) is None):
        raise ValueError(f"{text!r} is not of the form {FORM}")
    return host, parts["port"]


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a numeric address, whose zone is left out; None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def timeouts(config: Mapping[str, str]) -> dict[str, float]:
    """Return ``connect_timeout`` and ``read_timeout`` of ``--rdzv_conf``; raise UsageError if one is no duration."""
    return {key: positive_seconds(key, config[key]) for key in ("connect_timeout", "read_timeout") if key in config}
