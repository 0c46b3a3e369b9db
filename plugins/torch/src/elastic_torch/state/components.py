"""The parts of a training: those that are the same on all ranks, and those that each rank has of its own."""

from __future__ import annotations

import contextlib
import random
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from elastic_core.errors import UsageError
from elastic_torch.data import loaders
from elastic_torch.state import state_tree
from elastic_torch.state.gradient_order import GradientOrder
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.state_tree import leaves


class Stateful(Protocol):
    """An optimizer, a scheduler, a scaler, a module: anything that returns and loads a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Set the state."""


class _Generator:
    """A random generator, as a thing that has a state."""

    def __init__(self, generator: torch.Generator | np.random.Generator | random.Random) -> None:
        self._get: Callable[[], Any]
        self._set: Callable[[Any], object]
        match generator:
            case torch.Generator():
                self._get, self._set = generator.get_state, generator.set_state
            case np.random.Generator():
                bits = generator.bit_generator
                self._get, self._set = lambda: bits.state, lambda state: setattr(bits, "state", state)
            case _:
                self._get, self._set = generator.getstate, generator.setstate

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._get()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._set(state_dict["state"])


def stateful(name: str, thing: Any) -> Stateful:
    """Return something as a part of a state, random generators too; raise TypeError, which names it, if it has none."""
    if isinstance(thing, torch.Generator | np.random.Generator | random.Random):
        return _Generator(thing)
    if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
        raise TypeError(f"{name} is a {type(thing).__qualname__}, which has no state_dict() and load_state_dict().")
    return thing  # type: ignore[no-any-return]  # it has what the protocol asks for


def _unwrapped(model: torch.nn.Module) -> tuple[torch.nn.Module, DistributedDataParallel | None]:
    """Return the module without the wrappers of DDP and ``torch.compile``, and that of DDP, if it has one."""
    wrapper = None
    while True:
        if isinstance(model, DistributedDataParallel):
            wrapper = model if wrapper is None else wrapper
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model, wrapper


class Components:
    """The model and all else of a training that is the same on all ranks.

    Attributes:
        model: The module without its wrappers.
        parts: Optimizer, scheduler and sampler, by these names.
        extra: Anything else, by name.
        gradients: The order in which DDP reduces gradients.
        sampler_knows: Whether the sampler's own state says how far it is.

    Raises:
        TypeError: Something has no state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Stateful | None,
        scheduler: Stateful | None,
        sampler: Any,
        extra: Mapping[str, Any],
    ) -> None:
        self.model, wrapper = _unwrapped(model)
        self.gradients = GradientOrder(wrapper)
        given = {"optimizer": optimizer, "scheduler": scheduler}
        self.parts = {part: stateful(part, thing) for part, thing in given.items() if thing is not None}
        self.sampler_knows = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
        if self.sampler_knows:
            self.parts["sampler"] = sampler
        self.extra = {key: stateful(f"extra[{key!r}]", thing) for key, thing in extra.items()}

    def share_gradient_order(self, peers: Peers) -> None:
        """Take rank 0's order of gradients on all ranks, after the first step. Collective."""
        self.gradients.end_recording()
        [self.gradients.known, *_] = peers.gather_json(self.gradients.known)

    def state(self) -> dict[str, Any]:
        """Return the state of everything but the model."""
        state: dict[str, Any] = {part: thing.state_dict() for part, thing in self.parts.items()}
        if self.extra:
            state["extra"] = {key: thing.state_dict() for key, thing in self.extra.items()}
        state["gradients"] = torch.tensor(self.gradients.known, dtype=torch.int64)
        return state

    def load(self, model: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Set the model's state and what :meth:`state` has returned."""
        tensors = OrderedDict(model)
        tensors._metadata = self.model.state_dict()._metadata  # type: ignore[attr-defined]  # versions of its parts
        self.model.load_state_dict(tensors)
        for part, thing in self.parts.items():
            thing.load_state_dict(rest[part])
        for key, thing in self.extra.items():
            thing.load_state_dict(rest["extra"][key])


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

        ``first`` says that nothing is lost yet: where the ranks differ, this raises UsageError, which names the places.
        Later on each rank keeps what it has, and rank 0 warns: a training that has come so far does not end for it.
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
        self._begins_anew: set[str] = set()  # loaders that were not restored, since the number of ranks has changed

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

        ``kept`` is what :meth:`by_rank` has returned; ``batches`` are the epoch's batches that are done, 0 between two
        epochs. Raises UsageError where there is none, or it is of another number of ranks.
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


def _apply(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class Generators:
    """The rank's random generators, and where they were when the epoch's loader began.

    Unless they are ``kept``, they do not belong to the state: :meth:`state` is None, and nothing is set.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._epoch: torch.Tensor | None = None
        """torch's generator when the epoch's loader began: it gives the loader's order and its workers' seeds."""
        self._pending: Mapping[str, Any] | None = None  # of a restored state, to be set when its loader has begun

    def state(self) -> dict[str, Any] | None:
        """Return where they are, and where they were when the epoch's loader began."""
        if not self._kept:
            return None
        now: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),
        }
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            now["cuda"] = torch.cuda.get_rng_state()
        return {"now": now, "epoch": self._epoch}

    def load(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state` has returned."""
        if self._kept:
            self._epoch, self._pending = state["epoch"], state["now"]
            _apply(state["now"])

    def reseed(self, run: str, *numbers: int) -> None:
        """Begin anew from a run's uid and other numbers; unlike ones give unlike sequences."""
        if self._kept:
            seeds = [number % 2**64 for number in (zlib.crc32(run.encode()), *numbers)]
            words = np.random.SeedSequence(seeds).generate_state(2, np.uint64).tolist()
            torch.manual_seed(words[0])  # every device's
            random.seed(words[1])
            np.random.seed(words[1] % 2**32)

    @contextlib.contextmanager
    def at_epoch_start(self, *, resumed: bool) -> Iterator[None]:
        """Make the iterator of the epoch's loader within this.

        The loader of an epoch that is resumed takes its seeds from where torch's generator was when the epoch began;
        after that the generators are set to where they were at the restored step.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            _apply(pending)
        if resumed and pending is not None and self._epoch is not None:
            torch.set_rng_state(self._epoch)
        else:
            self._epoch = torch.get_rng_state()
        yield
        if resumed and pending is not None:
            _apply(pending)
