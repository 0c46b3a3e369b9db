"""What ``--nproc_per_node auto|cpu|gpu|xpu`` counts, and which GPU ``--virtual_local_rank`` gives to whom.

torchrun asks torch, which has to be imported and looks at its own build: a CPU build counts no GPU. Here the machine
is asked, so the number is the same whatever is installed. ``auto`` takes GPUs, else Intel's, else CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_core.errors import UsageError
from elastic_core.machine.reading import Gpu, Machine

CUDA, HIP, ROCR, INTEL = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"


def local_world_size(kind: str, environ: Mapping[str, str], machine: Machine) -> int:
    """How many workers a node gets, one for each device of a kind: ``auto``, ``cpu``, ``gpu`` or ``xpu``.

    Raises:
        UsageError: There is no device of that kind.
    """
    if kind == "cpu":
        return machine.cpus()
    gpus = _gpus(environ, machine) if kind in ("auto", "gpu") else 0
    xpus = _count(environ.get(INTEL), machine.intel_gpus()) if kind == "xpu" or (kind == "auto" and not gpus) else 0
    if kind == "auto":
        return gpus or xpus or machine.cpus()
    if not (gpus or xpus):
        where = f"{CUDA}, {HIP}" if kind == "gpu" else INTEL
        hidden = "".join(f" ({name}={environ[name]!r})" for name in where.split(", ") if name in environ)
        raise UsageError(
            f"--nproc_per_node {kind!r}: there is no {'NVIDIA or AMD' if kind == 'gpu' else 'Intel'} GPU here{hidden}.",
            hint="Give a number, or 'auto' to take CPUs where there is no GPU.",
        )
    return gpus or xpus


def visible_devices(local_rank: int, environ: Mapping[str, str], machine: Machine) -> str:
    """``CUDA_VISIBLE_DEVICES`` for a worker that is to see its own GPU only, and as device 0.

    As torchrun does it: the entry of the agent's own variable, or the local rank where there is none.

    Raises:
        UsageError: There are more workers than visible GPUs.
    """
    if (text := environ.get(CUDA)) is None:
        return str(local_rank)
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if local_rank >= len(entries):
        raise UsageError(
            f"--virtual_local_rank: local rank {local_rank} has no GPU in {CUDA}={text!r}.",
            hint=f"Start at most {len(entries)} worker(s) on this node, or let it see more GPUs.",
        )
    return entries[local_rank]


def visible_gpus(environ: Mapping[str, str], machine: Machine) -> list[Gpu | None]:
    """The NVIDIA GPUs that workers see, in their order; None for a part of one (MIG)."""
    gpus = machine.nvidia_gpus()
    text = environ.get(CUDA)
    return list(gpus) if text is None else _chosen(text, gpus)


def _gpus(environ: Mapping[str, str], machine: Machine) -> int:
    if nvidia := machine.nvidia_gpus():
        text = environ.get(CUDA)
        return len(nvidia if text is None else _chosen(text, nvidia))
    text = environ.get(HIP, environ.get(ROCR, environ.get(CUDA)))  # HIP reads CUDA's variable too
    return _count(text, machine.amd_gpus())


def _chosen(text: str, gpus: Sequence[Gpu]) -> list[Gpu | None]:
    """What CUDA makes of its variable: entries up to the first that names nothing, or something twice."""
    chosen: list[Gpu | None] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.startswith("MIG-"):
            chosen.append(None)
            continue
        if entry.isdigit():
            matches = [gpus[int(entry)]] if int(entry) < len(gpus) else []
        else:
            matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen.append(matches[0])
    return chosen


def _count(text: str | None, there: int) -> int:
    """How many of ``there`` devices a list of indices leaves; an index that is not there ends the list."""
    if text is None:
        return there
    entries = [part.strip() for part in text.split(",")]
    found: set[str] = set()
    for entry in entries:
        device = entry.partition(".")[0]  # ZE_AFFINITY_MASK names tiles as 0.1
        if not entry or entry in found or (device.isdigit() and int(device) >= there):
            break
        found.add(entry)
    return min(len(found), there) if all("." not in entry for entry in found) else len(found)
