"""The places that a node offers for the workers' store, one after the other: a port, and perhaps who listens there.

With a template that has imported torch, the store is a process of its own, forked ahead of the round that will use it
(``warm/store.py``); the socket listens from the start, so that nobody has to wait for that process. Otherwise the port
is only held, and rank 0's worker opens the store there.

An offer serves one round. Its store is kept until the round after the next is offered, since a round's workers use it
to their end. An offer may be renewed before it is used: while the newest round's workers use a store it is kept however
many follow, and so is the offer before the last, which a decision under way may still have taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.agent.ports import HeldPort
from elastic_core.agent.warden import Warden
from elastic_core.agent.warden_events import ServiceEnded, ServiceFailed
from elastic_core.rendezvous.ledger import Offer

ENTRY = "elastic_core.warm.store:serve"
MOST_FAILURES = 3
"""Stores that may fail by themselves until rank 0's workers open them: where one cannot be served, none can."""


@dataclass(frozen=True, slots=True)
class _Place:
    offer: Offer
    port: HeldPort
    tag: int


class Stores:
    """What one node offers.

    Args:
        warden: Has the template fork them.
        address: Where other nodes reach this one.
        new_id: Makes ids of offers.
        hosted: Whether a process of ours is to listen at each place.
    """

    def __init__(self, warden: Warden, address: str, new_id: Callable[[], str], *, hosted: bool) -> None:
        self._warden, self._address, self._new_id, self._hosted = warden, address, new_id, hosted
        self._tags = itertools.count(1)
        self._places: list[_Place] = []
        self._dead: set[str] = set()
        self._failures = 0

    def offer(self, in_use: Offer | None = None) -> Offer:
        """A new place; of those before the last one is kept, and the one in use.

        Args:
            in_use: Where the workers of the newest round meet.

        Raises:
            ElasticError: No port is free.
        """
        if self._places and self.dead(self._places[-1].offer):
            self._give_up(self._places.pop())  # nobody has used it, so the one before still is in use
        port = HeldPort.take_at(self._address) if self._hosted else HeldPort.take(self._address)
        offer = Offer(self._address, port.port, self._new_id(), hosted=self._hosted)
        place = _Place(offer, port, next(self._tags))
        self._places.append(place)
        if self._hosted:
            port.listen()
            arguments = {"host": port.reached_at, "port": port.port}
            self._warden.serve(place.tag, ENTRY, arguments, descriptors={"socket": port.fileno()})
        for old in [old for old in self._places[:-2] if old.offer != in_use]:
            self._places.remove(old)
            self._give_up(old)
        return offer

    def handle(self, event: ServiceFailed | ServiceEnded) -> Offer | None:
        """Take note of the end of a store; the offer that it served, unless that was given up.

        One that was killed says nothing of the next. After some that failed by themselves nothing is hosted any more.
        """
        place = next((place for place in self._places if place.tag == event.tag), None)
        if place is None:
            return None
        self._dead.add(place.offer.id)
        self._failures += isinstance(event, ServiceFailed) or event.returncode >= 0
        if self._failures == MOST_FAILURES:
            self.stop_hosting()
        return place.offer

    def dead(self, offer: Offer) -> bool:
        """Whether an offer of this node is one whose store is gone."""
        return offer.id in self._dead

    def stop_hosting(self) -> None:
        """There is no template, or none that can: from the next offer on, rank 0's worker opens the store."""
        self._hosted = False

    def close(self) -> None:
        """Let every port go. The processes end with the warden."""
        while self._places:
            self._places.pop().port.close()

    def _give_up(self, place: _Place) -> None:
        if place.offer.hosted:
            self._warden.end_service(place.tag)
        place.port.close()
