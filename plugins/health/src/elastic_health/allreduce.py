"""The check ``allreduce``: as many processes as this node has workers add a tensor up over the loopback interface.

Over NCCL if there is a GPU for each, else over gloo. ``python -m elastic_health.allreduce WORKERS``.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from elastic_core.exit_codes import describe_exit
from elastic_health.answer import answer

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


def findings(workers: int) -> list[str]:
    """Run all ranks; return what is wrong."""
    try:
        import torch
    except ImportError as exc:
        return [f"torch cannot be imported here: {exc}"]
    backend = "nccl" if 0 < workers <= torch.cuda.device_count() else "gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="elastic-allreduce-") as name:
        directory, ranks = Path(name), dict[int, int]()
        for rank in range(workers):
            if not (pid := os.fork()):
                wrong = run_rank(rank, workers, directory / "store", backend)
                if wrong:
                    (directory / f"{rank}.txt").write_text(wrong, encoding="utf-8")
                os._exit(bool(wrong))
            ranks[pid] = rank
        found = []
        while ranks:
            pid, status = os.wait()
            rank, code = ranks.pop(pid), os.waitstatus_to_exitcode(status)
            if not code:
                continue
            told = directory / f"{rank}.txt"
            text = told.read_text(encoding="utf-8") if told.is_file() else ""
            found.append(text or f"rank {rank} of {workers} {describe_exit(code)}")
            for other in ranks:  # they would wait for it
                os.kill(other, signal.SIGKILL)
            break
        for pid in ranks:
            os.waitpid(pid, 0)
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(answer(findings(int(sys.argv[1]))))
