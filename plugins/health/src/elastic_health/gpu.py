"""The check ``gpu``: every visible GPU answers, and has enough memory free. ``python -m elastic_health.gpu [LEAST]``.

It is a process of its own, since a call to a GPU that hangs may never return.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from elastic_devices.inventory import Machine
from elastic_health.gpu_memory import LISTS, GpuError, Source, describe_holder, find_source, visible_uuids
from elastic_health.output import answer
from elastic_health.sizes import format_size, parse_share

MACHINE = Machine()


def findings(
    source: Source | None, environ: Mapping[str, str], least: str = "", machine: Machine = MACHINE
) -> list[str]:
    """Return what is wrong with the GPUs."""
    if source is None:
        return ["no GPU: there is neither NVML nor nvidia-smi nor AMD's driver"]
    try:
        gpus = source.gpus()
        visible = visible_uuids(gpus, environ, machine)
        holders = source.holders()
    except GpuError as exc:
        return [str(exc)]
    if not visible:
        lists = ", ".join(f"{name}={environ[name]!r}" for name in LISTS if name in environ)
        return [f"no visible GPU of {len(gpus)}" + (f", with {lists}" if lists else "")]
    size, share = parse_share(least) if least else (0, 0.0)
    found = []
    for number, gpu in enumerate(gpus):
        if gpu.uuid in visible and gpu.free < max(size, share * gpu.total):
            room = f"{format_size(gpu.free)} of {format_size(gpu.total)} free"
            held = "; ".join(describe_holder(one) for one in holders if one.gpu == gpu.uuid)
            found.append(f"GPU {number} ({gpu.uuid}) has {room}, not {least}" + (f": {held}" if held else ""))
    return found


def main(arguments: Sequence[str]) -> int:
    """Print what was found, and return the exit code."""
    return answer(findings(find_source(), os.environ, arguments[0] if arguments else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
