"""Decides which snapshots an agent writes to disk when the job has failed for good, and publishes the results.

The bytes are written as they are (``rescue_files``). Nothing here imports torch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elastic_core.events import Event, Level
from elastic_torch.memory.rescue_files import Written, write
from elastic_torch.memory.snapshot_format import (
    RESCUE,
    KeptSnapshot,
    Request,
    is_of_other_release,
    note_in,
    request_in,
    snapshots_in,
)

if TYPE_CHECKING:
    from elastic_core.monitors import LeftMemory

PATIENCE_SECONDS = 300.0  # at most, for the writing


def rescue(left: LeftMemory) -> None:
    """Write the snapshots that exist only in memory to disk, and publish the result of each."""
    if names := unreadable(left.held):
        what = f"what workers have left in memory as {', '.join(names)} is lost: this agent's release does not read it"
        message = f"{what}. Use one release of Elastic for agents and workers"
        left.publish(Event("rescue_failed", message, Level.ERROR))
    for lost in unclaimed(left.held):
        message = (
            f"step {lost.stamp.step} was only in memory, and is lost with the job: the next run begins without it. "
            "Save checkpoints, with TrainState(disk=...), or set ELASTIC_RESCUE_DIR"
        )
        left.publish(Event("rescue_failed", message, Level.WARNING, {"step": lost.stamp.step}))
    every = [(request, worth_writing(request, snapshots(left.held, request.name))) for request in requests(left.held)]
    wanted = [(request, kept) for request, kept in every if kept]
    if not wanted:
        return
    size = sum(each.size for _, kept in wanted for each in kept)
    steps = ", ".join(str(kept[0].stamp.step) for _, kept in wanted)
    message = f"step {steps} is only in memory: writing {size / 2**20:.0f} MiB of snapshots"
    left.publish(Event("rescuing", f"{message}, {PATIENCE_SECONDS:.0f} s at most", fields={"bytes": size}))

    def write_all(stop: threading.Event) -> list[Written]:
        return [write(request, each, left.node, stop) for request, kept in wanted for each in kept]

    results, why = left.run(write_all, PATIENCE_SECONDS)
    for result in results:
        left.publish(result_event(result, why))


def requests(held: Mapping[str, int]) -> list[Request]:
    """Return the requests of workers, without invalid ones."""
    texts = {name: note_in(held[name]) for name in sorted(held) if name.endswith(f"/{RESCUE}")}
    found = (request_in(name.removesuffix(f"/{RESCUE}"), text) for name, text in texts.items())
    return [request for request in found if request is not None]


def unclaimed(held: Mapping[str, int]) -> list[KeptSnapshot]:
    """Return the newest snapshot of each state that no worker has asked to write."""
    names = {name.partition("/")[0] for name in held if f"{name.partition('/')[0]}/{RESCUE}" not in held}
    return [kept[0] for name in sorted(names) if (kept := snapshots(held, name))]


def unreadable(held: Mapping[str, int]) -> list[str]:
    """Return the names of invalid requests, and of snapshots in another release's format."""
    understood = {f"{request.name}/{RESCUE}" for request in requests(held)}
    asked_for = {name for name in held if name.endswith(f"/{RESCUE}")}
    return sorted({*(asked_for - understood), *(name for name, fd in held.items() if is_of_other_release(fd))})


def snapshots(held: Mapping[str, int], name: str) -> list[KeptSnapshot]:
    """Return the complete snapshots of a state, the newest first."""
    return snapshots_in(fd for key, fd in held.items() if key.startswith(f"{name}/"))


def worth_writing(request: Request, kept: Sequence[KeptSnapshot]) -> list[KeptSnapshot]:
    """Return the snapshots to write, the newest first: none if the disk has one that is as new. Pure.

    Of a sharded state, other nodes may only have parts of an older step, so all parts here are written, each once. A
    snapshot of round 0 was itself read from such a directory, where it still is.
    """
    fresh = [each for each in kept if each.stamp.round > 0 and (request.saved is None or each.stamp > request.saved)]
    if request.whole:
        return fresh[:1]
    return list({(each.stamp, each.rank, each.world): each for each in fresh}.values())


def result_event(result: Written, why: str) -> Event:
    """Return the event about a snapshot; ``why`` says why the writing was told to stop, '' if it was not."""
    kept, step = result.kept, result.kept.stamp.step
    part = "" if kept.rank is None else f" of rank {kept.rank} of {kept.world}"
    if result.path is None:
        message = f"the snapshot of step {step}{part} is lost: {result.why}" + (f" ({why})" if why else "")
        return Event("rescue_failed", message, Level.ERROR, {"step": step})
    message = (
        f"the snapshot of step {step}{part} is in {result.path} now; "
        "the next run of the same command goes on from there, if nothing newer is on disk"
    )
    return Event("rescued", message, fields={"step": step, "path": str(result.path), "bytes": kept.size})
