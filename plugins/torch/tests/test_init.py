from __future__ import annotations

import subprocess
import sys

import elastic_torch


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
