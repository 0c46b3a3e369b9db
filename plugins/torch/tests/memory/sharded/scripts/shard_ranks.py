"""Ranks with sharded states: ``shard_ranks.py SCENE RANKS...``, one act for each number, over gloo.

In ``memory`` they keep parts, replicate them, and bring together what the act before has left; in ``disk`` they train
and save; in ``broken`` rank 0 cannot keep what it is sent. Every act's ranks are forked from this process, which has
imported torch once and holds the snapshots that they leave. What ranks ``say`` is printed as JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # DTensors import it when they are first made: once, and not by each rank
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from elastic_torch.disk import Disk
from elastic_torch.memory.buffers import Buffer, Snapshot
from elastic_torch.memory.sharded.dtensors import bring
from elastic_torch.memory.sharded.plan import HeldPart, every, partners
from elastic_torch.memory.sharded.replicator import Replicas, Replicator, held_parts
from elastic_torch.state.state_exchange import Peers, Transport
from elastic_torch.state.state_tree import put_together, take_apart
from elastic_torch.state.train_state import TrainState
from elastic_torch.version import Stamp

ROWS, COLUMNS = torch.arange(77.0).reshape(7, 11), torch.arange(60.0).reshape(5, 12)
ROOM = 1 << 18


def say(rank: int, **facts: Any) -> None:
    """Print a JSON line."""
    os.write(1, (json.dumps({"rank": rank, **facts}) + "\n").encode())


def layout(world: int) -> tuple[DeviceMesh, list[Placement]]:
    """One dimension; or two, of which the first replicates, where there are four ranks."""
    if world == 4:
        return init_device_mesh("cpu", (2, 2)), [Replicate()]
    return init_device_mesh("cpu", (world,)), []


def state_of(world: int, scale: float) -> dict[str, Any]:
    """Sharded by rows, by columns and not at all, a tensor that all have in full, and what is no tensor."""
    mesh, outer = layout(world)
    return {
        "rows": distribute_tensor(ROWS * scale, mesh, [*outer, Shard(0)]),
        "columns": distribute_tensor(COLUMNS * scale, mesh, [*outer, Shard(1)]),
        "all": distribute_tensor(COLUMNS * scale, mesh, [*outer, Replicate()]),
        "scalar": distribute_tensor(torch.tensor(scale), mesh, [*outer, Replicate()]),
        "half": distribute_tensor((ROWS * scale).bfloat16(), mesh, [*outer, Shard(0)]),
        "plain": torch.full((3,), scale),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 2),
        "number": scale,
    }


def equal(state: dict[str, Any], scale: float) -> bool:
    """Return True if it is the state of this scale, on all ranks."""
    whole = {"rows": ROWS, "columns": COLUMNS, "all": COLUMNS, "scalar": torch.tensor(1.0), "momentum": ROWS}
    same = [torch.equal(state[key].full_tensor(), tensor * scale) for key, tensor in whole.items() if key in state]
    half = torch.equal(state["half"].full_tensor(), (ROWS * scale).bfloat16())
    plain = torch.equal(state["plain"], torch.full((3,), scale)) and state["flags"].tolist() == [True, False]
    return all(same) and half and plain and state["number"] == scale and state["empty"].shape == (0, 2)


def go_on(rank: int, world: int, act: int, before: list[Buffer]) -> None:
    """Put together what the act before has left, where each part is with one rank or two."""
    transport = Transport()
    mine: dict[HeldPart, Snapshot] = {}
    for old, buffer in enumerate(before):
        found = buffer.read()
        assert found is not None
        if rank in {old % world, (old + act) % world}:
            mine |= held_parts([found])
    everybodys = Peers().gather_json([[h.stamp.round, h.stamp.step, h.rank, h.world] for h in mine])
    [state] = every([[HeldPart(Stamp(*row[:2]), *row[2:]) for row in each] for each in everybodys])
    present: dict[str, DTensor] = {}
    take_apart(state_of(world, -1.0), present)
    owner = {"state['momentum']": present["state['rows']"]}
    brought = bring(transport, state, {h.rank: found for h, found in mine.items()}, present, owner)
    result = put_together(brought.said, brought.plain.__getitem__, brought.shards.__getitem__)
    result["momentum"] = result["momentum"]["of"]
    in_place = result["rows"] is present["state['rows']"]
    say(rank, act=act, equal=equal(result, float(act)), whole=brought.whole, exact=brought.exact, in_place=in_place)
    transport.close()


def play_an_agent() -> None:
    """Have all buffers kept, as if an agent did so."""
    patch("elastic_torch.memory.buffers.open_channel", return_value=nullcontext(True)).start()
    patch("elastic_torch.memory.buffers.hold", return_value=True).start()


def replicate(rank: int, world: int, act: int, buffer: Buffer) -> None:
    """Each rank's part to its partner; all ranks of an act are nodes of their own."""
    play_an_agent()
    kept = Replicas("test", rank)
    partner = [to for to in partners(range(world)) if to is not None]
    sender = Replicator(Transport(), partner, kept, lambda _stamp: buffer, None)
    found = buffer.read()
    assert found is not None
    sender.offer(found.stamp)
    sender.offer_last(None)  # one that has none: nothing is replicated, and no rank waits for ever
    sender.close()
    [(its, copy)] = kept.holdings().items()
    say(rank, act=act, replicated=sender.replicated == found.stamp, whose=its.rank, bytes=len(copy.views))


def fail_to_replicate(rank: int, world: int, buffer: Buffer) -> None:
    """Rank 0's thread ends by an unforeseen error, while the others wait for its word."""
    play_an_agent()
    if rank == 0:
        patch.object(Buffer, "finish", side_effect=OSError(5, "Input/output error")).start()
    said, tensors = take_apart(state_of(world, 1.0), {})
    assert buffer.write(Stamp(0, 1), {"rank": rank, "world": world, "tree": said}, tensors)
    partner = [to for to in partners(range(world)) if to is not None]
    sender = Replicator(Transport(), partner, Replicas("test", rank), lambda _stamp: buffer, None)
    sender.offer(Stamp(0, 1))
    sender.close()
    sender.offer(Stamp(0, 1))  # which no rank takes any more
    sender.close()
    say(rank, replicated=sender.replicated is not None)


def train(rank: int, world: int, act: int, folder: Path) -> None:
    """Two more steps with FSDP2, each of which is saved, from where the act before was."""
    os.environ.update(ELASTIC_RUN_UID="run", ELASTIC_ROUND=str(act + 1))
    torch.manual_seed(act)
    model = nn.Sequential(nn.Linear(7, 11), nn.BatchNorm1d(11), nn.Linear(11, 5))
    model.register_parameter("unused", nn.Parameter(torch.rand(3)))
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.05)
    rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("2.")]
    other = torch.optim.SGD(rest, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with Disk(folder / "disk", interval=1) as disk:
        state = TrainState(model=model, optimizer=optimizer, scheduler=scheduler, extra={"other": other}, disk=disk)
        restored = state.restore()
        say(rank, act=act, tier=restored and restored.tier.value, step=state.step, began=whole(model, optimizer, other))
        for _ in range(2):
            model.zero_grad()
            model(torch.randn(4, 7)).square().mean().backward()
            optimizer.step()
            other.step()
            scheduler.step()
            state.commit()
        say(rank, act=act, ended=whole(model, optimizer, other), lr=optimizer.param_groups[0]["lr"])


def whole(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[Any]:
    """The sharded tensors of all, put together, as numbers."""
    kept = [optimizer.state_dict()["state"] for optimizer in optimizers]
    states = [state for its in kept for _, state in sorted(its.items())]
    tensors = [*model.parameters(), *(state[key] for state in states for key in sorted(state))]
    return [(t.full_tensor() if isinstance(t, DTensor) else t).tolist() for t in tensors if t is not None]


def remember(rank: int, world: int, act: int, before: list[Buffer], after: list[Buffer]) -> None:
    """Put together what the act before has left, and leave one's part and its replica, in many small messages."""
    patch("elastic_torch.state.state_exchange.PART", 100).start()
    patch("elastic_torch.memory.sharded.dtensors.PART", 200).start()
    if before:
        go_on(rank, world, act, before)
    state = state_of(world, float(act + 1))
    state["momentum"] = {"of": state["rows"] + 0}
    said, tensors = take_apart(state, {})
    assert after[rank].write(Stamp(act, 1), {"rank": rank, "world": world, "tree": said}, tensors)
    if world > 1:
        replicate(rank, world, act, after[rank])


def main() -> None:
    """Play all acts."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    scene, worlds = sys.argv[1], [int(argument) for argument in sys.argv[2:]]
    before: list[Buffer] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for act, world in enumerate(worlds):
            after = [Buffer.sized(f"{act}/{rank}", ROOM) for rank in range(world)]
            children = []
            for rank in range(world):
                pid = os.fork()
                if pid == 0:
                    try:
                        meeting = f"file://{folder}/{act}"
                        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
                        if scene == "memory":
                            remember(rank, world, act, before, after)
                        elif scene == "broken":
                            fail_to_replicate(rank, world, after[rank])
                        else:
                            train(rank, world, act, folder)
                        dist.destroy_process_group()
                    except BaseException:
                        traceback.print_exc()
                        os._exit(1)
                    os._exit(0)
                children.append(pid)
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
            assert codes == [0] * world, codes
            before = after


if __name__ == "__main__":
    main()
