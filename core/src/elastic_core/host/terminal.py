"""Text for terminals: control sequences made harmless, and colours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO, TypeAlias

RED, GREEN, YELLOW, CYAN = 31, 32, 33, 36
Paint: TypeAlias = "Callable[[str, int], str]"  # takes a text and a colour, and returns the text as it is printed


def printable(line: str) -> str:
    r"""Return the text in one line, with control characters and direction marks as ``\x1b``, ``\u202e``, ``\n``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text, each :func:`printable`."""
    return [printable(line) for line in text.split("\n")]


def plain(text: str, colour: int) -> str:
    """Return the text without the colour."""
    del colour
    return text


def has_colours(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if text for a stream is coloured: a terminal or FORCE_COLOR, without NO_COLOR or TERM=dumb.

    NO_COLOR and FORCE_COLOR count unless empty (https://no-color.org, https://force-color.org); NO_COLOR precedes.
    """
    if stream is None or stream.closed or environ.get("NO_COLOR"):
        return False
    return bool(environ.get("FORCE_COLOR")) or (stream.isatty() and environ.get("TERM") != "dumb")


def painter(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> Paint:
    """Return what colours text for a stream, if it is to have colours."""
    if not has_colours(stream, environ):
        return plain
    return lambda text, colour: f"\x1b[{colour}m{text}\x1b[0m"
