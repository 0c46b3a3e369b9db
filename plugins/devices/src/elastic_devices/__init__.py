"""Accelerators and CPUs for Elastic: how many workers a node gets, and which device and CPUs each worker gets.

General layout. Only reads the machine, without torch or CUDA:

* ``plugin``: the plugin of a run, which also counts workers (``--nproc_per_node``). ``flags``: its flags.
* ``inventory``: the accelerators of the machine. ``visible``: those that the environment leaves, how many workers they
  make, and each worker's own (``--virtual_local_rank``).
* ``cpus``: CPUs, cores, caches, sockets and NUMA nodes, and each worker's CPUs (``--numa_binding``).
"""

__version__ = "0.1.0"
