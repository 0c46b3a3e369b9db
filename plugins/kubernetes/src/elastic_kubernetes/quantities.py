"""Amounts of memory in the form of Kubernetes: ``512Mi``, ``4G``, ``1.5Gi``, ``1e9``."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_SCALE = {
    "": Decimal(1),
    "m": Decimal("1e-3"),
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", 1)},
    **{unit: Decimal(size) for unit, size in _BINARY.items()},
}
_FORM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|(m|[kMGTPE]|[KMGTPE]i))?")


def parse_bytes(text: str) -> int:
    """Return the bytes of a quantity, rounded up; raise ValueError if the text is not a quantity."""
    if (found := _FORM.fullmatch(text)) is None:
        raise ValueError(text)
    number, exponent, unit = found.groups()
    return math.ceil(Decimal(number + (exponent or "")) * _SCALE[unit or ""])


def format_bytes(size: int) -> str:
    """Return so many bytes with the greatest binary unit that divides them."""
    unit = max(
        (name for name, scale in _BINARY.items() if size and size % scale == 0), key=_BINARY.__getitem__, default=""
    )
    return f"{size // _BINARY.get(unit, 1)}{unit}"
