"""Health checks of a node before it enters a job, and the GPU memory that other processes hold.

* ``plugin``: the plugin that a run loads. ``flags``: its flags.
* ``checks``: the types of checks, and those that the flags choose. ``runner``: runs them before the node joins.
* ``host``: the checks that are functions: ``disk``, ``memory`` and ``shm``. Milliseconds each.
* ``gpu``, ``matmul``, ``allreduce``: the checks that are processes, ``python -m elastic_health.gpu``. ``output``: how
  they write their answer, and the meaning of any command's output.
* ``gpu_memory``: the GPUs, and the processes that hold their memory: NVML, ``nvidia-smi``, AMD's driver; and which of
  these the next workers wait for.
* ``sizes``: ``10G`` and ``90%``, read and written.

Only ``matmul`` and ``allreduce`` import torch, and only in their own processes.
"""

__version__ = "0.1.0"
