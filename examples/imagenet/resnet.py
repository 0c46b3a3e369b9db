"""Residual networks (He et al. 2015, "Deep Residual Learning for Image Recognition"), in the usual variant of torch's.

The stride of a bottleneck is in its 3x3 convolution, and the last normalization of each block begins with zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn


class Block(nn.Module):
    """Convolutions with a way around them: (N, C, H, W) to (N, width * expansion, H / stride, W / stride)."""

    expansion: ClassVar[int]

    def __init__(self, channels: int, width: int, stride: int, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*layers)
        out = width * self.expansion
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.around = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        last = self.convolutions[-1]
        assert isinstance(last, nn.BatchNorm2d)
        nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Both ways, added."""
        return nn.functional.relu(self.convolutions(x) + self.around(x))


class Basic(Block):
    """Two convolutions of 3x3."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        first = [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        second = [nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)]
        super().__init__(channels, width, stride, [*first, *second])


class Bottleneck(Block):
    """One convolution of 3x3 between two of 1x1."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        first = [nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        second = [nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        third = [nn.Conv2d(width, width * 4, 1, bias=False), nn.BatchNorm2d(width * 4)]
        super().__init__(channels, width, stride, [*first, *second, *third])


def resnet(block: type[Basic] | type[Bottleneck], depths: Sequence[int], classes: int) -> nn.Sequential:
    """Images (N, 3, H, W) to scores (N, classes).

    Args:
        block: Of which kind the blocks are.
        depths: How many of them in each of the four stages.
        classes: How many classes there are.
    """
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    channels = 64
    for stage, depth in enumerate(depths):
        for number in range(depth):
            blocks.append(block(channels, 64 << stage, 2 if stage > 0 and number == 0 else 1))
            channels = (64 << stage) * block.expansion
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


ARCHITECTURES: dict[str, Callable[[int], nn.Sequential]] = {
    "resnet18": partial(resnet, Basic, (2, 2, 2, 2)),
    "resnet34": partial(resnet, Basic, (3, 4, 6, 3)),
    "resnet50": partial(resnet, Bottleneck, (3, 4, 6, 3)),
    "resnet101": partial(resnet, Bottleneck, (3, 4, 23, 3)),
}
