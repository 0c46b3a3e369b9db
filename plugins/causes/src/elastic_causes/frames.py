"""The frames of a stack, as Python or :mod:`faulthandler` has printed it."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass

CODE_MAX_CHARACTERS = 120  # of the source line of a frame that is shown

_PREFIX = r"(?:\[[\w-]*\d+\]: ?)*"  # torch puts "[rank0]: " before each line, and twice in a group that was made twice
_FRAME = re.compile(rf'{_PREFIX}\s+File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?)(?:, | )in (?P<function>\S.*)')
_SOURCE = re.compile(rf"{_PREFIX}\s+(?P<code>\S.*)")
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/|^<")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack: ``train.py:41 in train_step: loss = model(batch)``; ``line`` is 0 where it is unknown."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def is_library(self) -> bool:
        """True if the file belongs to Python or to an installed package."""
        return _LIBRARY.match(self.file) is not None

    @property
    def call(self) -> str:
        """The function and where it is, ``all_reduce (torch/distributed/distributed_c10d.py:2810)``."""
        file = _LIBRARY.sub("", self.file) if self.is_library else os.path.basename(self.file)
        return f"{self.function} ({file or self.file}:{self.line})"

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line} in {self.function}"
        return f"{place}: {self.code[:CODE_MAX_CHARACTERS]}" if self.code else place


def parse_frames(text: str) -> list[Frame]:
    """Return the frames that a text of Python or faulthandler has, in its order, whatever stands between them."""
    lines = text.splitlines()
    frames = []
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        if match := _FRAME.fullmatch(line):
            source = None if _FRAME.fullmatch(following) else _SOURCE.fullmatch(following)
            number = int(match["line"]) if match["line"].isdigit() else 0
            frames.append(Frame(match["file"], number, match["function"], "" if source is None else source["code"]))
    return frames
