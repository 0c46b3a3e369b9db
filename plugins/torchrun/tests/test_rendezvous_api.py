"""Handlers as users write them."""

from __future__ import annotations

import elastic_core
from elastic_core import rendezvous
from elastic_torchrun.rendezvous_api import RendezvousHandler


class Bare(RendezvousHandler):
    """A user's smallest handler."""

    def next_rendezvous(self):  # type: ignore[no-untyped-def]  # as users write it
        return None, 0, 1


def test_only_next_rendezvous_must_be_written() -> None:
    assert RendezvousHandler.__abstractmethods__ == {"next_rendezvous"}


def test_the_rest_of_a_handler_is_as_torch_has_it() -> None:
    bare = Bare()
    bare.set_closed()
    told = (bare.is_closed(), bare.num_nodes_waiting(), bare.shutdown(), bare.use_agent_store)
    assert told == (False, 0, True, False)
    assert (bare.get_backend(), bare.get_run_id()) == ("Bare", "")


def test_core_finds_the_class_by_its_own_names() -> None:
    assert elastic_core.RendezvousHandler is RendezvousHandler is rendezvous.RendezvousHandler
