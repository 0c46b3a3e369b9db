"""The network between a host and the store, and the values that travel over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.replica import Replica


class Payload(bytes):
    """A value as it travels: the object before encoding, since the codec has tests of its own."""

    value: Any

    @classmethod
    def of(cls, value: object, data: bytes = b"") -> Payload:
        """Return a payload, with the encoded ``data`` where other readers need it."""
        payload = cls(data)
        payload.value = value
        return payload

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__


@dataclass
class Channel:
    """The network between one host and the store. Instants are the hub's."""

    replica: Replica
    to_cut: float = 0.0
    """Until this instant no request reaches the store."""
    from_cut: float = 0.0
    """Until this instant no reply comes back."""
    slow: float = 0.0
    """The most seconds by which a message is delayed."""
    lossy: float = 0.0
    """The share of calls that fail: before the commit, after it, or with an unknown outcome."""
    late_writes: float = 0.0
    """The most seconds until a call that was given up is carried out; 0 for the default."""
    stale_copy: Replica | None = None
    """A stale copy that answers reads; None where the server does."""
    read_only: bool = False
    reads_blocked_until: float = 0.0
    """Until this instant no reply to a read of an entry arrives, as if large packets were lost."""
    contact_since: float | None = 0.0
    """Instant of the first reply of the server in its current generation; None before."""
    generation: int = 0
    """Number of times that the server was replaced or has lost data."""
    second: int = 0
    calls: int = 0
    """Calls in that second."""

    def reset(self) -> None:
        """Begin a new generation: another server, or one that has lost data. Replies of earlier ones do not count."""
        self.contact_since, self.generation = None, self.generation + 1
