"""The check ``matmul``: each device multiplies two matrices, and the product is right.

The matrices have small whole numbers, so the product is exact in every type and order of additions, also in TF32. On a
node without GPUs the CPU is the device. ``python -m elastic_health.matmul``.
"""

from __future__ import annotations

import sys

from elastic_health.output import answer

SIZE = 512


def findings() -> list[str]:
    """Return what is wrong with the devices."""
    try:
        import torch
    except ImportError as exc:
        return [f"torch cannot be imported here: {exc}"]
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    rows = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE)
    left, right = rows % 5 - 2, rows % 7 - 3
    expected = left @ right
    found = []
    for device in devices:
        try:
            product = (left.to(device, torch.float32) @ right.to(device, torch.float32)).to("cpu", torch.int64)
        except RuntimeError as exc:
            found.append(f"{device} cannot multiply matrices: {str(exc).splitlines()[0]}")
            continue
        if wrong := int((product != expected).sum()):
            found.append(f"{device} computes {wrong} of {SIZE * SIZE} elements of a product wrong")
    return found


if __name__ == "__main__":
    sys.exit(answer(findings()))
