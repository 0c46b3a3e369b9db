"""New memory for copies of tensors."""

from __future__ import annotations

import pytest
import torch

from elastic_torch.host import ALIGNED, CHUNK, Room, fill


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.arange(12.0)[::3],
        torch.ones(1).expand(5),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.arange(CHUNK // 4 + 3),  # of 8 bytes: more than one piece has
    ],
)
def test_a_copy_is_the_same_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    copied = Room().copy(tensor)
    assert torch.equal(copied, tensor)
    assert copied.dtype is tensor.dtype
    assert copied.stride() == torch.empty_like(tensor).stride()
    assert copied.untyped_storage().nbytes() == copied.nbytes, "what is saved is the tensor alone"
    if copied.numel():
        assert copied.data_ptr() != tensor.data_ptr()


def test_copies_do_not_overlap() -> None:
    room = Room()
    sources = [torch.full((size,), float(size)) for size in (1, 100, CHUNK // 8, 3, CHUNK // 5, CHUNK // 5, 17)]
    targets = [room.like(source) for source in sources]
    fill(targets, sources)
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(source, target)
        assert target.data_ptr() % ALIGNED == 0


def test_a_piece_lasts_as_long_as_its_tensors() -> None:
    copied = Room().copy(torch.arange(1000))
    assert copied.sum() == 499_500
