"""A program with something of its own in it, which tells everything that it can see."""

from __future__ import annotations

from dataclasses import dataclass

import facts


@dataclass
class Point:
    """A class of the main program."""

    x: int
    label: str = "here"


def double(number: int) -> int:
    """A function of the main program."""
    return 2 * number


if __name__ == "__main__":
    facts.tell_all()
