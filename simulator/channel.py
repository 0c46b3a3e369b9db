"""What lies between a host and the store: the line, in whatever state it is, and values as they travel over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.replica import Replica


class Payload(bytes):
    """A value as it travels: what was encoded, as it was, since the codec has tests of its own."""

    value: Any

    @classmethod
    def of(cls, value: object, data: bytes = b"") -> Payload:
        """Make a new one; with the ``data`` that others read, where that matters."""
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
    """The network between one host and the store, as it is just now. Instants are the hub's."""

    replica: Replica
    to_cut: float = 0.0
    """Until when nothing gets to the store."""
    from_cut: float = 0.0
    """Until when nothing comes back."""
    slow: float = 0.0
    """Seconds that a way takes more, at most."""
    lossy: float = 0.0
    """The share of calls that are broken off: before the store has them, after, or neither is known."""
    late_writes: float = 0.0
    """Seconds after which a call that was broken off is carried out at the latest; 0 for the usual."""
    stale_copy: Replica | None = None
    """An older copy, which answers what only reads; None where the server does."""
    read_only: bool = False
    reads_blocked_until: float = 0.0
    """Until when no entry that is read arrives, as where large packets are lost; all else does."""
    contact_since: float | None = 0.0
    """When the host was first answered by this server, as it is now; None before."""
    generation: int = 0
    """How often that server has been replaced, or has forgotten."""
    second: int = 0
    calls: int = 0
    """In that second of the hub's."""

    def reset(self) -> None:
        """Treat the server as another one from now on, or as one that has forgotten: old answers do not count."""
        self.contact_since, self.generation = None, self.generation + 1
