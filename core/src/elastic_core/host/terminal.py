"""Foreign text on a terminal: exception messages, log tails and names from other nodes are shown, never obeyed."""

from __future__ import annotations


def printable(line: str) -> str:
    r"""One line, with every character escaped that a terminal would act on instead of showing it.

    Control characters, escape sequences, direction marks and line ends become ``\x1b``, ``\u202e``, ``\n``.
    """
    return "".join(char if char.isprintable() else _escaped(char) for char in line)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
