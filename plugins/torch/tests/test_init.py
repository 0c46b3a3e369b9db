from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import elastic_core
import elastic_torch
from elastic_core.worker.library import plugins_in_worker


def test_every_public_name_is_there() -> None:
    assert elastic_torch.__all__ == sorted(elastic_torch.__all__)
    assert {"__version__", *elastic_torch._HOME} == set(elastic_torch.__all__)
    for name in elastic_torch.__all__:
        assert getattr(elastic_torch, name) is not None


def test_without_torch_one_sentence_says_so() -> None:
    program = """
import sys
sys.modules["torch"] = None
import elastic_torch
elastic_torch.loss_weight
try:
    elastic_torch.ElasticDistributedSampler
except ImportError as exc:
    print(exc)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert (
        told == "elastic_torch.ElasticDistributedSampler needs torch, which is not installed here: pip install torch.\n"
    )


def test_core_reaches_them() -> None:
    assert elastic_core.TrainState is elastic_torch.TrainState
    assert elastic_core.init_process_group is elastic_torch.init_process_group


def test_core_asks_for_them_by_its_hooks_too() -> None:
    named = plugins_in_worker(["torch"])
    assert named.first_answer("elastic_train_state") is elastic_torch.TrainState
    assert named.first_answer("elastic_init_process_group") is elastic_torch.init_process_group


def test_importing_it_imports_no_torch() -> None:
    script = "import sys, elastic_torch.plugin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_the_version_is_the_distributions() -> None:
    assert elastic_torch.__version__ == metadata.version("elastic-torch")
