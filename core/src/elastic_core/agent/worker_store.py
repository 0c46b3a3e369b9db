"""The addresses that a node offers for the workers' store: a port, and perhaps a process that listens there.

A starter that can serve the store (``Starter.store``) forks a process for it before the round. Its socket listens from
the start, so workers need not wait for the process.
Otherwise the port is only reserved, and the worker of rank 0 opens the store there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.host.addresses import HeldPort
from elastic_core.protocol.entries import Offer
from elastic_core.warden.client import Warden
from elastic_core.warden.messages import ServiceEnded

FAILURES_MAX = 3  # stores that may fail by themselves; after that, the workers of rank 0 open them


@dataclass(frozen=True, slots=True)
class _Place:
    offer: Offer
    port: HeldPort
    tag: int


class Stores:
    """The offers of one node, each for one round.

    A store is needed to the end of its round, and an offer may be renewed before it is used. So the store of the newest
    round is kept, and the last offer but one too, since a decision in progress may have taken it.

    Other nodes reach this one at ``address``. ``served_by`` is the ``module:function`` of the service that listens at
    each address; ``""`` for none.
    """

    def __init__(self, warden: Warden, address: str, new_id: Callable[[], str], *, served_by: str = "") -> None:
        self._warden, self._address, self._new_id, self._entry = warden, address, new_id, served_by
        self._hosted = bool(served_by)
        self._tags = itertools.count(1)
        self._places: list[_Place] = []
        self._dead: set[str] = set()
        self._failures = 0

    def offer(self, in_use: Offer | None = None) -> Offer:
        """Make a new offer; keep the last one, and the newest round's ``in_use``. ElasticError if no port is free."""
        if self._places and self.dead(self._places[-1].offer):
            self._give_up(self._places.pop())  # no round has used it, so the one before is still in use
        port = HeldPort.take_at(self._address) if self._hosted else HeldPort.take(self._address)
        offer = Offer(self._address, port.port, self._new_id(), hosted=self._hosted)
        place = _Place(offer, port, next(self._tags))
        self._places.append(place)
        if self._hosted:
            port.listen()
            self._serve(place)
        for old in [old for old in self._places[:-2] if old.offer != in_use]:
            self._places.remove(old)
            self._give_up(old)
        return offer

    def begin(self, offer: Offer) -> None:
        """Prepare for the workers of the round with this offer, of any node, before they start and after all others."""

    def handle(self, event: ServiceEnded) -> Offer | None:
        """Note the end of a store; return the offer that it served, unless that was given up.

        After several stores that failed by themselves, and were not killed, none is hosted.
        """
        place = next((place for place in self._places if place.tag == event.tag), None)
        if place is None:
            return None
        self._dead.add(place.offer.id)
        self._failures += event.returncode is None or event.returncode >= 0
        if self._failures == FAILURES_MAX:
            self.stop_hosting()
        return place.offer

    def dead(self, offer: Offer) -> bool:
        """Return whether this is an offer of this node whose store is gone."""
        return offer.id in self._dead

    def stop_hosting(self) -> None:
        """Have the worker of rank 0 open the store, from the next offer on."""
        self._hosted = False

    def close(self) -> None:
        """Release every port. The processes end with the warden."""
        while self._places:
            self._places.pop().port.close()

    def _serve(self, place: _Place) -> None:
        arguments = {"host": place.port.reached_at, "port": place.port.port}
        self._warden.serve(place.tag, self._entry, arguments, descriptors={"socket": place.port.fileno()})

    def _give_up(self, place: _Place) -> None:
        if place.offer.hosted:
            self._warden.end_service(place.tag)
        place.port.close()


class OnePort(Stores):
    """The offers of a job of one node whose workers' store has port ``number`` in every round (``--master_port``)."""

    def __init__(self, warden: Warden, address: str, new_id: Callable[[], str], number: int, *, served_by: str) -> None:
        super().__init__(warden, address, new_id, served_by=served_by)
        self._number = number
        self._port: HeldPort | None = None
        self._listens = False

    def offer(self, in_use: Offer | None = None) -> Offer:
        """Return an offer of the one address, with a new id; ElasticError if the port is taken."""
        if self._port is None:
            self._take(listens=self._hosted)
        return Offer(self._address, self._number, self._new_id(), hosted=self._hosted)

    def begin(self, offer: Offer) -> None:
        """End the store of the previous round, and start that of this round. Connections wait meanwhile.

        Raises:
            ElasticError: The port is taken.
        """
        while self._places:
            self._warden.end_service(self._places.pop().tag)
        if self._port is None or offer.hosted != self._listens:
            self._take(listens=offer.hosted)
        if offer.hosted and self._port is not None:
            self._places.append(_Place(offer, self._port, next(self._tags)))
            self._serve(self._places[-1])

    def close(self) -> None:
        """Release the port. The store's process ends with the warden."""
        if self._port is not None:
            self._port.close()
            self._port = None

    def _take(self, *, listens: bool) -> None:
        self.close()
        take = HeldPort.take_at if listens else HeldPort.take
        port = take(self._address, self._number)
        if listens:
            port.listen()
        self._port, self._listens = port, listens


class SharedStore(Stores):
    """Offers of the rendezvous' own store, which workers of every round reach at ``place``, a host and a port."""

    def __init__(self, warden: Warden, place: tuple[str, int], new_id: Callable[[], str]) -> None:
        super().__init__(warden, place[0], new_id)
        self._number = place[1]

    def offer(self, in_use: Offer | None = None) -> Offer:
        """Return an offer of the one address, with a new id."""
        return Offer(self._address, self._number, self._new_id(), hosted=True)
