"""The accelerators and CPUs of a node, and which worker gets which. Only reads, without torch or CUDA.

General layout:

* ``machine``: an accelerator; reads files; tests give it another tree. ``nvml`` asks NVIDIA's library.
* ``inventory``: all accelerators. ``visible``: the visible ones, how many workers they make (``--nproc_per_node``), and
  each worker's own (``--virtual_local_rank``).
* ``topology``: CPUs, cores, caches, sockets and NUMA nodes. ``numa``: each worker's CPUs (``--numa_binding``).
"""

from __future__ import annotations

from elastic_core import names_of

NAMES = {
    "host.devices.inventory": "amd nvidia",
    "host.devices.machine": "Device Machine",
    "host.devices.visible": "gpus select",
}

__getattr__ = names_of(__name__, NAMES)
