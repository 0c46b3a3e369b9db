"""What is printed on a terminal: foreign text made safe, and colours, which go to terminals only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO, TypeAlias

RED, GREEN, YELLOW, CYAN = 31, 32, 33, 36
Paint: TypeAlias = "Callable[[str, int], str]"
"""Takes a text and a colour, and returns the text as it is printed."""


def printable(line: str) -> str:
    r"""Return the text in one line, with control characters and direction marks as ``\x1b``, ``\u202e``, ``\n``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


def plain(text: str, colour: int) -> str:
    """Return the text without the colour."""
    del colour
    return text


def painter(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> Paint:
    """Return what colours text for a stream: nothing if it is no terminal, with NO_COLOR, and on TERM=dumb."""
    if stream is None or stream.closed or not stream.isatty():
        return plain
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return plain
    return lambda text, colour: f"\x1b[{colour}m{text}\x1b[0m"
