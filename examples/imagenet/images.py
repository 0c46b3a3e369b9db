"""Images in folders, one folder for each class, read with Pillow: the layout of ImageNet, without torchvision."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

SUFFIXES = {".jpeg", ".jpg", ".png", ".webp"}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
"""Of ImageNet's pixels, by channel."""


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images (3, size, size), normalized, and the number of their class.

    Args:
        root: A folder with ``CLASS/IMAGE``. Classes are numbered in the order of their names, the same on all ranks.
        size: Pixels.
        augment: Whether to take another part of the image each time, and to mirror it or not; else the middle.

    Raises:
        FileNotFoundError: There are no images.
    """

    def __init__(self, root: Path, size: int, *, augment: bool = False) -> None:
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        if not self.samples:
            raise FileNotFoundError(f"No images in {root}: they are looked for as {root}/CLASS/NAME.jpeg.")
        self._size, self._augment = size, augment

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        box = random_box(image.size) if self._augment else middle_box(image.size)
        image = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box)
        if self._augment and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).float() / 255
        return ((pixels - MEAN) / STD).permute(2, 0, 1).contiguous(), label


def random_box(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """8 % to 100 % of the area, 3:4 to 4:3, anywhere, as torchvision's ``RandomResizedCrop`` (Szegedy et al. 2014).

    Args:
        size: Width and height, in pixels.

    Returns:
        Left, top, right and bottom.
    """
    width, height = size
    area = width * height * float(torch.empty(()).uniform_(0.08, 1.0))
    ratio = math.exp(float(torch.empty(()).uniform_(math.log(3 / 4), math.log(4 / 3))))
    across, down = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    left, top = float(torch.rand(())) * (width - across), float(torch.rand(())) * (height - down)
    return left, top, left + across, top + down


def middle_box(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the square in the middle, 7/8 of the shorter side, as ``Resize(256)`` and ``CenterCrop(224)`` take it."""
    width, height = size
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
