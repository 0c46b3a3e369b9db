"""Digests of a state, to find what differs between ranks though it is declared to be the same on all of them."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from elastic_core.errors import UsageError
from elastic_torch.state.components import Components
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.state_tree import leaves

_CHUNK = 1 << 20  # elements that are summed at once


class Comparison:
    """The comparison of state that is declared to be the same on all ranks; each difference is logged once."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._said: set[str] = set()

    def due(self, commits: int) -> bool:
        """Return True after the commits of this process that are compared: the first, the 10th, the 100th and so on."""
        return self._peers.world > 1 and commits == 10 ** (len(str(commits)) - 1)

    def make(self, state: Mapping[str, Any], common: Components, *, first: bool) -> None:
        """Compare a state between all ranks. Collective.

        The buffers of modules are left out: each rank's are of its own batches, and DDP takes rank 0's (BatchNorm).

        ``first`` says that nothing is lost yet. Later on each rank keeps what it has, and rank 0 warns: a
        training that has come so far does not end for it.

        Raises:
            UsageError: The ranks differ, and it is the first step; names the places.
        """
        parts = {name: value for name, value in state.items() if name != "extra"}
        parts |= {f"extra[{key!r}]": value for key, value in state.get("extra", {}).items()}
        things = {"model": common.model, **{f"extra[{key!r}]": thing for key, thing in common.extra.items()}}
        modules = {name: thing for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
        local = {f"{name}[{buffer!r}]" for name, module in modules.items() for buffer, _ in module.named_buffers()}
        found = [place for place in differences(self._peers, parts) if place not in local | self._said]
        if not found:
            return
        self._said.update(found)
        more = f", and {len(found) - 8} more" if len(found) > 8 else ""
        what = f"The ranks differ in what is declared to be the same on all of them: {', '.join(found[:8])}{more}. "
        what += "A rank that is restored from another one would silently get that one's."
        hint = (
            "What each rank has of its own goes into TrainState(per_rank={...}), partitions of a model into DTensors; "
            "what should be the same is to be made so: seeded alike, reduced over ranks. compare_ranks=False leaves "
            "this out."
        )
        if first:
            raise UsageError(what, hint=hint)
        if self._peers.rank == 0:
            warnings.warn(f"{what} Until then each goes on with its own. {hint}", stacklevel=4)


def differences(peers: Peers, state: Mapping[str, Any]) -> list[str]:
    """Return the places in a state at which the ranks differ; where they have other places, only in which part that is.

    Collective. Sharded tensors (DTensors) are left out: each rank has its part.
    """
    found = {name: list(_digests(value, name)) for name, value in state.items()}
    shapes = [zlib.crc32(repr([place for place, _ in its]).encode()) for its in found.values()]
    names = list(found)
    if peers.differing(torch.tensor([zlib.crc32(repr(names).encode())])):
        return ["the names of the parts"]
    if other := peers.differing(torch.tensor(shapes, dtype=torch.int64)):
        return [f"{names[index]} (what it consists of)" for index in other]
    places = [place for its in found.values() for place, _ in its]
    digests = [digest for its in found.values() for _, digest in its]
    here = torch.tensor([digest if isinstance(digest, int) else 0 for digest in digests], dtype=torch.int64)
    there = [(index, digest) for index, digest in enumerate(digests) if not isinstance(digest, int)]
    if there:  # at once: each look at a GPU waits for it
        here[[index for index, _ in there]] = torch.stack([digest for _, digest in there]).cpu()
    return [places[index] for index in peers.differing(here)]


def _digests(value: Any, place: str) -> Iterator[tuple[str, int | torch.Tensor]]:
    for where, leaf in leaves(value, place):
        if not isinstance(leaf, torch.Tensor):
            yield where, zlib.crc32(f"{type(leaf).__name__} {leaf!r}".encode())
        elif type(leaf).__name__ != "DTensor":
            yield where, _digest(leaf.detach())


_weights: dict[torch.device, torch.Tensor] = {}


def _digest(tensor: torch.Tensor) -> int | torch.Tensor:
    """Return a checksum of a tensor's bytes; on a GPU a sum, made there, of four bytes at a time with weights."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return 0  # cannot be kept, which keeping it says
    form = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    content = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if tensor.is_cpu:
        return zlib.crc32(content.numpy().data, zlib.crc32(form))
    weights = _weights.get(tensor.device)
    if weights is None:
        generator = torch.Generator().manual_seed(20)
        weights = torch.randint(-(2**62), 2**62, (_CHUNK,), generator=generator).to(tensor.device) | 1
        _weights[tensor.device] = weights
    words = content.view(torch.int32) if len(content) % 4 == 0 and content.storage_offset() % 4 == 0 else content
    total = torch.tensor(zlib.crc32(form), device=tensor.device)
    for number, chunk in enumerate(words.split(_CHUNK)):
        total = total * 6364136223846793005 + (chunk.to(torch.int64) * weights[: len(chunk)]).sum() + number
    return total
