"""Copies of tensors in host memory."""

from __future__ import annotations

import pytest
import torch

from elastic_torch.state.host_memory import fill, like


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[::3],
        torch.ones(1).expand(5),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.tensor([1.5], dtype=torch.bfloat16),
    ],
)
def test_a_copy_is_the_same_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    copied = like(tensor)
    fill([copied], [tensor])
    assert torch.equal(copied, tensor)
    assert copied.dtype is tensor.dtype
    assert copied.untyped_storage().nbytes() == copied.nbytes, "what is saved is the tensor alone"
