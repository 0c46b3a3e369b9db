"""Expands the compressed lists in Slurm's variables: ``node[0-3,07],login1`` of hosts, ``2(x3),1`` of counts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from elastic_core.errors import UsageError

MAX_HOSTS = 65_536  # what a list may expand to: more is a list that is not one
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)
_PART = r"(?:[^\[\],]|\[[^\[\]]*\])+"
_LIST = re.compile(rf"{_PART}(?:,{_PART})*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``SLURM_JOB_NODELIST``, in its order.

    Numbers keep their leading zeros, and a name may have several brackets: ``rack[0-1]n[08-10]``.

    Raises:
        UsageError: The text is no such list.
    """
    hosts: list[str] = []
    for part in _split(text):
        names = _expand_one(part, text)
        hosts += itertools.islice(names, MAX_HOSTS + 1 - len(hosts))
        if len(hosts) > MAX_HOSTS:
            raise UsageError(f"The node list {text!r} has more than {MAX_HOSTS} nodes.")
    return tuple(hosts)


def counts(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as ``SLURM_STEP_TASKS_PER_NODE``: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        UsageError: The text is no such list.
    """
    numbers: list[int] = []
    for part in text.split(","):
        if (found := _COUNT.fullmatch(part.strip())) is None or int(found[2] or 1) > MAX_HOSTS:
            raise UsageError(f"{text!r} is no list of numbers as Slurm writes them, such as 2(x3),1.")
        numbers += [int(found[1])] * int(found[2] or 1)
    return tuple(numbers)


def _split(text: str) -> list[str]:
    """Return the parts between the commas that are in no bracket."""
    parts = [part.strip() for part in re.findall(_PART, text)]
    if not _LIST.fullmatch(text) or not all(parts):
        raise _malformed(text)
    return parts


def _expand_one(part: str, text: str) -> Iterator[str]:
    """Yield the hosts of one part: the last bracket varies fastest, as in Slurm."""
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices: list[list[str]] = [
        [piece] if number % 2 == 0 else _numbers(piece, text) for number, piece in enumerate(pieces)
    ]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        found = _RANGE.fullmatch(item.strip())
        if found is None:
            raise _malformed(text)
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise _malformed(text)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _malformed(text: str) -> UsageError:
    return UsageError(f"{text!r} is no list of nodes as Slurm writes them, such as node[0-3,07].")
