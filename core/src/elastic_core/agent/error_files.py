"""Reads the error file of a worker and the end of its stderr, with Python tracebacks and faulthandler's dumps.

The error file is what torch's ``@record`` writes (``torch.distributed.elastic.multiprocessing.errors``). Tracebacks are
read of programs that do not record their exceptions. All of it is untrusted input, and nothing here raises.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST = 1 << 20
_PREFIX = r"(?:\[[\w-]*\d+\]: ?)*"  # torch puts "[rank0]: " before each line, and twice in a group that was made twice
_TERMINATE = re.compile(
    rf"^{_PREFIX}(?P<line>terminate called [^\n]*)(?:\n{_PREFIX} *what\(\): (?P<what>[^\n]*))?", re.MULTILINE
)
_ABORT = re.compile(
    rf"^{_PREFIX}(?P<line>(?:double free|free\(\): |munmap_chunk\(\): |malloc\(\): |corrupted |\*\*\* )[^\n]*"
    r"|[^\n]*: Assertion [^\n]* failed\.)$",
    re.MULTILINE,
)
_FRAME = re.compile(rf'{_PREFIX}\s+File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?)(?:, | )in (?P<function>\S.*)')
_SOURCE = re.compile(rf"{_PREFIX}\s+(?P<code>\S.*)")
_TRACEBACK = re.compile(rf"{_PREFIX}(?:Original )?Traceback \(most recent call last\):\s*")
_EXCEPTION = re.compile(rf"{_PREFIX}(?P<line>(?P<name>(?:[\w<>]+\.)*[^\W\d]\w*)(?:: .*|:|))\s*")
_USUAL_NAME = re.compile(r".*(?:Error|Exception|Interrupt|Exit|Failure)|ExceptionGroup")
_LEADING_PREFIX = re.compile(rf"^{_PREFIX}", re.MULTILINE)
_LOG_LINE = re.compile(r"\[[WEI]\d{0,4} ")  # ``[W1124 …``, which torch's logger writes while the process ends
_FATAL = "Fatal Python error: "
_CURRENT_THREAD = re.compile(r"^Current thread 0x[^\n]*\(most recent call first\):\n", re.MULTILINE)
CONTINUATION_MAX_LINES = 12  # of an exception's text after its first line
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/|^<")
CODE_MAX_CHARACTERS = 120  # of the source line that is shown


def error_file_data(path: Path) -> dict[str, Any]:
    """Return what an error file has in it; {} if there is none, or it is no JSON object."""
    try:
        data = json.loads(_read(path) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def last_abort_line(stderr_tail: str) -> str:
    """Return what native code wrote before it aborted (SIGABRT), in one line; '' if it wrote nothing that is known.

    ``terminate called after throwing an instance of 'std::runtime_error': what(): socket closed`` for C++, else the
    last line of the C library's, or of a failed assertion.
    """
    if terminations := list(_TERMINATE.finditer(stderr_tail)):
        last = terminations[-1]
        return one_line(f"{last['line']}: what(): {last['what'].strip()}" if last["what"] else last["line"])
    aborts = list(_ABORT.finditer(stderr_tail))
    return one_line(aborts[-1]["line"]) if aborts else ""


def one_line(text: str) -> str:
    """Return the first line of a text that is not blank, in printable characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return "".join(char if char.isprintable() else " " for char in first).strip()


def last_lines(data: bytes, limit: int) -> str:
    """Return the last whole lines of ``data`` in at most ``limit`` bytes; of a last line that is longer, its end."""
    end = data[-limit:]
    if len(data) > limit and data[-limit - 1 : -limit] != b"\n":
        end = end[end.find(b"\n", 0, -1) + 1 :]
    return end.decode(errors="replace")


def telling_lines(data: bytes, limit: int) -> str:
    """Return the last whole lines of stderr in at most ``limit`` bytes, with what led to a fatal signal.

    faulthandler writes the stacks of all threads after the message of native code, and may write more than ``limit``.
    Then one half is from before ``Fatal Python error``, and the other is that line and the current thread's stack.
    """
    at = data.rfind(_FATAL.encode())
    if at < 0 or len(data) - at <= limit // 2:
        return last_lines(data, limit)
    title = data[at : data.find(b"\n", at) + 1]
    current = max(data.find(b"Current thread 0x", at), at + len(title))
    stack = data[current : current + limit // 2 - len(title)]
    return last_lines(data[:at], limit // 2) + (title + stack[: stack.rfind(b"\n") + 1]).decode(errors="replace")


def _read(path: Path) -> bytes | None:
    """Return a file's beginning; None unless it is a plain file. Opening never waits, as for a FIFO it would."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(_MOST) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None


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


def innermost(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own program; of Python or a package where there is nothing else.

    ``frames`` begin with the outermost call.
    """
    own = [frame for frame in frames if not frame.is_library]
    return (own or frames)[-1] if frames else None


def crashed_thread(text: str) -> list[Frame] | None:
    """Return the stack of the thread that a fatal signal hit, outermost call first; None without a dump of it."""
    start = text.rfind(_FATAL)
    if start < 0 or (current := _CURRENT_THREAD.search(text, start)) is None:
        return None
    return parse_frames(text[current.end() :].partition("\n\n")[0])[::-1]


def printed_exception(text: str, within: int | None = CONTINUATION_MAX_LINES) -> tuple[str, str, list[Frame]] | None:
    """Return the type, the text and the stack of the Python exception that stands last in a text; None for none.

    Args:
        text: The end of what a program has written.
        within: How many lines may follow the line that names the exception; None for any number.
    """
    lines = _LEADING_PREFIX.sub("", text).splitlines()
    starts = [index for index, line in enumerate(lines) if _TRACEBACK.fullmatch(line)]
    begin = starts[-1] if starts else 0
    usual = not starts  # the start is cut off, or it is a SyntaxError: then the name has to look like an exception's
    for number in range(begin + bool(starts), len(lines)):  # indented lines are the stack
        match = _EXCEPTION.fullmatch(lines[number])
        if match is None or (usual and not _USUAL_NAME.fullmatch(match["name"])):
            continue
        rest = [line for line in lines[number + 1 :] if _is_text(line)]
        if within is not None and any(line.strip() for line in rest[within:]):
            if usual:
                continue
            return None
        said = "\n".join([match["line"], *itertools.takewhile(_is_text, lines[number + 1 :])]).rstrip()
        return match["name"], said, parse_frames("\n".join(lines[begin:number]))
    return None


def _is_text(line: str) -> bool:
    return not _LOG_LINE.match(line)


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
