"""The check ``allreduce``: as many processes as this node has workers add a tensor up over the loopback interface.

Over NCCL if there is a GPU for each, else over gloo. ``python -m elastic_health.allreduce WORKERS``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elastic_core.exit_codes import describe_exit
from elastic_health.output import answer

ELEMENTS = 1 << 16


def run_rank(rank: int, workers: int, store: Path, backend: str) -> str:
    """Take part in the all-reduce; return what is wrong, or ''."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    try:
        if backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=workers)
        tensor = torch.full((ELEMENTS,), float(rank + 1), device=device)
        dist.all_reduce(tensor)
        expected = workers * (workers + 1) / 2
        wrong = int((tensor != expected).sum())
        dist.destroy_process_group()
    except RuntimeError as exc:
        return f"rank {rank} of {workers} on {device}: {str(exc).splitlines()[0]}"
    return f"rank {rank} of {workers} on {device}: {wrong} of {ELEMENTS} sums are wrong" if wrong else ""


def findings(workers: int, command: Sequence[str] = (sys.executable, "-m", "elastic_health.allreduce")) -> list[str]:
    """Run all ranks; return what is wrong.

    Each rank is a process of its own, not a fork: a fork cannot use a GPU that its parent has looked at.
    """
    try:
        import torch
    except ImportError as exc:
        return [f"torch cannot be imported here: {exc}"]
    backend = "nccl" if 0 < workers <= torch.cuda.device_count() else "gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="elastic-allreduce-") as name, contextlib.ExitStack() as stack:
        directory, ranks = Path(name), dict[int, tuple[int, subprocess.Popen[bytes]]]()
        for rank in range(workers):
            arguments = [*command, str(workers), str(rank), name, backend]
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=2)
            stack.callback(process.wait)
            stack.callback(process.kill)  # first: the others would wait for one that has failed
            ranks[process.pid] = rank, process
        while ranks:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # which leaves it to its Popen
            assert ended is not None
            rank, process = ranks.pop(ended.si_pid)
            if code := process.wait():
                report = directory / f"{rank}.txt"
                text = report.read_text(encoding="utf-8") if report.is_file() else ""
                return [text or f"rank {rank} of {workers} {describe_exit(code)}"]
    return []


def main(arguments: Sequence[str]) -> int:
    """Run the check, or one rank of it: ``WORKERS [RANK DIRECTORY BACKEND]``. Return the exit code."""
    workers = int(arguments[0])
    if len(arguments) == 1:
        return answer(findings(workers))
    rank, directory = int(arguments[1]), Path(arguments[2])
    if wrong := run_rank(rank, workers, directory / "store", arguments[3]):
        (directory / f"{rank}.txt").write_text(wrong, encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
