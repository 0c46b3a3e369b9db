"""Wrappers that shard a loader once more, after the elastic sampler: Accelerate's, Lightning's, torch's sampler.

The elastic sampler gives each rank its part. Of that, a wrapper that takes every W-th batch leaves the others to be
trained on by no rank, and no rank notices. It is found in two ways: by the attributes that lead from a loader to the
sampler, and, when the first batch of an epoch is drawn, by the objects that are drawing. Frameworks are known by the
names of their classes (accelerate 1.15, lightning 2.6, transformers 5.24), so none is imported.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from elastic_core.errors import UsageError

SHARDERS = frozenset({"BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher"})
"""Classes that hand each process a part of what they draw, where there is more than one."""
MOST_OBJECTS, MOST_ITEMS, MOST_FRAMES = 1000, 32, 200  # the depth of the search

_Goal = Callable[[object], bool]


def processes(thing: object) -> int:
    """Return among how many processes an object of ``SHARDERS`` shares out what it draws; 1 for any other."""
    if SHARDERS.isdisjoint(each.__name__ for each in type(thing).__mro__):
        return 1
    attributes = _attributes(thing)
    counted = attributes.get("num_processes", getattr(attributes.get("state"), "num_processes", 1))
    return counted if isinstance(counted, int) else 1


def found_in(loader: object, goal: _Goal) -> list[object]:
    """Return the objects of one kind from which a loader may draw, at whatever depth."""
    return [thing for thing in _objects(loader, goal, past_sharders=True) if goal(thing)]


def refuse_loader(loader: object, goal: _Goal) -> None:
    """Refuse, by UsageError, a loader all of whose ways to the elastic sampler lead through what shards again."""
    if not _leads(loader, goal, past_sharders=False):
        for seen in _objects(loader, goal, past_sharders=True):
            if _leads(seen, goal):
                _refuse(seen, goal)


def refuse_callers(goal: _Goal) -> None:
    """Refuse, by UsageError, that an object shards again whose method called this: it is drawing right now."""
    frame = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        code = frame.f_code
        if "self" in code.co_varnames[:1] or "self" in code.co_freevars:
            _refuse(frame.f_locals.get("self"), goal)
        if frame.f_back is None:
            return
        frame = frame.f_back


def package_of(thing: object) -> str:
    """Return the package in which the class of an object is."""
    return type(thing).__module__.partition(".")[0]


def _refuse(thing: object, goal: _Goal) -> None:
    """Refuse an object that shards what it draws from the sampler."""
    ranks = processes(thing)
    if isinstance(thing, DistributedSampler):
        attributes = _attributes(thing)
        # torch's takes every W-th place of its dataset. One that has the sampler elsewhere draws in a way of its own.
        if _leads(attributes.get("dataset"), goal):
            ranks = attributes.get("num_replicas", 1)
    if ranks <= 1:
        return
    by, package = type(thing).__name__, package_of(thing)
    what = (
        f"The loader of the ElasticDistributedSampler is sharded once more, by {by} of {package} among {ranks} ranks: "
        f"the sampler gives each rank its part already, and {ranks - 1} of {ranks} samples would be used by none."
    )
    hints = {
        "accelerate": "Leave the loader out of accelerator.prepare(...), and move batches with "
        "batch.to(accelerator.device).",
        "lightning": "Give use_distributed_sampler=False, to Trainer(...) or fabric.setup_dataloaders(...).",
        "transformers": "Return the loader from get_train_dataloader() without accelerator.prepare(...).",
    }
    hints |= dict.fromkeys(("lightning_fabric", "pytorch_lightning"), hints["lightning"])
    raise UsageError(what, hint=hints.get(package, f"Take {by} away: the loader is to draw from the sampler itself."))


def _leads(root: object, goal: _Goal, *, past_sharders: bool = True) -> bool:
    """Return True if an object may draw from one that is looked for."""
    return any(goal(thing) for thing in _objects(root, goal, past_sharders=past_sharders))


def _objects(root: object, goal: _Goal, *, past_sharders: bool) -> Iterator[object]:
    """Yield an object, and those it may draw from, the nearest first, as far as what is looked for."""
    waiting, known = deque([root]), {id(root)}
    while waiting and len(known) < MOST_OBJECTS:
        thing = waiting.popleft()
        yield thing
        for child in () if goal(thing) else _sources(thing, past_sharders=past_sharders):
            if id(child) not in known:
                known.add(id(child))
                waiting.append(child)


def _sources(thing: object, *, past_sharders: bool) -> Iterator[object]:
    """Yield what an object may draw from: loaders, samplers, and whatever can be iterated or indexed."""
    if isinstance(thing, list | tuple | dict):
        if len(thing) <= MOST_ITEMS:
            yield from filter(_draws, thing.values() if isinstance(thing, dict) else thing)
        return
    if not past_sharders and processes(thing) > 1:
        return
    attributes = _attributes(thing)
    indexed = isinstance(thing, DataLoader) and not isinstance(attributes.get("dataset"), IterableDataset)
    again = isinstance(thing, DistributedSampler) and not past_sharders
    for name, value in attributes.items():
        if name == "dataset" and (indexed or again):
            continue
        if _draws(value) or (("loader" in name or "sampler" in name) and not isinstance(value, _NO_SOURCES)):
            yield value


_NO_SOURCES = (str, bytes, int, float, type(None), type, torch.Tensor, torch.nn.Module, np.ndarray)


def _draws(value: object) -> bool:
    kind = type(value)
    if isinstance(value, _NO_SOURCES):
        return False
    return (
        isinstance(value, Sampler | Dataset | DataLoader) or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    )


def _attributes(thing: object) -> dict[str, Any]:
    """Return the attributes that an object itself has, without asking its class for any."""
    found = dict(vars(thing)) if hasattr(thing, "__dict__") else {}
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in found and (member := kind.__dict__.get(name)) is not None:
                with contextlib.suppress(AttributeError):  # it is not set
                    found[name] = member.__get__(thing)
    return found
