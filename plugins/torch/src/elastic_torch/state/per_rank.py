"""The part of a training state that differs between ranks: every rank keeps all ranks' parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from elastic_core.errors import UsageError
from elastic_torch.data import loaders
from elastic_torch.state import state_tree
from elastic_torch.state.components import stateful
from elastic_torch.state.rng import Generators
from elastic_torch.state.state_exchange import Peers


class PerRank:
    """The things whose state differs between ranks: this rank's, and a copy of the states of all ranks.

    Args:
        things: By name, the things of ``per_rank``, and loaders with a state, wherever they were given.
        peers: All ranks.
        generators: This rank's random generators, which are kept with them.
        exact: Whether an epoch that cannot go on with another number of ranks is refused.

    Raises:
        TypeError: Something has no state.
    """

    def __init__(self, things: Mapping[str, Any], peers: Peers, generators: Generators, *, exact: bool) -> None:
        self._things = {key: thing for key, thing in things.items() if not loaders.counts_twice(thing)}
        self._stateful = {key: stateful(f"per_rank[{key!r}]", thing) for key, thing in self._things.items()}
        self._peers, self._generators, self._exact = peers, generators, exact
        self._everybodys: Sequence[torch.Tensor] = []  # by rank, its state at the last commit, as bytes
        self._begins_anew: set[str] = set()
        """The loaders that were not restored, since the number of ranks has changed."""

    def gather(self) -> None:
        """Give all ranks the states of all, so that any of them can restore any other. Collective."""
        if self._stateful:
            things = {key: thing.state_dict() for key, thing in self._stateful.items()}
            content = state_tree.packed({"rng": self._generators.state(), "things": things})
            self._everybodys = self._peers.gather_bytes(content)

    def by_rank(self) -> dict[str, torch.Tensor]:
        """Return the states of all ranks as bytes, by the number of the rank."""
        return {str(rank): content for rank, content in enumerate(self._everybodys)}

    def load(self, kept: Mapping[str, torch.Tensor] | None, epoch: int, batches: int) -> None:
        """Load the state of the rank that had this rank's number.

        ``kept`` is what :meth:`by_rank` has returned; ``batches`` are the epoch's batches that are done, 0
        between two epochs.

        Raises:
            UsageError: There is none, or it is of another number of ranks.
        """
        if not self._stateful:
            return
        if not kept:
            raise UsageError(
                f"The state that is restored has nothing for per_rank: {', '.join(self._stateful)}.",
                hint="It was saved without per_rank=. Begin with a new checkpoint directory, or without per_rank=.",
            )
        self._everybodys = [kept[str(rank)] for rank in range(len(kept))]
        rank, world = self._peers.rank, self._peers.world
        if len(kept) == world:
            mine = state_tree.unpacked(self._everybodys[rank])
            if mine["rng"] is not None:
                self._generators.load(mine["rng"])
            for key, thing in self._stateful.items():
                thing.load_state_dict(_named(mine["things"], key))
            return
        states = [state_tree.unpacked(each)["things"] for each in self._everybodys]
        for key, thing in self._things.items():
            if (load := getattr(thing, "load_rank_states", None)) is not None:
                load([_named(each, key) for each in states], rank, world)
            elif hasattr(thing, "__iter__"):  # a loader: between two epochs it begins as it is
                if batches > 0:
                    loaders.refuse_other_ranks(epoch, batches, len(kept), world, exact=self._exact)
                self._begins_anew.add(key)
            else:
                raise UsageError(
                    f"per_rank[{key!r}] was kept by {len(kept)} ranks, and now there are {world}.",
                    hint=f"Start with {len(kept)} ranks again, or give it a method load_rank_states(states, rank, "
                    "ranks) that makes a rank's state of those of all ranks there were.",
                )

    def restores(self, loader: object, common: Mapping[str, object]) -> bool:
        """Return True if a loader knows its own position, and its state was restored with this rank's own.

        Raises:
            UsageError: Its state and its sampler's are both restored; or it is in ``common``, which is declared to be
                the same on all ranks.
        """
        if any(loader is thing for thing in common.values()):
            raise UsageError(
                "The loader is in extra=, as if its position was the same on all ranks.",
                hint="Give it as per_rank={'loader': loader}: each rank has a position of its own.",
            )
        name = next((key for key, thing in self._things.items() if thing is loader), None)
        if name is not None and loaders.draws_elastically(loader):
            raise UsageError(
                f"The loader {name!r} has a state of its own, and its sampler, which is elastic, has one too.",
                hint="Give TrainState the sampler only: TrainState(..., sampler=sampler).",
            )
        return name is not None and name not in self._begins_anew


def _named(states: Mapping[str, Any], key: str) -> Any:
    if key not in states:
        raise UsageError(
            f"The state that is restored has no per_rank[{key!r}].",
            hint="Give per_rank= the same names as when it was saved.",
        )
    return states[key]
