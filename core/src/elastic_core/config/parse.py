"""Parsers of the values of flags, and of texts that the Python API takes.

Each is a pure function that returns the value of a text, or raises :class:`Wrong`.
"""

from __future__ import annotations

import enum
import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from elastic_core.errors import did_you_mean

MAX_ROLE = 64  # characters, at most: a ROUND names the roles of all nodes (``protocol/limits.py``)


class OnNodeLoss(str, enum.Enum):
    """The consequence of a lost node (``--on_node_loss``)."""

    REPLACE = "replace"
    FAIL = "fail"


class Stream(enum.IntFlag):
    """Standard streams of a worker, as in ``--redirects`` and ``--tee``: 0 none, 1 stdout, 2 stderr, 3 both."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class StreamMap:
    """The streams of each local rank; ranks that ``by_rank`` does not name have ``default``."""

    default: Stream = Stream.NONE
    by_rank: Mapping[int, Stream] = field(default_factory=dict)

    def __getitem__(self, local_rank: int) -> Stream:
        return self.by_rank.get(local_rank, self.default)

    @property
    def any(self) -> bool:
        """True if it names any stream of any rank."""
        return bool(self.default or any(self.by_rank.values()))


class Wrong(ValueError):
    """Why a value is invalid, as a clause that follows the value in a message, and the nearest valid value."""

    def __init__(self, reason: str, meant: str = "", *, suggestion: str = "") -> None:
        super().__init__(reason)
        self.suggestion = f" Did you mean {meant!r}?" if meant else suggestion


@dataclass(frozen=True, slots=True)
class NodeRange:
    """The numbers of nodes that a job may have."""

    least: int
    most: int
    sizes: tuple[int, ...] = ()  # the only numbers of nodes, in order; () for every number from the least to the most

    def __str__(self) -> str:
        if not self.sizes:
            return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"
        step = self.sizes[1] - self.sizes[0]
        if len(self.sizes) > 3 and self.sizes == tuple(range(self.least, self.most + 1, step)):
            return f"{self.least}:{self.most}:{step}"
        return ",".join(map(str, self.sizes))


MOST_SIZES = 256  # sizes that --nnodes can name: the entry that opens a run carries them


def node_range(text: str) -> NodeRange:
    """Parse ``4``, ``1:4``, ``2:8:2`` (a range with a step) or ``4,6,8`` (sizes)."""
    if "," in text:
        if not re.fullmatch(r"\d+(,\d+)+", text, re.ASCII):
            raise Wrong("is not a list of numbers of nodes, such as 4,6,8")
        return node_sizes(map(int, text.split(",")))
    match = re.fullmatch(r"([+-]?\d+)(?::([+-]?\d+)(?::([+-]?\d+))?)?", text, re.ASCII)
    if match is None:
        raise Wrong("is not a number of nodes, N, a range of them, MIN:MAX or MIN:MAX:STEP, or a list of sizes, 4,6,8")
    least, most, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if least < 1:
        raise Wrong("has fewer than 1 node", str(NodeRange(1, max(1, most))))
    if most < least:
        raise Wrong(f"has a minimum, {least}, greater than its maximum, {most}", f"{most}:{least}" if most > 0 else "")
    if step < 1:
        raise Wrong(f"has a step of {step}, which is less than 1", str(NodeRange(least, most)))
    if rest := (most - least) % step:
        near = f"{least}:{most - rest}:{step}" if most - rest > least else ""
        raise Wrong(f"does not reach its maximum, {most}, in steps of {step} from {least}", near)
    return node_sizes(range(least, most + 1, step)) if step > 1 else NodeRange(least, most)


def node_sizes(numbers: Iterable[int]) -> NodeRange:
    """Return the range with these sizes only, given in any order."""
    sizes = sorted({*numbers})
    if sizes[0] < 1:
        raise Wrong("has fewer than 1 node")
    whole = len(sizes) == sizes[-1] - sizes[0] + 1  # every number between: a plain range
    if not whole and len(sizes) > MOST_SIZES:
        raise Wrong(f"has {len(sizes)} sizes; {MOST_SIZES} are allowed")
    return NodeRange(sizes[0], sizes[-1], () if whole else tuple(sizes))


MOST_WORKERS = 4096
START_METHODS = ("spawn", "fork", "forkserver")
NOT_TO_HANDLE = {"SIGKILL": "cannot be handled", "SIGSTOP": "cannot be handled", "SIGCHLD": "comes with every worker"}


def workers(text: str) -> int | str:
    """Parse a whole number, at least 1, or a word, whose number of workers a plugin returns."""
    if text[:1].isalpha():
        return text
    number = _whole(text, least=1)
    if number > MOST_WORKERS:
        raise Wrong(f"is more workers than a node can have; at most {MOST_WORKERS} are taken")
    return number


def port(text: str) -> int:
    """Parse a port, from 1 to 65535; 0 for a free one."""
    number = _whole(text, least=0)
    if number > 65535:
        raise Wrong("is greater than 65535, the last port")
    return number


def signals(text: str) -> tuple[signal.Signals, ...]:
    """Parse names of signals, separated by commas."""
    found: dict[signal.Signals, None] = {}
    for name in filter(None, (part.strip().upper() for part in text.split(","))):
        full = name if name.startswith("SIG") else f"SIG{name}"
        if full not in signal.Signals.__members__:
            near = did_you_mean(full, signal.Signals.__members__)
            raise Wrong(f"has {name!r}, which is no signal", suggestion=near)
        if full in NOT_TO_HANDLE:
            raise Wrong(f"has {full}, which {NOT_TO_HANDLE[full]}")
        found[signal.Signals[full]] = None
    if not found:
        raise Wrong("names no signal", "SIGTERM,SIGINT")
    return tuple(found)


def ranks(text: str) -> frozenset[int] | None:
    """Parse local ranks, separated by commas; '' for all."""
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"\d+", part, re.ASCII):
            raise Wrong(f"has {part!r}, which is not a local rank")
    return frozenset(map(int, parts))


def count_from_zero(text: str) -> int:
    """Parse a whole number, at least 0."""
    return _whole(text, least=0)


def _whole(text: str, least: int) -> int:
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise Wrong("is not a whole number")
    if int(text) < least:
        raise Wrong(f"is less than {least}", str(least))
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration in seconds, at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Wrong("is not a number of seconds")
    if value < 0:
        raise Wrong("is less than 0 seconds", "0")
    return value


def positive_seconds(text: str) -> float:
    """Parse a duration in seconds, more than 0."""
    if (value := seconds(text)) == 0:
        raise Wrong("is not more than 0 seconds")
    return value


def not_empty(text: str) -> str:
    """Parse a text that is not blank."""
    if not text.strip():
        raise Wrong("is empty")
    return text


def directory(text: str) -> Path:
    """Parse the path of a directory."""
    return Path(not_empty(text))


def switch(text: str) -> bool:
    """Parse the value of a flag that takes none: 1 for yes, 0 for no."""
    if text not in ("0", "1"):
        raise Wrong("is neither 1 (yes) nor 0 (no)")
    return text == "1"


def role(text: str) -> str:
    """Parse the name of a role."""
    if len(text) > MAX_ROLE:
        raise Wrong(f"has {len(text)} characters; {MAX_ROLE} are allowed")
    return text


def address(text: str) -> str:
    """Parse a host's name or numeric address, without a port; an IPv6 address may stand in brackets."""
    bare = text[1:-1] if re.fullmatch(r"\[.*\]", text) else not_empty(text)
    if match := re.fullmatch(r"(?:\[(.+)\]|([^:]+)):\d+", text):
        raise Wrong("has a port, and no port is meant", match[1] or match[2])
    if re.fullmatch(r"[\d.]*\.[\d.]*|.*:.*", bare, re.ASCII):
        import ipaddress  # few runs name an address

        try:
            ipaddress.ip_address(bare)
        except ValueError:
            raise Wrong("is not an IP address") from None
    elif not re.fullmatch(r"[\w.-]+", bare, re.ASCII):
        raise Wrong("is neither a host's name nor an IP address")
    return bare


def names(text: str) -> tuple[str, ...]:
    """Parse names, separated by commas or blanks."""
    return tuple(text.replace(",", " ").split())


def on_node_loss(text: str) -> OnNodeLoss:
    """Parse ``replace`` or ``fail``."""
    return OnNodeLoss(one_of([choice.value for choice in OnNodeLoss], text))


def one_of(known: Sequence[str], text: str) -> str:
    """Parse one of the words that are known."""
    if text in known:
        return text
    wrong = f"is neither {' nor '.join(known)}" if len(known) == 2 else f"is none of {', '.join(known)}"
    raise Wrong(wrong, suggestion=did_you_mean(text, known))


start_method = partial(one_of, START_METHODS)


def stream_map(text: str) -> StreamMap:
    """Parse ``3`` for every rank, or ``0:3,12:1`` for some local ranks; 0 none, 1 stdout, 2 stderr, 3 both."""
    if ":" not in text:
        return StreamMap(default=_stream(text))
    by_rank: dict[int, Stream] = {}
    for pair in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", pair, re.ASCII)
        if match is None:
            raise Wrong(f"has {pair!r}, which is not RANK:STREAMS")
        if (rank := int(match[1])) in by_rank:
            raise Wrong(f"names rank {rank} twice")
        by_rank[rank] = _stream(match[2])
    return StreamMap(by_rank=by_rank)


def _stream(text: str) -> Stream:
    if text.strip() not in {"0", "1", "2", "3"}:
        raise Wrong(f"has {text!r} for streams, which is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)")
    return Stream(int(text))
