"""``elastic.init_process_group()``: torch's, from a worker's environment. torch is imported when it is called."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from elastic_core.errors import UsageError
from elastic_core.reporting import INITIALIZED, report


def init_process_group(backend: str | None = None, **options: Any) -> None:
    """Join the workers of this round, by ``torch.distributed.init_process_group`` with ``env://``.

    The agent is told when that is done, which counts as progress of the round.

    Args:
        backend: torch's name of it; nccl where this worker has a GPU, which becomes its current device, and gloo else.
        options: Passed on to torch.

    Raises:
        UsageError: This process is no worker of a launcher.
    """
    if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise UsageError(
            f"This process is no worker: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
            hint="Start the script with: elastic run SCRIPT",
        )
    torch: Any = import_module("torch")
    distributed: Any = import_module("torch.distributed")
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() and distributed.is_nccl_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    distributed.init_process_group(backend, init_method="env://", **options)
    report(INITIALIZED)
