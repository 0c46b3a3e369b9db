"""What a node is made of, as far as a launcher must know: its accelerators and its CPUs, and which worker gets which.

General layout:

* ``machine``: where all of it is read; tests give it a tree of their own. ``nvml`` asks NVIDIA's library.
* ``device``: one accelerator. ``inventory``: those that are there. ``visible``: those of them that the environment
  leaves visible, how many workers they make (``--nproc_per_node``), and each worker's own (``--virtual_local_rank``).
* ``topology``: CPUs, cores, caches, sockets and NUMA nodes. ``numa``: each worker's CPUs (``--numa_binding``).

Nothing here imports torch or initialises CUDA, and nothing here changes anything: the warden binds, workers obey.
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
