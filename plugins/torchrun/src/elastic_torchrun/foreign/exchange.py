"""The exchange between the agents of a round through a handler's store: who they are, and that they have finished.

A handler says only which node this is, of how many. So each agent writes a card with its workers, their role and the
place of rank 0's store, and reads the cards of all nodes. From them, all agents compute the same ranks
(``protocol.entries``). Keys are polled, because not every store can block, and a blocked call could not be cancelled.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from elastic_core.errors import RendezvousStateError, RendezvousTimeoutError
from elastic_core.protocol import HOSTS_BYTES, Member, Offer, Round, fit_names
from elastic_torchrun.rendezvous_api import BootstrapStoreInfo, RendezvousInfo

CARD_KEY_PREFIX = "elastic/node/"  # prefix of the keys of the cards, each followed by a node's rank
FINISHED_KEY_PREFIX = "elastic/finished/"  # prefix of the keys by which nodes say that all their workers exited with 0
CARD_MAX_BYTES = 4096  # largest card that is read
CARD_WAIT_SECONDS = 60.0  # how long to wait for the cards of a round, whose nodes have all just arrived
KEY_POLL_SECONDS = 0.05  # the interval at which keys are polled


class Cancelled(BaseException):
    """The wait was cancelled because its outcome is not needed any more; no error of a handler's store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The card of a node: its description of itself."""

    node_id: str
    host: str
    role: str
    local_world_size: int
    restarts: int = 0  # restarts that the job has spent, as far as the node knows
    address: str = ""  # the place of the workers' store, if this is rank 0
    port: int = 0
    hosted: bool = False  # whether a store listens there


@dataclass(frozen=True, slots=True)
class Waiting:
    """The way to wait, so that a wait can be cancelled and tests take no time."""

    pause: Callable[[float], bool]  # sleeps for a number of seconds and returns whether to give up
    now: Callable[[], float] = time.monotonic


def parse_answer(answer: Any) -> RendezvousInfo:
    """Return a handler's answer, our class, torch's or the tuple ``(store, rank, world_size)``, as our class.

    Raises:
        RendezvousStateError: It is none of these, or its rank is invalid.
    """
    bootstrap = None
    try:
        if isinstance(answer, tuple):
            store, rank, world_size = answer
        else:
            store, rank, world_size = answer.store, answer.rank, answer.world_size
            if (given := getattr(answer, "bootstrap_store_info", None)) is not None:
                bootstrap = BootstrapStoreInfo(str(given.master_addr), operator.index(given.master_port))
        rank, world_size = operator.index(rank), operator.index(world_size)
    except (AttributeError, TypeError, ValueError) as exc:
        raise RendezvousStateError(
            f"next_rendezvous() returned {answer!r}, which is not (store, rank, world_size): {exc}.",
            hint="Return such a tuple, or a RendezvousInfo.",
        ) from exc
    if not 0 <= rank < world_size:
        raise RendezvousStateError(f"next_rendezvous() returned rank {rank} of {world_size} node(s).")
    if store is None and world_size > 1:
        raise RendezvousStateError(
            f"next_rendezvous() returned no store for a round of {world_size} nodes.",
            hint="Only a node by itself needs none: the others learn from it who is which rank.",
        )
    return RendezvousInfo(store, rank, world_size, bootstrap)


def shared_store(info: RendezvousInfo, offer_id: str) -> Offer:
    """Return where workers reach the store that a handler shares with them, as an offer of this id.

    Raises:
        RendezvousStateError: Neither the handler nor the store says where it is.
    """
    if (given := info.bootstrap_store_info) is not None:
        return Offer(given.master_addr, given.master_port, offer_id, hosted=True)
    store = info.store
    while (inner := getattr(store, "underlying_store", None)) is not None:  # torch's PrefixStore
        store = inner
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if not (isinstance(host, str) and isinstance(port, int)):
        raise RendezvousStateError(
            f"The handler shares its store with the workers, but {store!r} does not say where it is.",
            hint="Return a RendezvousInfo with a bootstrap_store_info, or leave use_agent_store False.",
        )
    return Offer(host, port, offer_id, hosted=True)


def exchange(info: RendezvousInfo, mine: Card, waiting: Waiting) -> tuple[Card, ...]:
    """Tell the other nodes who this node is, and return the cards of all nodes in rank order.

    Raises:
        RendezvousTimeoutError: A node did not say who it is.
        RendezvousStateError: A card cannot be read.
        Cancelled: The wait was cut short.
    """
    if info.world_size == 1:
        return (mine,)
    info.store.set(f"{CARD_KEY_PREFIX}{info.rank}", json.dumps(asdict(mine)))
    keys = [f"{CARD_KEY_PREFIX}{rank}" for rank in range(info.world_size)]
    deadline = waiting.now() + CARD_WAIT_SECONDS
    if missing := await_keys(info.store, keys, deadline, waiting):
        ranks = ", ".join(key.removeprefix(CARD_KEY_PREFIX) for key in missing)
        raise RendezvousTimeoutError(
            f"Of {info.world_size} nodes of the round, node {ranks} did not say who it is within "
            f"{CARD_WAIT_SECONDS:g} s.",
            hint="It may have been lost on the way. Start the job again.",
        )
    cards = tuple(_parse_card(rank, value) for rank, value in enumerate(_read(info.store, keys)))
    if len({card.node_id for card in cards}) < len(cards) or cards[info.rank] != mine:
        raise RendezvousStateError("Two nodes of the round have one place, or one id.", hint=_OWN_KEYS)
    return cards


def finish(info: RendezvousInfo, patience: float, waiting: Waiting) -> list[int]:
    """Say that this node has finished and wait for the others; return the ranks that have not after ``patience``.

    Raises:
        Cancelled: The wait was cut short.
    """
    if info.world_size == 1:
        return []
    info.store.set(f"{FINISHED_KEY_PREFIX}{info.rank}", "1")
    keys = [f"{FINISHED_KEY_PREFIX}{rank}" for rank in range(info.world_size)]
    missing = await_keys(info.store, keys, waiting.now() + patience, waiting)
    return [int(key.removeprefix(FINISHED_KEY_PREFIX)) for key in missing]


def make_round(wanted: Round, cards: Sequence[Card], offer_id: str) -> Round:
    """Return the round ``wanted`` with the nodes of these cards, and the workers' store of the first."""
    members = tuple(Member(card.node_id, card.local_world_size, card.role) for card in cards)
    offer = Offer(cards[0].address, cards[0].port, offer_id, cards[0].hosted)
    hosts = fit_names((card.host for card in cards), HOSTS_BYTES)
    return replace(wanted, offer=offer, members=members, same_as=0, hosts=hosts)


def await_keys(store: Any, keys: Sequence[str], deadline: float, waiting: Waiting) -> list[str]:
    """Wait until a store has all keys, or the deadline; return those that it does not have.

    Raises:
        Cancelled: The wait was cut short.
    """
    missing = list(keys)
    while True:
        missing = [key for key in missing if not _has(store, key)]
        if not missing or waiting.now() >= deadline:
            return missing
        if waiting.pause(KEY_POLL_SECONDS):
            raise Cancelled


def _has(store: Any, key: str) -> bool:
    if hasattr(store, "check"):
        return bool(store.check([key]))
    try:
        return store.get(key) is not None
    except LookupError:
        return False


def _read(store: Any, keys: list[str]) -> list[Any]:
    if hasattr(store, "multi_get"):
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


def _parse_card(rank: int, value: Any) -> Card:
    """Parse a card, which is untrusted input.

    Raises:
        RendezvousStateError: It is not a valid :class:`Card`.
    """
    try:
        text = value.decode() if isinstance(value, bytes) else value
        if len(text) > CARD_MAX_BYTES:
            raise ValueError(f"it has {len(text)} bytes")
        card = Card(**json.loads(text))
        for name, kind in _KINDS.items():
            if type(getattr(card, name)) is not kind:
                raise ValueError(f"{name} is {getattr(card, name)!r}")
        if card.local_world_size < 1 or card.restarts < 0 or not 0 <= card.port < 1 << 16:
            raise ValueError("a number is out of range")
    except (TypeError, ValueError) as exc:
        raise RendezvousStateError(f"What node {rank} says of itself cannot be read: {exc}.", hint=_OWN_KEYS) from exc
    return card


_OWN_KEYS = "All nodes of a job must run the same launcher, and each round's store must have keys of its own."
_KINDS = {item.name: {"str": str, "int": int, "bool": bool}[str(item.type)] for item in fields(Card)}
