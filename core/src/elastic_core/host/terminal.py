"""Makes foreign text, such as messages, log tails and names from other nodes, safe to print on a terminal."""

from __future__ import annotations


def printable(line: str) -> str:
    r"""Return the text in one line, with control characters and direction marks as ``\x1b``, ``\u202e``, ``\n``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)
