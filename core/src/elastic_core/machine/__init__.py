"""What this machine has, as far as a launcher must know: devices to count and hand out, and CPUs near them.

General layout: ``reading`` reads ``/proc`` and ``/sys`` and asks NVIDIA's management library; ``devices`` counts and
hands out, ``numa`` binds, both as pure functions of what was read. Nothing here imports torch or touches a device:
a process with a CUDA context could neither be forked from nor be cheap.
"""

from __future__ import annotations

from elastic_core.machine.devices import local_world_size, visible_devices
from elastic_core.machine.numa import bindings
from elastic_core.machine.reading import Machine

__all__ = ["Machine", "bindings", "local_world_size", "visible_devices"]
