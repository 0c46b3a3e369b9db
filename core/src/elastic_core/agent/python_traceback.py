"""Reads Python tracebacks and faulthandler's dumps as text: which line of the user's own program was the last."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_PREFIX = r"(?:\[[\w-]*\d+\]: ?)?"  # torch puts "[rank0]: " before each line
_FRAME = re.compile(rf'{_PREFIX}\s+File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?)(?:, | )in (?P<function>\S.*)')
_SOURCE = re.compile(rf"{_PREFIX}\s+(?P<code>\S.*)")
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/|^<")
CODE_MAX_CHARACTERS = 120  # of the source line that is shown


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack: ``train.py:41 in train_step: loss = model(batch)``; ``line`` is 0 where it is unknown."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def is_library(self) -> bool:
        """Whether the file belongs to Python or to an installed package."""
        return _LIBRARY.match(self.file) is not None

    @property
    def call(self) -> str:
        """The function and where it is, ``all_reduce (torch/distributed/distributed_c10d.py:2810)``."""
        file = _LIBRARY.sub("", self.file) if self.is_library else os.path.basename(self.file)
        return f"{self.function} ({file or self.file}:{self.line})"

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line} in {self.function}"
        return f"{place}: {self.code[:CODE_MAX_CHARACTERS]}" if self.code else place


def user_line(text: str) -> Frame | None:
    """Return the user's own line at which the last exception of ``text`` was raised; None where there is none.

    Where an exception was raised from another one, or while another one was handled, the last traceback counts: it is
    what the user sees last. Frames of Python and of installed packages are passed over, unless there is nothing else.
    The dump that faulthandler writes for a fatal signal is read as well; there the innermost call comes first.
    """
    last = max(text.rfind("Traceback (most recent call last)"), text.rfind("(most recent call first)"))
    first_is_innermost = text[max(last, 0) :].startswith("(most recent call first)")
    frames = parse_frames(text[max(last, 0) :])
    if first_is_innermost:
        frames.reverse()
    own = [frame for frame in frames if not frame.is_library]
    return (own or frames)[-1] if frames else None


def parse_frames(text: str) -> list[Frame]:
    """Return the frames in a text, in its order, whatever stands between them."""
    lines = text.splitlines()
    frames = []
    for number, line in enumerate(lines):
        if (match := _FRAME.fullmatch(line)) is None:
            continue
        following = lines[number + 1] if number + 1 < len(lines) else ""
        source = None if _FRAME.fullmatch(following) else _SOURCE.fullmatch(following)
        code = "" if source is None else source["code"]
        line_number = int(match["line"]) if match["line"].isdigit() else 0
        frames.append(Frame(match["file"], line_number, match["function"], code))
    return frames
