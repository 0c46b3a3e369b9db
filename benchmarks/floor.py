"""The floor: what a launcher could reach that did nothing but import torch once and fork.

A process imports torch, forks two children that all-reduce, kills one, and forks both anew as soon as it is gone. There
is no rendezvous, no store but rank 0's, no supervision. Run as a script it does that once, and prints its times.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback

IMPORT, FORK, RECOVERY = "start to `import torch`", "fork to all-reduce, two workers", "kill to all-reduce, two workers"
FIGURES = (IMPORT, FORK, RECOVERY)


def measure() -> dict[str, float]:
    """Seconds of each figure, in a process of its own."""
    command = [sys.executable, __file__, str(time.monotonic())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def train(rank: int, listener: socket.socket, done: int) -> None:
    """Run a worker: all-reduce until a peer is gone, and tell when the first all-reduce is done."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    host, port = listener.getsockname()
    # Both may connect at once, since the parent listens already.
    fd = listener.detach() if rank == 0 else None
    store = TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, master_listen_fd=fd, use_libuv=True)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    numbers = torch.ones(1)
    dist.all_reduce(numbers)
    os.write(done, f"{time.monotonic()}\n".encode())
    with contextlib.suppress(RuntimeError):  # the other one is killed first
        while True:
            dist.all_reduce(numbers)


def start() -> tuple[list[int], float]:
    """Fork both workers; their process ids, and when the last of them has all-reduced."""
    receiver, sender = os.pipe()
    pids = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for rank in range(2):
            if (pid := os.fork()) == 0:
                try:
                    train(rank, listener, sender)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            pids.append(pid)
    os.close(sender)
    with open(receiver) as lines:
        return pids, max(float(lines.readline()) for _ in pids)


def end(pids: list[int]) -> None:
    """Kill the first, learn of it, kill the rest, and reap all."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    """Measure once; the argument is when this process was started."""
    begin = float(sys.argv[1])
    importlib.import_module("torch.distributed")
    imported = time.monotonic()
    pids, up = start()
    killed = time.monotonic()
    end(pids[::-1])
    again, up_again = start()
    end(again)
    print(json.dumps({IMPORT: imported - begin, FORK: up - imported, RECOVERY: up_again - killed}))


if __name__ == "__main__":
    main()
