"""A file system on which nothing is left."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest


def fill(path: Path) -> None:
    """Write until nothing is left, not even room for a claim."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    with pytest.raises(OSError, match="No space left") as full, open(path.with_name("more"), "wb", buffering=0) as file:
        file.write(b"x")
    assert full.value.errno == errno.ENOSPC
