"""Writes snapshots that are only in memory to a directory, when a job or its agent fails for good.

Workers leave snapshots with their agent as memory files (``fd_store.py``), which are gone with the agent. To have them
written, a worker leaves one more memory file, ``NAME/rescue``, with JSON in it: the run, the directories to try in
turn, and what is on disk already. The agent writes the bytes as they are (``snapshot_files.py``).
``elastic_core.worker.fd_store`` says how a snapshot begins; only the library that wrote it knows the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from elastic_core.agent.event_loop import EventLoop, SignalReceived
from elastic_core.agent.report import Ending, Publish
from elastic_core.agent.resources import Resources
from elastic_core.agent.snapshot_files import Kept, Request, Target, Unwritten, Written, kept_in, write
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name
from elastic_core.protocol.entries import Closed
from elastic_core.threads import asked
from elastic_core.worker.fd_store import RESCUE, is_of_other_format

PATIENCE = 300.0  # most seconds that an agent spends on writing snapshots
_ABORTING = 5.0  # seconds that the writer gets to remove partial files, once it was told to stop
_LARGEST_REQUEST = 1 << 16
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_OVERDUE = object()  # an event: the writer has taken too long


class Agent(Protocol):
    """The loop of one node, with or without a ledger."""

    @property
    def closed(self) -> Closed | None:
        """The verdict on the job; None if there is none."""

    def leaves_others(self) -> bool:
        """Return whether other members of the newest round are still in the job, as far as this node knows."""

    def run(self) -> Ending:
        """Run the loop until the node's part in the job ends."""

    def close(self) -> None:
        """End the workers, and this node's part in the job."""


def run(agent: Agent, resources: Resources) -> Ending:
    """Run an agent to its end, close it, and write its snapshots to disk if no other node continues from them.

    They are also written if the agent raises an :class:`Exception`, since all other nodes may fail in the same way.
    Other exceptions, such as KeyboardInterrupt, stop this node only. The caller closes ``resources`` afterwards.
    """
    ending, failed, publish = None, False, resources.publish
    try:
        with closing(agent):
            ending = agent.run()
        return ending
    except Exception:
        failed = ending is None
        raise
    finally:
        held = resources.fd_store.held
        try:
            if held and is_needed(ending, agent.closed, agent.leaves_others, failed=failed):
                rescue(held, resources.signals, publish, str(resources.info), agent_loop=resources.loop)
        except Exception as error:  # must not replace the agent's own ending or exception
            names = ", ".join(sorted({name.partition("/")[0] for name in held}))
            message = f"what workers have left in memory as {names} is lost: writing it failed with {error!r}"
            publish(Event("rescue_failed", message, Level.ERROR))


def rescue(
    held: Mapping[str, int],
    signals: Iterable[int],
    publish: Publish,
    node: str,
    patience: float = PATIENCE,
    *,
    agent_loop: EventLoop | None = None,
) -> None:
    """Write the snapshots that exist only in memory to disk, and publish the result of each.

    No worker may run any more. Call it in the main thread: it installs signal handlers.

    Args:
        held: The descriptors that workers have left, by name.
        signals: The signals that end the writing.
        patience: Most seconds that it may take.
        agent_loop: If it has received a signal that the agent has not taken, nothing is written.
    """
    if names := unreadable(held):
        what = f"what workers have left in memory as {', '.join(names)} is lost: this agent's release does not read it"
        message = f"{what}. Use one release of Elastic for agents and workers"
        publish(Event("rescue_failed", message, Level.ERROR))
    for lost in unasked(held):
        message = (
            f"step {lost.step} was only in memory, and is lost with the job: the next run begins without it. Save "
            "checkpoints, with TrainState(disk=...), or set ELASTIC_RESCUE_DIR"
        )
        publish(Event("rescue_failed", message, Level.WARNING, {"step": lost.step}))
    wanted = [(request, kept) for request in requests(held) if (kept := worth(request, snapshots(held, request.name)))]
    if not wanted:
        return
    size = sum(each.size for _, kept in wanted for each in kept)
    steps = ", ".join(str(kept[0].step) for _, kept in wanted)
    message = f"step {steps} is only in memory: writing {size / 2**20:.0f} MiB of snapshots, {patience:.0f} s at most"
    stop = threading.Event()
    with closing(EventLoop(signals)) as loop:  # a new one: the defect that ended the agent may be in its loop
        if agent_loop is not None and (early := agent_loop.untaken_signals()):
            why = f"the agent received {signal_name(early[0].signum)} before it could write it"
            for _, kept in wanted:
                for each in kept:
                    publish(_told(Unwritten(each, why), ""))
            return
        publish(Event("rescuing", message, fields={"bytes": size}))
        outcome = asked(partial(_write_all, wanted, node, stop), name="elastic-rescue")
        why = _await(outcome, loop, stop, patience)
    if not outcome.done():
        publish(Event("rescue_failed", f"the snapshots are lost: {why}, and the disk does not answer", Level.ERROR))
        return
    if (error := outcome.exception()) is not None:
        publish(Event("rescue_failed", f"the snapshots are lost: {error!r}", Level.ERROR))
        return
    for result in outcome.result():
        publish(_told(result, why))


def is_needed(
    ending: Ending | None, closed: Closed | None, leaves_others: Callable[[], bool], *, failed: bool = False
) -> bool:
    """Return whether no other node continues from the snapshots of this node.

    Args:
        ending: How the agent ended; None if it raised.
        closed: The verdict on the job, if there is one.
        leaves_others: Whether other nodes, which have the state too, stay in the job; called only if that matters.
        failed: Whether the agent raised because of a defect, and not because it was told to stop.
    """
    # After STORE_LOST the node joins another run, which has only the checkpoints on disk.
    if ending is not None and ending.rejoin and ending.exit_code != ExitCode.STORE_LOST:
        return False
    if closed is not None:
        return not closed.success
    return failed or (ending is not None and ending.exit_code == ExitCode.STORE_LOST) or not leaves_others()


def requests(held: Mapping[str, int]) -> list[Request]:
    """Return the requests of workers, without invalid ones."""
    found = []
    for name, fd in sorted(held.items()):
        if name.endswith(f"/{RESCUE}"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                found.append(_request(name.removesuffix(f"/{RESCUE}"), os.pread(fd, _LARGEST_REQUEST, 0)))
    return found


def unasked(held: Mapping[str, int]) -> list[Kept]:
    """Return the newest snapshot of each state that no worker has asked to write."""
    names = {name.partition("/")[0] for name in held if f"{name.partition('/')[0]}/{RESCUE}" not in held}
    return [kept[0] for name in sorted(names) if (kept := snapshots(held, name))]


def unreadable(held: Mapping[str, int]) -> list[str]:
    """Return the names of invalid requests, and of snapshots in another release's format."""
    understood = {f"{request.name}/{RESCUE}" for request in requests(held)}
    asked_for = {name for name in held if name.endswith(f"/{RESCUE}")}
    return sorted({*(asked_for - understood), *(name for name, fd in held.items() if is_of_other_format(fd))})


def snapshots(held: Mapping[str, int], name: str) -> list[Kept]:
    """Return the complete snapshots of a state, the newest first."""
    fds = [fd for key, fd in held.items() if key.startswith(f"{name}/")]
    return sorted(filter(None, map(kept_in, fds)), key=lambda kept: kept.stamp, reverse=True)


def worth(request: Request, kept: Sequence[Kept]) -> list[Kept]:
    """Return the snapshots to write, the newest first: none if the disk has one that is as new. Pure.

    Of a sharded state, other nodes may only have parts of an older step, so all parts here are written, each once. A
    snapshot of round 0 was itself read from such a directory, where it still is.
    """
    fresh = [each for each in kept if each.round > 0 and (request.saved is None or each.stamp > request.saved)]
    if request.whole:
        return fresh[:1]
    return list({(each.stamp, each.rank, each.world): each for each in fresh}.values())


def _write_all(
    wanted: Sequence[tuple[Request, Sequence[Kept]]], node: str, stop: threading.Event
) -> list[Written | Unwritten]:
    return [write(request, each, node, stop) for request, kept in wanted for each in kept]


def _await(outcome: Future[Any], loop: EventLoop, stop: threading.Event, patience: float) -> str:
    """Wait for the writer; return why it was told to stop, '' if it was not."""
    outcome.add_done_callback(loop.post)  # wakes the loop
    loop.at(time.monotonic() + patience, _OVERDUE)
    why = ""
    while not outcome.done():
        for event in loop.take():
            if event is _OVERDUE and why:
                return why
            if event is _OVERDUE:
                why = f"writing them has taken {patience:.0f} s"
            elif isinstance(event, SignalReceived) and not why:
                why = f"the agent received {signal_name(event.signum)}"
            else:
                continue
            stop.set()
            loop.at(time.monotonic() + _ABORTING, _OVERDUE)
    return why


def _told(result: Written | Unwritten, why: str) -> Event:
    kept = result.kept
    part = "" if kept.rank is None else f" of rank {kept.rank} of {kept.world}"
    if isinstance(result, Written):
        message = (
            f"the snapshot of step {kept.step}{part} is in {result.path} now; "
            "the next run of the same command goes on from there, if nothing newer is on disk"
        )
        return Event("rescued", message, fields={"step": kept.step, "path": str(result.path), "bytes": kept.size})
    message = f"the snapshot of step {kept.step}{part} is lost: {result.why}" + (f" ({why})" if why else "")
    return Event("rescue_failed", message, Level.ERROR, {"step": kept.step})


def _request(name: str, data: bytes) -> Request:
    body = json.loads(data.rstrip(b"\0"))
    run = str(body["run"])
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(run) and run.strip(".")):
        raise ValueError("it is to name a file and a folder")
    targets = tuple(Target(Path(entry["path"]), bool(entry["spare"])) for entry in body["directories"])
    saved = None
    if body["saved"] is not None:
        round_, step = map(int, body["saved"])
        saved = (round_, step)
    return Request(name, run, bool(body["whole"]), body["base"], saved, targets)
