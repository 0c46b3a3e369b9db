"""Plays scenes with several ranks over gloo. Each line of stdin is a JSON list: a folder, a scene, and the number of
ranks of each act.

A scene is a function, which each rank calls in each act. Every scene is a process that is forked from this one, which
imports torch once, and the ranks are forked from that process. What ranks ``say`` are JSON lines in the file ``said``
of the folder; ``log`` has their stderr. A line on stdout, the exit code, tells that a scene is over.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from elastic_torch.disk import CheckpointError, Disk
from elastic_torch.disk.storage import LocalStorage


class Rig:
    """The parameters of a scene: its folder, the act (from 0), and this rank."""

    def __init__(self, folder: Path, act: int, rank: int, world: int) -> None:
        self.folder, self.act, self.rank, self.world = folder, act, rank, world
        self.environ = {"ELASTIC_RUN_UID": "abc", "ELASTIC_ROUND": str(act + 1)}

    def say(self, **facts: Any) -> None:
        """Print a JSON line."""
        os.write(1, (json.dumps({"act": self.act, "rank": self.rank, **facts}) + "\n").encode())

    def open(self, directory: Path, **options: Any) -> Disk:
        """A Disk of this act's round."""
        return Disk(directory, environ=self.environ, **options)


FULL = torch.arange(70, dtype=torch.float32).reshape(7, 10)


def sharded(scale: float) -> dict[str, Any]:
    """A state dict of which each rank has a shard."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"weight": distribute_tensor(FULL * scale, mesh, [Shard(0)]), "bias": FULL[0] * scale, "step": int(scale)}


def resharding(rig: Rig) -> None:
    """Sharded state, saved by some ranks and loaded by others."""
    with rig.open(rig.folder / "shared") as disk:
        state = sharded(0)
        loaded = disk.load(into=state)
        weight = state["weight"]
        assert isinstance(weight, DTensor)
        before = rig.act
        equal = torch.equal(weight.full_tensor(), FULL * before) and torch.equal(state["bias"], FULL[0] * before)
        rig.say(loaded=loaded and loaded.checkpoint.step, equal=equal, step=state["step"])
        disk.save(sharded(rig.act + 1), rig.act + 1).result()


def local_directories(rig: Rig) -> None:
    """Each node has its own directory; a node that is new gets what the others have."""
    node = rig.folder / f"act-{rig.act}-nodes"
    names = (node / str(rig.rank)).read_text()
    with rig.open(rig.folder / names) as disk:
        loaded = disk.load()
        equal = loaded is not None and torch.equal(loaded.state["weight"], FULL * loaded.checkpoint.step)
        there = sorted(path.name[-3:] for path in (rig.folder / names).glob("run-*"))
        damage = [str(item) for item in loaded.damage] if loaded else []
        rig.say(loaded=loaded and loaded.checkpoint.step, equal=equal, there=there, damage=damage)
        step = (loaded.checkpoint.step if loaded else 0) + 1
        disk.save({"weight": FULL * step, "step": step}, step).result()


def scattered(rig: Rig) -> None:
    """Each node has its own directory, and each rank its shard."""
    order = (rig.folder / f"act-{rig.act}-nodes" / str(rig.rank)).read_text()
    with rig.open(rig.folder / order) as disk:
        state = sharded(0)
        loaded = disk.load(into=state)
        step = loaded.checkpoint.step if loaded else 0
        rig.say(loaded=step, equal=torch.equal(state["weight"].full_tensor(), FULL * step))
        disk.save(sharded(step + 1), step + 1).result()


def one_rank_fails(rig: Rig) -> None:
    """An error on one rank is an error on all, and the next save works."""
    with rig.open(rig.folder / "shared") as disk:
        disk.save(sharded(1), 1).result()
        real = os.write
        if rig.rank == 1:

            def full(descriptor: int, data: Any) -> int:
                if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".distcp"):
                    raise OSError(28, os.strerror(28))
                return real(descriptor, data)

            os.write = full
        try:
            disk.save(sharded(2), 2).result()
            error = None
        except CheckpointError as raised:
            error = str(raised)
        os.write = real
        disk.save(sharded(3), 3).result()
        newest = disk.newest()
        rig.say(error=error, newest=newest and newest.step, left=os.listdir(rig.folder / "shared"))


def without_a_group(rig: Rig) -> None:
    """All ranks save to one path at once, though they do not know of each other."""
    start = dist.FileStore(f"{rig.folder}/start", rig.world)  # type: ignore[attr-defined]  # it is public, its stub says otherwise
    start.set(str(rig.rank), "")
    start.wait([str(rank) for rank in range(rig.world)])
    with rig.open(rig.folder / "shared") as disk:
        try:
            disk.save({"weight": FULL * rig.rank, "rank": rig.rank}, 1).result()
            rig.say(error=None)
        except CheckpointError as error:
            rig.say(error=str(error))


def schedule(rig: Rig) -> None:
    """All ranks hear the same of when a checkpoint is due, though they count different clocks."""
    with rig.open(rig.folder / "shared", interval="auto", mean_time_between_failures=1e-9) as disk:
        due = []
        for step in range(1, 60):
            if disk.due(step):
                due.append(step)
                disk.save({"weight": FULL}, step).result()
        rig.say(due=due)


def unreadable(rig: Rig) -> None:
    """A first run saves; in later acts other runs load, and reads of what is there fail as the file ``reads`` says.

    That has the error's number, the number of reads of each file that go well before it, and the ranks that it meets.
    """
    how = json.loads((rig.folder / f"act-{rig.act}-reads").read_text())
    code, good = how["code"], how["good"]
    node = rig.folder / (f"node-{rig.rank}" if how["local"] else "shared")
    real, seen = LocalStorage.read, dict[str, int]()
    bad = {path.stat().st_ino for path in node.glob("run-*/*")} if rig.rank in how["ranks"] else set()

    def read(self: LocalStorage, path: str, *, checked: bool = False) -> IO[bytes]:
        seen[path] = seen.get(path, 0) + 1
        if path.startswith("run-") and seen[path] > good and os.stat(self.path(path)).st_ino in bad:
            raise OSError(code, os.strerror(code), path)
        return real(self, path, checked=checked)

    LocalStorage.read = read  # type: ignore[method-assign]
    rig.environ = {"ELASTIC_RUN_UID": f"run{rig.act}", "ELASTIC_ROUND": "1"}
    with rig.open(node, read_timeout=0, keep=1 if rig.act else 9) as disk:
        try:
            loaded = disk.load()
            equal = loaded is None or torch.equal(loaded.state["weight"], FULL * loaded.checkpoint.step)
            rig.say(loaded=loaded and loaded.checkpoint.step, equal=equal, error=None, kind=None)
        except CheckpointError as error:
            rig.say(loaded=None, equal=True, error=str(error), kind=type(error).__name__)
            return
        for step in how["save"]:
            disk.save({"weight": FULL * step}, step).result()


def hangs(rig: Rig) -> None:
    """All ranks wait for what does not come."""
    print("waits for ever", file=sys.stderr, flush=True)
    signal.pause()


_SCENES = resharding, local_directories, scattered, one_rank_fails, without_a_group, schedule, unreadable, hangs
SCENES: dict[str, Callable[[Rig], None]] = {scene.__name__: scene for scene in _SCENES}


def play(scene: Callable[[Rig], None], rig: Rig) -> None:
    """One rank of one act."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if scene is not without_a_group:
        meeting = f"file://{rig.folder}/meeting-{rig.act}"
        dist.init_process_group("gloo", init_method=meeting, rank=rig.rank, world_size=rig.world)
    scene(rig)
    if dist.is_initialized():
        dist.destroy_process_group()


def perform(folder: Path, scene: Callable[[Rig], None], worlds: list[int]) -> None:
    """Play a scene, whose ranks print into the files of its folder."""
    for descriptor, name in ((1, "said"), (2, "log")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), descriptor)
    for act, world in enumerate(worlds):
        ranks = [forked(partial(play, scene, Rig(folder, act, rank, world))) for rank in range(world)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        assert codes == [0] * world, codes


def forked(body: Callable[[], None]) -> int:
    """Start a process that exits with 1 if ``body`` raises, else with 0; return its pid."""
    if pid := os.fork():
        return pid
    try:
        body()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Play the scenes that stdin tells."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    for line in sys.stdin:
        folder, scene, worlds = json.loads(line)
        pid = forked(partial(perform, Path(folder), SCENES[scene], worlds))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
