"""Machines made of files, for tests of what the kernel would tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_devices.inventory import Machine

MachineOf = Callable[..., Machine]


@pytest.fixture
def machine_of(tmp_path: Path) -> MachineOf:
    """``machine_of(files, cpus=..., nvml=..., links=...)``: a machine that has these files and CPUs, and no other."""

    def make(
        files: Mapping[str, str] | None = None,
        *,
        cpus: Iterable[int] = range(4),
        nvml: Any | None = None,
        links: Mapping[str, str] | None = None,
    ) -> Machine:
        for name, text in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        for name, target in (links or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(tmp_path / target)
        allowed = frozenset(cpus)
        return Machine(tmp_path, nvml=lambda: nvml, affinity=lambda: allowed)

    return make
