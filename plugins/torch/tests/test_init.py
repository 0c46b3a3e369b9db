from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import elastic_core
import elastic_torch


def test_every_public_name_is_there() -> None:
    for name in elastic_torch.__all__:
        assert getattr(elastic_torch, name) is not None
    assert {*elastic_torch._HOME, "__version__"} == set(elastic_torch.__all__)


def test_core_reaches_them() -> None:
    assert elastic_core.TrainState is elastic_torch.TrainState
    assert elastic_core.init_process_group is elastic_torch.init_process_group


def test_importing_it_imports_no_torch() -> None:
    script = "import sys, elastic_torch; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_the_version_is_the_distributions() -> None:
    assert elastic_torch.__version__ == metadata.version("elastic-torch")
