"""The plugin, which every run imports: what looks at devices is imported when a word or a flag asks for it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from elastic_core import hookimpl

if TYPE_CHECKING:
    from elastic_core import Assignment
    from elastic_core.config import RunConfig


class Devices:
    """The accelerators and CPUs of a node's workers."""

    def __init__(self) -> None:
        self._variables: Sequence[Mapping[str, str]] = ()  # of each local rank; () if all workers see all devices
        self._cpus: Sequence[frozenset[int]] = ()  # of each local rank; () if workers are not bound

    @hookimpl
    def elastic_count_workers(self, word: str, environ: Mapping[str, str]) -> int:
        """Return the number of workers that ``auto``, ``gpu`` or ``xpu`` means here."""
        from elastic_devices.inventory import Machine
        from elastic_devices.visible import count_workers

        return count_workers(word, environ, Machine())

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Give each worker its device and CPUs, or raise UsageError before anything is started."""
        if not config.settings:
            return
        from elastic_devices.flags import NUMA_BINDING, VIRTUAL_LOCAL_RANK

        mode, virtual = config.of(NUMA_BINDING), config.of(VIRTUAL_LOCAL_RANK)
        if mode is None and not virtual:
            return
        from elastic_devices.cpus import read_topology, worker_cpus
        from elastic_devices.inventory import Machine
        from elastic_devices.visible import only_device

        workers, machine = config.nproc_per_node, Machine()
        if virtual:
            devices = [only_device(local_rank, os.environ, machine) for local_rank in range(workers)]
            self._variables = [{"LOCAL_RANK": "0", **device} for device in devices]
        if mode is not None:
            topology = read_topology(os.environ, machine)
            self._cpus = [worker_cpus(mode, local_rank, workers, topology) for local_rank in range(workers)]

    @hookimpl
    def elastic_worker_environment(self, assignment: Assignment) -> Mapping[str, str] | None:
        """Return the variables that leave a worker only its own accelerator, as device 0."""
        return self._variables[assignment.local_rank] if self._variables else None

    @hookimpl
    def elastic_worker_cpus(self, assignment: Assignment) -> Collection[int] | None:
        """Return the CPUs near a worker's accelerator."""
        return self._cpus[assignment.local_rank] if self._cpus else None
