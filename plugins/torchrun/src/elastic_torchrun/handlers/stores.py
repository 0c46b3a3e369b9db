"""The store of one round, which its agents share with its workers: torch's TCPStore, in the agent of rank 0's node."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import wait
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

from elastic_core.host import HeldPort
from elastic_core.protocol import Offer
from elastic_core.threads import asked

EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""Prefix of the keys of the barrier that torchrun's agents enter once their workers have finished."""
ARRIVED, ALL_HERE = "elastic/arrived", "elastic/all_here"
CONNECT_WITHIN = timedelta(seconds=60)
LOOK = 0.05  # seconds between two looks whether a round is over, or its store is there
STORE_TIMEOUT = timedelta(seconds=300)
"""The time that agents and workers wait for each other in a round's store; torch's own default."""


class AgentStore:
    """A round's store, as torchrun's agent uses it; tells when the agent enters its exit barrier."""

    def __init__(self, store: Any, finished: Callable[[], None]) -> None:
        self._store, self._finished = store, finished

    def add(self, key: str, amount: int) -> Any:
        """Add to a counter; its new value."""
        if key.startswith(EXIT_BARRIER):
            self._finished()
        return self._store.add(key, amount)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def open_store(offer: Offer, port: HeldPort | None, over: Callable[[], bool]) -> Any:
    """Open torch's TCPStore at an offer: as its server where the port is held here, else as a client.

    A client gives up and returns None once the round is ``over``, which waits a moment and tells: the server's node may
    be lost before it answers, and torch then tries to connect for up to 1.5 times ``CONNECT_WITHIN``.

    Raises:
        RuntimeError: The server does not answer.
    """
    if port is not None:
        return serve(offer, port)
    client = asked(partial(connect, offer), name="elastic-connect")
    while not wait([client], LOOK).done:
        if over():
            return None
    return client.result()


def serve(offer: Offer, port: HeldPort) -> Any:
    """Open the server of a round's store on the port that is held for it."""
    listener, here = os.dup(port.fileno()), port.reached_at
    port.close()
    return import_module("torch.distributed").TCPStore(
        here,
        offer.port,
        is_master=True,
        timeout=STORE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener,
        use_libuv=True,
    )


def connect(offer: Offer) -> Any:
    """Open a client of a round's store. Nothing can interrupt that.

    Raises:
        RuntimeError: The server does not answer.
    """
    client = import_module("torch.distributed").TCPStore(
        offer.address, offer.port, is_master=False, timeout=CONNECT_WITHIN
    )
    client.set_timeout(STORE_TIMEOUT)
    return client


def gather(store: Any, size: int, over: Callable[[], bool]) -> bool:
    """Wait until ``size`` agents are here; False if the round is ``over`` before, which waits a moment and tells.

    torchrun's agents then wait for each other in the store, where nothing can wake them.
    """
    if store.add(ARRIVED, 1) == size:
        store.set(ALL_HERE, "")
    while not store.check([ALL_HERE]):
        if over():
            return False
    return True
