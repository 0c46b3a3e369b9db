"""Sizes of memory and disks: ``10G`` and ``90%``, read and written. K, M, G and T are powers of 1,024."""

from __future__ import annotations

import re

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE_FORM = "a size, such as 500M or 10G"
SHARE_FORM = "a size, such as 10G, or a share of the whole, such as 90%"


def parse_size(text: str) -> int:
    """Return the bytes that ``10G`` or ``10GiB`` means; raise ValueError for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not {SIZE_FORM}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def parse_share(text: str) -> tuple[int, float]:
    """Return the least size in bytes, and the least share of the whole; raise ValueError for another text."""
    if text.strip().endswith("%"):
        share = float(text.strip()[:-1]) / 100
        if not 0 <= share <= 1:
            raise ValueError(f"{text!r} is not {SHARE_FORM}")
        return 0, share
    return parse_size(text), 0.0


def format_size(size: float) -> str:
    """Return a size for people: ``512 B``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
