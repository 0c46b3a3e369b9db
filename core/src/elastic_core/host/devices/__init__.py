"""The accelerators and CPUs of a node, and which worker gets which. Only reads, without torch or CUDA.

General layout:

* ``machine``: reads files; tests give it another tree. ``nvml`` asks NVIDIA's library.
* ``device``: one accelerator. ``inventory``: all accelerators. ``visible``: the visible ones, how many workers they
  make (``--nproc_per_node``), and each worker's own (``--virtual_local_rank``).
* ``topology``: CPUs, cores, caches, sockets and NUMA nodes. ``numa``: each worker's CPUs (``--numa_binding``).
"""

from __future__ import annotations

from elastic_core.host.devices.machine import Machine
from elastic_core.host.devices.numa import worker_cpus
from elastic_core.host.devices.topology import Topology, read_topology
from elastic_core.host.devices.visible import gpus, local_world_size, only_device, visible_devices

__all__ = [
    "Machine",
    "Topology",
    "gpus",
    "local_world_size",
    "only_device",
    "read_topology",
    "visible_devices",
    "worker_cpus",
]
